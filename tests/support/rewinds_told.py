"""What has left is told of a rewind, through a driver that is killed while it tells it: a table's topic, a
stream's topic and a Delta table. What must be there comes from the producer, what is there from kafka-python,
SQLAlchemy and deltalake."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable
from kafka import KafkaConsumer, TopicPartition
from sqlalchemy import create_engine, text

from support.runs import Launcher
from support.texts import create_topic, produce
from txstream import reading, version_of
from txstream.plugins.local.embedded import Services

TESTS = str(Path(__file__).parents[1])
PARTITIONS = 2


class Sent(NamedTuple):
    partition: int
    txid: int
    rewind: int | None
    key: str
    value: Any


def consume(services: Services, topic: str, isolation: str) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=services.kafka, enable_auto_commit=False, isolation_level=isolation
    )
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    found = []
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=500).values():
            found += records
    consumer.close()
    return found


def sent(records: Sequence[Any]) -> list[Sent]:
    """Return each record once, in the order of its partition."""
    found = []
    for record in records:
        headers = dict(record.headers)
        rewind = headers.get("txstream-rewind")
        value = None if record.value is None else json.loads(record.value)
        txid = int(headers["txstream-txid"])
        to = None if rewind is None else int(rewind)
        key = record.key.decode()
        found.append((Sent(record.partition, txid, to, key, None), value))
    return [one._replace(value=value) for one, value in dict.fromkeys((a, json.dumps(b)) for a, b in found)]


def check_who_follows_is_told(
    services: Services, url: str, tmp_path: Path, unique: str, *, exactly_once: bool, step: str
) -> None:
    """Rewind a topology whose rows have left; the driver that comes next is killed at a step."""
    lake = tmp_path / unique
    launcher = Launcher(services, tmp_path, url, {"PYTHONPATH": TESTS}).without_spark
    for topic in (unique, f"{unique}-counts", f"{unique}-words"):
        create_topic(services.kafka, topic, PARTITIONS)
    words: list[tuple[str, int]] = []

    def run(*more: str) -> int:
        ended = launcher.run(
            *("run", "support.told_rewinds:topology", "-p", f"topic={unique}", "-p", f"lake={lake}"),
            *("-p", f"exactly_once={str(exactly_once).lower()}", "--until", "caught-up"),
            *("--session-timeout", "1", *more),
        )
        assert more or ended.status == 0, ended.stderr
        return ended.status

    def more(prefix: str) -> None:
        new = [(f"{prefix}{number % 5}", len(words) + number) for number in range(90)]
        words.extend(new)
        lines = [json.dumps({"word": word, "number": number}).encode() for word, number in new]
        produce(services.kafka, unique, lines, PARTITIONS)

    def read(query: str) -> list[tuple[Any, ...]]:
        engine = create_engine(url)
        with engine.connect() as connection:
            found = [tuple(row) for row in connection.execute(text(query))]
        engine.dispose()
        return found

    def counts() -> dict[str, int]:
        return dict(read(f"SELECT word, n FROM {unique}_counts"))

    def in_lake(version: int | None = None) -> list[tuple[str, int]]:
        rows = DeltaTable(lake, version=version).to_pyarrow_table().to_pylist()
        return sorted((row["word"], row["number"]) for row in rows)

    more("w")
    run()
    made = launcher.run("savepoint", "create", unique, "monday", "--json")
    assert made.status == 0, made.stderr
    monday, saved, saved_rows = made.json()["txid"], counts(), in_lake()
    assert (saved, saved_rows) == (Counter(word for word, _ in words), sorted(words))
    more("x")
    more("w")
    run()
    done = launcher.run("rewind", unique, "monday", "--yes")
    assert (done.status, counts()) == (0, saved), done.stderr
    ((rewind,),) = read(f"SELECT max(txid) FROM txstream_batch WHERE topology = '{unique}'")
    assert run("-p", f"dies={step}") == -signal.SIGKILL, f"not killed at {step}"
    run()
    assert counts() == Counter(word for word, _ in words)

    isolation = "read_committed" if exactly_once else "read_uncommitted"
    # The counts' topic: the header is in what the rewind sent and nowhere else; a fold of all is the table.
    table: dict[str, int] = {}
    changes = sorted(sent(consume(services, f"{unique}-counts", isolation)), key=lambda one: one.txid)
    as_of_rewind: dict[str, int] = {}
    for one in changes:
        assert one.rewind == (monday if one.txid == rewind else None)
        row = json.loads(one.value)
        table.pop(one.key, None)
        if row is not None:
            table[one.key] = row["n"]
        if one.txid <= rewind:
            as_of_rewind = dict(table)
    assert any(one.txid == rewind and one.value == "null" for one in changes), "no tombstone"
    assert (as_of_rewind, table) == (saved, counts())

    # The stream's topic: each partition says it in its turn, and what stands is each word once.
    records = consume(services, f"{unique}-words", isolation)
    stream = sent(records)
    marks = [one for one in stream if one.rewind is not None]
    assert sorted(marks) == [
        Sent(number, rewind, monday, "txstream-rewind", "null") for number in range(PARTITIONS)
    ]
    for number in range(PARTITIONS):
        txids = [one.txid for one in stream if one.partition == number]
        assert txids == sorted(txids)
    standing = [one for one in stream if one.rewind is None and not monday < one.txid < rewind]
    assert sorted((one.key, json.loads(one.value)) for one in standing) == sorted(words)
    told: list[Any] = []
    by = lambda record: (record.key, record.value)  # noqa: E731
    new = list(reading.once(iter(records), by=by, on_rewind=told.append))
    assert sorted(one.partition for one in told) == list(range(PARTITIONS))
    assert sorted(sent(new)) == sorted(one for one in stream if one.rewind is None)

    # The Delta table: as of the rewind it has what it had on Monday, and then each word once.
    for txid in (monday, rewind):
        assert in_lake(version_of(lake, unique, txid)) == saved_rows
    assert in_lake() == sorted(words)
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr
