# ${name}

Counts the words of the Kafka topic `lines` into the table `${table}`, each line exactly once.

    python -m pip install -r requirements.txt
    python -m pytest -q                              # no service needed

    txstream up                                      # ZooKeeper and Kafka on this machine
    txstream topic create lines
    txstream topic produce lines lines.txt
    txstream run ${name}:topology --until caught-up
    txstream state top ${name} ${table}
    txstream doctor ${name}:topology                 # when something does not work

- `${name}.py` is the topology, `test_${name}.py` its test.
- `txstream.toml` says where the services are; `compose.yaml` runs some in containers, for development.
- `.github/workflows/test.yaml` runs the test for each push, with what `requirements.txt` names: the txstream of here.

`txstream run` needs Java 17 or 21. What it keeps on this machine is in `.txstream`; `txstream down` stops the services.
Without `--until caught-up`, a run goes on until it is stopped.
