# ${name}

Counts the clicks on each page by the hour, in the table `${table}`, and says which hours are complete.

    python -m pip install -r requirements.txt
    python -m pytest -q                              # no service needed

    txstream up                                      # ZooKeeper and Kafka on this machine
    txstream topic create clicks
    txstream topic produce clicks clicks.jsonl --format json
    txstream run ${name}:topology --until caught-up
    echo '{"page": "/cart", "at": "2026-01-31T13:20:00Z"}' | txstream topic produce clicks -
    txstream run ${name}:topology --until caught-up   # closes the hour from 12:00
    txstream state top ${name} ${table}
    txstream doctor ${name}:topology                 # when something does not work

- `${name}.py`, its test `test_${name}.py`, `clicks.jsonl`; docs/windows.md of txstream says more.
- `txstream.toml`: where the services are; `compose.yaml`: some in containers; `.github`: the test for each push.

`txstream run` needs Java 17 or 21. What it keeps on this machine is in `.txstream`; `txstream down` stops the services.
