"""A table that mirrors another database's, from change events as Debezium writes them, whose drivers are
killed by SIGKILL in every step. What must be there is the source's table: SQLite has carried out the same
statements. The mirror is read by plain SQL."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from kafka import KafkaProducer
from postgres import PostgresServer
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

PARTITIONS = 4
SEED = int(os.environ.get("TXSTREAM_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
PERSIST: list[tuple[str, list[str]]] = [("before-persist:1", []), ("after-persist:2", [])]
STEPS: list[tuple[str, list[str]]] = [
    ("before-commit:3", []),
    ("inside-commit:4", []),
    ("after-commit:5", []),
    ("before-advance:6", []),
    ("after-advance:7", []),
    ("inside-begin:8", BY_EXECUTORS),
    ("after-begin:9", BY_EXECUTORS),
    ("after-write:10", BY_EXECUTORS),
    ("before-write:11", BY_EXECUTORS),
]
"""Every point that a batch of one database passes."""
MODULE = """
from txstream import Decode, KafkaSource, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.examples.word_count import SPOUTS

COLUMNS = "id bigint, name string, unscaled(price) as price decimal(12,2), micros(made) as made timestamp_ntz"


def topology(topic: str, semantics: str, most: int, driver_commit_rows: int | None = None):
    source = KafkaSource(
        topic, decode=Decode("debezium", COLUMNS), kafka_columns=("topic", "partition", "offset"),
        max_records_per_partition=most,
    )
    builder = TransactionalTopologyBuilder(
        "mirror", "changes", SPOUTS[semantics](source), driver_commit_rows=driver_commit_rows
    )
    table = SqlTable(
        topic, "name string, price decimal(12,2), made timestamp_ntz, sequence bigint", key="id bigint",
        on_conflict="replace", removed_by="op = 'd'", sequence_by="sequence",
    )
    builder.set_bolt("store", SqlAppendBolt(table), parallelism=2).local_or_shuffle_grouping("changes")
    return builder.build()
"""
Row = tuple[int, str | None, int, int]
Change = tuple[str, Row | None, Row | None]


class Source:
    """A table that SQLite keeps, and the changes that its statements made."""

    def __init__(self, chance: random.Random, keys: int) -> None:
        self._chance, self._keys = chance, keys
        self.table = sqlite3.connect(":memory:")
        self.table.execute(
            "CREATE TABLE goods (id INTEGER PRIMARY KEY, name TEXT, price INTEGER, made INTEGER)"
        )
        self._there: set[int] = set()
        self._known: set[int] = set()
        self.seen: set[str] = set()

    def rows(self) -> dict[int, tuple[Any, ...]]:
        return {row[0]: row[1:] for row in self.table.execute("SELECT * FROM goods")}

    def changes(self, count: int) -> Iterator[Change]:
        """Yield the changes of `count` statements: one each, two where a key changes."""
        for number in range(count):
            key = self._chance.randrange(self._keys)
            if key not in self._there:
                is_read = number < self._keys // 4 and key not in self._known
                yield "r" if is_read else "c", None, self._insert(key, number)
            elif self._chance.random() < 0.3:
                yield "d", self._delete(key), None
            elif (
                self._chance.random() < 0.2
                and (other := self._chance.randrange(self._keys)) not in self._there
            ):
                before = self._row(key)
                self.table.execute("UPDATE goods SET id = ? WHERE id = ?", (other, key))
                self._there ^= {key, other}
                self._known.add(other)
                self.seen.add("key changed")
                yield "d", before, None
                yield "c", None, self._row(other)
            else:
                before = self._row(key)
                values = self._values(number)
                self.table.execute(
                    "UPDATE goods SET name = ?, price = ?, made = ? WHERE id = ?", (*values, key)
                )
                self.seen.add("updated")
                yield "u", before, self._row(key)

    def _values(self, number: int) -> tuple[str | None, int, int]:
        name = None if self._chance.random() < 0.1 else f"name {number}"
        return name, self._chance.randrange(-(10**11), 10**11), 1769860800000000 + number

    def _insert(self, key: int, number: int) -> Row:
        self.table.execute("INSERT INTO goods VALUES (?, ?, ?, ?)", (key, *self._values(number)))
        self._there.add(key)
        self._known.add(key)
        return self._row(key)

    def _delete(self, key: int) -> Row:
        before = self._row(key)
        self.table.execute("DELETE FROM goods WHERE id = ?", (key,))
        self._there.remove(key)
        self.seen.add("deleted")
        return before

    def _row(self, key: int) -> Row:
        found: Row = self.table.execute("SELECT * FROM goods WHERE id = ?", (key,)).fetchone()
        return found


def as_sent(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    key, name, price, made = row
    price_bytes = price.to_bytes(8, "big", signed=True)
    return {"id": key, "name": name, "price": base64.b64encode(price_bytes).decode(), "made": made}


def send(bootstrap: str, topic: str, source: Source, count: int) -> int:
    """Send the changes of `count` statements, each key to a partition of its own, a tombstone behind each
    deletion; now and then some are sent twice, as Connect does after a crash. Return how many changes."""
    create_topic(bootstrap, topic, PARTITIONS)
    chance = random.Random(topic)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=50)
    lately: list[tuple[int, bytes | None]] = []
    sent = 0
    for sent, (op, before, after) in enumerate(source.changes(count), 1):
        key = (before or after or (0,))[0]
        # What was open during a snapshot has places before the snapshot's.
        lsn = 1000 + (count if op == "r" else sent)
        about = {"connector": "postgresql", "ts_ms": 1769860800000 + sent, "lsn": lsn}
        event = {"before": as_sent(before), "after": as_sent(after), "source": about, "op": op}
        lately.append((key, json.dumps(event).encode()))
        if op == "d":
            lately.append((key, None))
        again = len(lately) >= 40
        for _ in range(1 + (again and chance.random() < 0.3)):
            for number, value in lately if again else lately[-2 if op == "d" else -1 :]:
                producer.send(topic, value, key=f"{number}".encode(), partition=number % PARTITIONS)
        if again:
            lately.clear()
    producer.flush()
    producer.close()
    return sent


@pytest.mark.timeout(1200)  # ten starts of Spark, and 50,000 changes
@pytest.mark.parametrize(
    ("semantics", "on_spark", "count"),
    [
        ("opaque", False, 3_000),
        pytest.param("opaque", True, 50_000, marks=pytest.mark.soak),
        pytest.param("transactional", False, 50_000, marks=pytest.mark.soak),
    ],
)
def test_a_mirror_of_a_table_whose_drivers_are_killed(
    launcher: Launcher,
    services: Services,
    postgres: PostgresServer,
    unique: str,
    semantics: str,
    on_spark: bool,
    count: int,
) -> None:
    print(f"TXSTREAM_KILL_SEED={SEED}")
    launcher = launcher if on_spark else launcher.without_spark
    url = postgres.create_database(unique)
    source = Source(random.Random(SEED), keys=count // 25)
    changes = send(services.kafka, unique, source, count)
    assert changes >= count
    assert source.seen == {"updated", "deleted", "key changed"}
    (launcher.directory / "mine.py").write_text(MODULE)

    def arguments(most: int) -> list[str]:
        given = {"topic": unique, "semantics": semantics, "most": most}
        options = [part for name, value in given.items() for part in ("-p", f"{name}={value}")]
        return [
            *("run", "mine:topology", "--id", unique, *options, "--until", "caught-up"),
            *("--session-timeout", "1"),
        ]

    for point, path in (PERSIST if semantics == "transactional" else []) + STEPS:
        killed = launcher.run(
            *arguments(count // 60), *path, TXSTREAM_DATABASE=url, TXSTREAM_FAULT=f"kill@{point}"
        )
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    ended = launcher.run(*arguments(count // 20), timeout_seconds=600, TXSTREAM_DATABASE=url)
    assert ended.status == 0, ended.stderr
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        found = connection.execute(
            f"SELECT id, name, price, (extract(epoch FROM made) * 1000000)::bigint FROM {unique}".encode()
        ).fetchall()
        remembered = connection.execute(f"SELECT count(*) FROM {unique}__rows".encode()).fetchone()
    expected = {key: (name, Decimal(price) / 100, made) for key, (name, price, made) in source.rows().items()}
    assert len(found) == len(expected) > 0
    assert {row[0]: row[1:] for row in found} == expected
    assert remembered is not None
    assert remembered[0] > len(expected)  # removed rows are remembered, and not shown
