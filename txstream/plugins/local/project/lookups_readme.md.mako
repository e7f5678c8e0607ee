# ${name}

Adds to each order the name of who made it, in the table `${table}`; the users are the table `${table}_users`.

    python -m pip install -r requirements.txt
    python -m pytest -q                              # no service needed

    txstream up                                      # ZooKeeper and Kafka on this machine
    txstream topic create users
    txstream topic create orders
    txstream topic produce orders orders.jsonl --format json
    txstream topic produce users users.jsonl --format json   # read first, though they came later
    txstream run ${name}:topology --until caught-up
    txstream state top ${name} ${table}
    txstream doctor ${name}:topology                 # when something does not work

- `${name}.py`, its test `test_${name}.py`, records to try in `*.jsonl`; docs/lookups.md of txstream says more.
- `txstream.toml`: where the services are; `compose.yaml`: some in containers; `.github`: the test for each push.

`txstream run` needs Java 17 or 21. What it keeps on this machine is in `.txstream`; `txstream down` stops the services.
