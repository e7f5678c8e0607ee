# ${name}

Counts the clicks of a Kafka topic by page and hour into the table `${table}`. A row whose hour is over is `closed`.

    python -m pip install -r requirements.txt
    python -m pytest -q                              # no service needed

    txstream up                                      # ZooKeeper and Kafka on this machine
    txstream topic create clicks
    txstream topic produce clicks clicks.jsonl --format json
    txstream run ${name}:topology --until caught-up  # more clicks later close the first hour
    txstream state top ${name} ${table}
    txstream status ${name}                          # the watermark, and which partitions hold it back
    txstream doctor ${name}:topology                 # when something does not work

- `${name}.py` is the topology, `test_${name}.py` its test; `clicks.jsonl` has some clicks.
- `txstream.toml` says where the services are; `compose.yaml` runs some in containers, for development.
- `.github/workflows/test.yaml` runs the test for each push, with what `requirements.txt` names: the txstream of here.
