"""Rows that leave for a Delta table, through drivers that are killed at every step: each is there once, and
the table as of each txid is what the SQL table has of it. What must be there comes from the producer; what is
there is read by deltalake, psycopg and DuckDB or Spark, by nothing of ours."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import duckdb
import psutil
import psycopg
import pytest
from deltalake import DeltaTable
from kafka import KafkaProducer
from postgres import PostgresServer
from support.runs import Launcher
from support.texts import create_topic

from txstream import version_of
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import Services

PARTITIONS = 3
ORDERS = 1_500
MORE = 300
"""Five batches: a driver that dies at its fourth has that many, however far the one before has come."""
TESTS = str(Path(__file__).parents[1])
BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
read = SparkSession.builder.master("local[1]").getOrCreate().read.parquet(*sys.argv[1:])
print(json.dumps(sorted((row.customer, str(row.amount)) for row in read.collect())))
"""

Order = tuple[str, date, Decimal]
"""Customer, which no two orders have in common; day; amount."""


def produce(bootstrap: str, topic: str, count: int, first: int = 0) -> list[Order]:
    """Produce orders to a topic, which is new if the first of them is; return them."""
    if not first:
        create_topic(bootstrap, topic, PARTITIONS)
    chance = random.Random(7 + first)
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    orders = []
    for number in range(first, first + count):
        day, amount = date(2026, 11, 1) + timedelta(chance.randrange(3)), Decimal(chance.randrange(999)) / 4
        told = {"customer": f"c{number}", "day": day.isoformat(), "amount": str(amount)}
        producer.send(topic, json.dumps(told).encode(), partition=number % PARTITIONS)
        orders.append((f"c{number}", day, amount))
    producer.flush()
    producer.close()
    return sorted(orders)


def in_lake(lake: Path, version: int | None = None) -> list[Order]:
    found = DeltaTable(lake, version=version).to_pyarrow_table(columns=["customer", "day", "amount"])
    return sorted((row["customer"], row["day"], row["amount"]) for row in found.to_pylist())


def in_sql(postgres: PostgresServer, database: str) -> dict[int, list[Order]]:
    """Return the orders of each txid."""
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=database) as connection:
        rows = connection.execute(f"SELECT txid, customer, day, amount FROM {database}").fetchall()
    found: dict[int, list[Order]] = {}
    for txid, *order in rows:
        found.setdefault(txid, []).append((order[0], order[1], order[2]))
    return found


def require_once(lake: Path, committed: dict[int, list[Order]], expected: Sequence[Order]) -> None:
    """Require that each order is in both, once, and that they are the same as of each txid."""
    assert in_lake(lake) == expected
    assert len(committed) >= len(expected) // 60
    sofar: list[Order] = []
    for txid in sorted(committed):
        sofar += committed[txid]
        assert in_lake(lake, version_of(lake, lake.name, txid)) == sorted(sofar), f"as of txid {txid}"
    transactions = [
        action["txn"]["version"]
        for path in sorted((lake / "_delta_log").glob("*.json"))
        for action in map(json.loads, path.read_text().splitlines())
        if "txn" in action
    ]
    assert transactions == sorted(transactions)


def run_of(topic: str, lake: Path, *more: str) -> list[str]:
    return [
        *("run", "support.lake_kills:topology", "--id", topic, "-p", f"topic={topic}", "-p", f"lake={lake}"),
        *("--until", "caught-up", "--json", "--session-timeout", "1", *more),
    ]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_every_order_is_there_once_as_of_each_txid(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str
) -> None:
    expected: list[Order] = []
    database, lake = postgres.create_database(unique), tmp_path / unique
    launcher = Launcher(services, tmp_path, database, {"PYTHONPATH": TESTS}).without_spark
    arguments = run_of(unique, lake, "-p", f"semantics={semantics}")
    by_executors = ["-p", "driver_commit_rows=1"]
    for path, point in (([], "inside-commit:2"), ([], "after-commit:3"), (by_executors, "after-write:4")):
        expected += produce(services.kafka, unique, MORE, len(expected))
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    steps = ("before-writing:2", "written:3", "before-appending:2", "appended:3", "not-noted:1", "noted:1")
    for step in (*steps, "dropped:1"):
        expected += produce(services.kafka, unique, MORE, len(expected))
        killed = launcher.run(*arguments, "-p", f"dies={step}")
        assert killed.status == -signal.SIGKILL, f"not killed at {step}: {killed.stderr}"
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
    require_once(lake, in_sql(postgres, unique), sorted(expected))
    named = {Path(uri).resolve() for uri in DeltaTable(lake).file_uris()}
    assert {path.resolve() for path in lake.rglob("*.parquet")} == named, "files of undone attempts are left"
    status = json.loads(launcher.run("status", unique, "--json").stdout)
    assert status["behind"] == {f"{unique}_files": 0}
    checked = launcher.run("fsck", unique)
    assert checked.status == 0, checked.stdout + checked.stderr


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_driver_that_freezes_before_it_appends_comes_too_late(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    expected = produce(services.kafka, unique, ORDERS)
    database, lake = postgres.create_database(unique), tmp_path / unique
    launcher = Launcher(services, tmp_path, database, {"PYTHONPATH": TESTS}).without_spark
    frozen = launcher.start(*run_of(unique, lake, "-p", "dies=before-appending:4", "-p", "freezes=true"))
    process = psutil.Process(frozen.process.pid)
    assert wait_until(lambda: process.status() == psutil.STATUS_STOPPED, 60)
    version = DeltaTable(lake).version()
    successor = launcher.run(*run_of(unique, lake))
    assert successor.status == 0, successor.stderr
    before = DeltaTable(lake).version()
    assert before > version
    process.send_signal(signal.SIGCONT)
    woken = frozen.wait()
    assert woken.status != 0
    assert DeltaTable(lake).version() == before, "it appended when it was woken"
    require_once(lake, in_sql(postgres, unique), expected)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_spark_and_duckdb_read_what_spark_has_written(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    """Drivers on Spark are killed, then workers that write files. DuckDB then reads the table as of each txid
    and Spark's own reader as of some, in the lines that the guide has."""
    expected = produce(services.kafka, unique, 480)
    database, lake = postgres.create_database(unique), tmp_path / unique
    launcher = Launcher(services, tmp_path, database, {"PYTHONPATH": TESTS})
    killed = launcher.run(*run_of(unique, lake), timeout_seconds=400, TXSTREAM_FAULT="kill@after-commit:2")
    assert killed.status == -signal.SIGKILL, killed.stderr
    killed = launcher.run(
        *run_of(unique, lake, "-p", "dies=appended:3", "-p", "driver_commit_rows=1"), timeout_seconds=400
    )
    assert killed.status == -signal.SIGKILL, killed.stderr
    died = tmp_path / "died"
    died.mkdir()
    outcome = launcher.run(*run_of(unique, lake, "-p", f"workers_died={died}"), timeout_seconds=400)
    assert outcome.status == 0, outcome.stderr
    assert {path.name for path in died.iterdir()} == {"in-a-file", "behind-its-files"}
    committed = in_sql(postgres, unique)
    require_once(lake, committed, expected)
    named = {Path(uri).resolve() for uri in DeltaTable(lake).file_uris()}
    there = {
        path.resolve() for folder in lake.glob("txstream-*") for path in folder.rglob("*") if path.is_file()
    }
    assert there == named, "files of undone attempts are left"
    txids = sorted(committed)
    for last in txids:
        sofar = sorted(order for txid in txids if txid <= last for order in committed[txid])
        table = DeltaTable(lake, version=version_of(lake, unique, last))
        orders = table.to_pyarrow_dataset()
        assert orders  # the name is DuckDB's, too
        asked = duckdb.sql("SELECT customer, day, amount FROM orders ORDER BY customer")
        assert asked is not None
        assert asked.fetchall() == sofar, f"as of txid {last}"
        if last in (txids[2], txids[len(txids) // 2], txids[-1]):
            read = subprocess.run([sys.executable, "-c", BY_SPARK, *table.file_uris()], capture_output=True)
            assert read.returncode == 0, read.stderr
            assert json.loads(read.stdout) == [[customer, str(amount)] for customer, _, amount in sofar]
