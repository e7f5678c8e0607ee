"""`txstream compare` of rows as they are, over a real topic and through all faults. The oracle is
kafka-python's consumer and plain SQL over the tables of the runs."""

from __future__ import annotations

import contextlib
import json
import random
import re
import sqlite3
from typing import Any

import pytest
from kafka import KafkaProducer
from support.appended import ORDERS, fill, produced
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

ROWS = "orders (rows)"


def stored(launcher: Launcher, semantics: str) -> list[tuple[Any, ...]]:
    """Return the rows of a run, sorted by their places; its table was kept."""
    with contextlib.closing(sqlite3.connect(launcher.database.removeprefix("sqlite:///"))) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        (table,) = [name for (name,) in names if re.fullmatch(f"compare_[0-9a-f]+_{semantics}_orders", name)]
        columns = 'topic, "partition", "offset", customer, amount'
        return database.execute(f'SELECT {columns} FROM "{table}" ORDER BY 1, 2, 3').fetchall()


@pytest.mark.soak
def test_rows_are_told_as_rows(launcher: Launcher, services: Services, unique: str) -> None:
    fill(services.kafka, unique)
    words = ["compare", "txstream.examples.orders:topology", "--topic", unique, "--records", str(ORDERS)]
    done = launcher.run(*words, "--keep", "--json")
    assert done.status == 0, done.stderr
    found = done.json()
    assert found["truth"] == "kafka-python's consumer and a plain fold of its records"
    assert found["true_totals"] == {ROWS: ORDERS}
    truth = [
        (*place, amount and f"{float(amount):.2f}") for *place, amount in produced(services.kafka, unique)
    ]
    runs = found["semantics"]
    for semantics in ("opaque", "transactional"):
        assert runs[semantics]["exact"], done.stderr
        assert runs[semantics]["faults_that_never_came"] == []
        assert runs[semantics]["columns"][ROWS] == {
            "total": ORDERS, "lost": 0, "doubled": 0, "wrong_rows": 0
        }  # fmt: skip
        there = [
            (*place, amount and f"{float(amount):.2f}") for *place, amount in stored(launcher, semantics)
        ]
        assert there == truth
    neither, rows = runs["non-transactional"], stored(launcher, "non_transactional")
    twice = len(rows) - len(set(rows))
    assert twice > 0, "the batch that was committed when its driver died came twice"
    assert not neither["exact"]
    assert neither["columns"][ROWS] == {
        "total": ORDERS + twice, "lost": 0, "doubled": twice, "wrong_rows": twice
    }  # fmt: skip
    assert neither["columns"]["orders.amount"] == {"wrong_rows": 0}
    assert (runs["opaque"]["moved_tuples"] > 0, runs["transactional"]["moved_tuples"]) == (True, 0)

    # One row for each customer, whose orders are in several partitions: that depends on how batches are cut.
    done = launcher.run(*words, "-p", "latest=true")
    assert done.status == 2
    assert "have no truth in common" in done.stderr


MIRROR = """
from txstream import Decode, KafkaSource, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.examples.word_count import SPOUTS


def topology(
    topic: str, table: str = "users", semantics: str = "opaque", max_records_per_partition: int = 100
):
    source = KafkaSource(
        topic, decode=Decode("json", "id bigint, name string, version bigint, op string"),
        kafka_columns=("topic", "partition", "offset"), max_records_per_partition=max_records_per_partition,
    )
    builder = TransactionalTopologyBuilder("users", "changes", SPOUTS[semantics](source))
    users = SqlTable(
        table, "name string, version bigint", key="id bigint", on_conflict="replace",
        removed_by="op = 'd'", sequence_by="version",
    )
    builder.set_bolt("store", SqlAppendBolt(users)).local_or_shuffle_grouping("changes")
    return builder.build()
"""


@pytest.mark.soak
def test_rows_that_go(launcher: Launcher, services: Services, unique: str) -> None:
    """Each key's changes are in any partition, so that only its sequence tells what is there in the end."""
    (launcher.directory / "mirror.py").write_text(MIRROR)
    create_topic(services.kafka, unique, 3)
    chance, last = random.Random(unique), dict[int, tuple[str, str]]()
    producer = KafkaProducer(bootstrap_servers=services.kafka, acks="all", linger_ms=20)
    for version in range(ORDERS):
        key, op = chance.randrange(60), chance.choice("cud")
        last[key] = op, f"name {version}"
        change = {"id": key, "name": f"name {version}", "version": version, "op": op}
        producer.send(unique, json.dumps(change).encode(), partition=chance.randrange(3))
    producer.flush()
    producer.close()
    there = {key: name for key, (op, name) in last.items() if op != "d"}
    done = launcher.run(
        "compare", "mirror:topology", "--topic", unique, "--records", str(ORDERS), "--keep", "--json"
    )
    assert done.status == 0, done.stderr
    found = done.json()
    assert found["truth"] == "kafka-python's consumer and a plain fold of its records"
    assert found["true_totals"] == {"users (rows)": len(there)}
    with contextlib.closing(sqlite3.connect(launcher.database.removeprefix("sqlite:///"))) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'view'")]
        for semantics in ("opaque", "transactional"):
            run = found["semantics"][semantics]
            assert run["exact"], done.stderr
            assert run["faults_that_never_came"] == []
            (view,) = [name for name in names if re.fullmatch(f"compare_[0-9a-f]+_{semantics}_users", name)]
            assert dict(database.execute(f'SELECT id, name FROM "{view}"')) == there
