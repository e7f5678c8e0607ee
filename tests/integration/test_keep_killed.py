"""Tables with `keep` in a real server: drivers are killed by SIGKILL on both commit paths while rows expire.
Whatever an older or a longer `keep` says, what has expired never comes back, and each record for it is one
dead letter. What must be there comes from what the test produced, kafka-python's offsets and plain SQL."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kafka import KafkaProducer
from postgres import PostgresServer
from sqlalchemy import event, text
from support.runs import Launcher
from support.texts import create_topic

from txstream.api.reducers import Put
from txstream.api.state import SqlTable
from txstream.core.semantics import Semantics
from txstream.plugins.local.embedded import Services
from txstream.state.records import TableSpec
from txstream.state.sql.append_writer import AppendWriter
from txstream.state.sql.urls import dialect_of

PARTITIONS = 3
ORDERS = 300
AGES = (1, 10, 80, 200)  # days
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
KEEPS: Sequence[tuple[str, tuple[int, ...], Sequence[tuple[Sequence[str], str]]]] = (
    # How long rows are kept, the ages that this leaves, and where drivers are killed meanwhile.
    ("90d", (1, 10, 80), [([], "inside-commit:2"), ([], "after-commit:3")]),
    (
        "70d",
        (1, 10),
        [([], "inside-commit:8"), (BY_EXECUTORS, "after-begin:9"), (BY_EXECUTORS, "after-write:10")],
    ),
    # A longer time brings back nothing, and begins nothing anew.
    ("90d", (1, 10), [([], "before-advance:15")]),
)

Order = tuple[int, int, int, str, date]
"""Partition, offset, age, customer and day."""


def produce(bootstrap: str, topic: str, chance: random.Random) -> list[Order]:
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    sent = []
    for number in range(ORDERS):
        age, customer = chance.choice(AGES), f"c{chance.randrange(5)}"
        # Noon, so that no age is near the end of its day.
        at = (datetime.now(UTC) - timedelta(days=age)).replace(hour=12, minute=0, second=0, microsecond=0)
        order = {"customer": customer, "at": at.isoformat(), "day": at.date().isoformat()}
        future = producer.send(topic, json.dumps(order).encode(), partition=number % PARTITIONS)
        sent.append((future, age, customer, at.date()))
    producer.flush()
    producer.close()
    places = [(future.get(10), *rest) for future, *rest in sent]
    return [(place.partition, place.offset, *rest) for place, *rest in places]


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_what_has_expired_stays_away(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    create_topic(services.kafka, unique, PARTITIONS)
    launcher = Launcher(services, tmp_path, postgres.create_database(unique)).without_spark
    chance = random.Random(7)
    produced: list[Order] = []
    late: list[Order] = []
    for keep, ages, points in KEEPS:
        batch = produce(services.kafka, unique, chance)
        produced += batch
        late += [order for order in batch if order[2] not in ages]
        arguments = [
            *("run", "support.kept_orders:topology", "--id", unique, "-p", f"topic={unique}"),
            *("-p", f"keep={keep}", "-p", f"semantics={semantics}"),
            *("--until", "caught-up", "--json", "--session-timeout", "1"),
        ]
        for path, point in points:
            killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
            assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
        outcome = launcher.run(*arguments)
        assert outcome.status == 0, outcome.stderr
        require(postgres, unique, produced, late, ages)


@pytest.mark.soak
def test_late_records_on_spark(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    create_topic(services.kafka, unique, PARTITIONS)
    produced = produce(services.kafka, unique, random.Random(8))
    launcher = Launcher(services, tmp_path, postgres.create_database(unique))
    outcome = launcher.run(
        *("run", "support.kept_orders:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", "keep=70d", "-p", "max_records_per_partition=1000", "--until", "caught-up", "--json"),
        timeout_seconds=240,
    )
    assert outcome.status == 0, outcome.stderr
    late = [order for order in produced if order[2] > 70]
    require(postgres, unique, produced, late, (1, 10))
    assert outcome.json()["failed_attempts"] == 1


def require(
    postgres: PostgresServer,
    unique: str,
    produced: Sequence[Order],
    late: Sequence[Order],
    ages: Sequence[int],
) -> None:
    """Require that tables and dead letters hold what they must: each order is in one of them, or has
    expired."""
    there = [order for order in produced if order not in late and order[2] in ages]
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        rows = connection.execute(f'SELECT partition, "offset", customer FROM {unique}').fetchall()
        days = connection.execute(f"SELECT customer, day, n FROM {unique}_days").fetchall()
        dead = connection.execute(
            'SELECT partition, "offset", component, exception FROM txstream_dead_letter'
        ).fetchall()
    assert sorted(rows) == sorted((p, at, customer) for p, at, _, customer, _ in there)
    counted = Counter((customer, day) for _, _, _, customer, day in there)
    assert sorted(days) == sorted((*key, n) for key, n in counted.items())
    assert sorted(row[:2] for row in dead) == sorted(order[:2] for order in late)
    assert {row[3] for row in dead} == {"LateRecordError"}


def test_old_rows_are_found_by_the_index(postgres: PostgresServer, unique: str) -> None:
    """Also where the planner takes many rows for old: otherwise each commit would read the whole table."""
    dialect = dialect_of(postgres.create_database(unique), 10.0, 300.0)
    table = SqlTable("orders", "at timestamp", keep="90d")
    writer = AppendWriter(TableSpec(table, Semantics.OPAQUE, {"at": Put()}), dialect)
    horizon = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    engine = dialect.create_engine()
    statements: list[tuple[str, Any]] = []
    event.listen(engine, "before_cursor_execute", lambda *seen: statements.append(seen[2:4]))
    with engine.begin() as connection:
        writer._table.create(connection)
        connection.execute(
            text(
                "INSERT INTO orders "
                "SELECT 't', 0, i, timestamptz '2026-01-01Z' + (i - 15000) * interval '1 s', 1 "
                "FROM generate_series(0, 29999) i"
            )
        )
        connection.execute(text("ANALYZE orders"))
        statements.clear()
        writer.remove_expired(connection, horizon, 10_000, lambda: None)
        left = connection.execute(text('SELECT count(*), min("offset") FROM orders')).one()
        assert tuple(left) == (20_000, 10_000)
        statement, parameters = statements[0]
        plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars().all()
    engine.dispose()
    assert any("Index Scan using ix_orders_at" in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan
