# ${name}

Keeps the table `${table}` equal to a table of another database, through the topic that Debezium writes.

    python -m pip install -r requirements.txt
    python -m pytest -q                              # no service needed

    txstream up                                      # ZooKeeper and Kafka on this machine
    txstream topic create shop.public.goods
    txstream topic produce shop.public.goods changes.jsonl --format json
    txstream run ${name}:topology --until caught-up
    txstream state top ${name} ${table}
    txstream doctor ${name}:topology                 # when something does not work

- `${name}.py` is the topology, `test_${name}.py` its test; `changes.jsonl` stands in for Debezium.
- `txstream.toml` says where the services are; `compose.yaml` runs some in containers, for development.
- `.github/workflows/test.yaml` runs the test for each push, with what `requirements.txt` names: the txstream of here.
- How to go on with a real Debezium: docs/mirror.md of txstream.

`txstream run` needs Java 17 or 21. What it keeps on this machine is in `.txstream`; `txstream down` stops the services.
