# Where `txstream` finds its services when it is called in this folder. As long as nothing is set here, it uses
# those of `txstream up` and a SQLite file in .txstream.
# Take the # away to use the services of compose.yaml instead (PostgreSQL needs: pip install 'txstream[postgresql]').
# No password belongs into this file: write <%text>${NAME}</%text> in its place, for the variable NAME of the environment.

# zookeeper = "127.0.0.1:2181"
# kafka = "127.0.0.1:9092"
# database = "postgresql://${name}@127.0.0.1/${name}"
