"""Rows as they are, written into PostgreSQL by the executors of a cluster with two workers. An executor and
then the driver are killed by SIGKILL. What must be there comes from kafka-python's consumer and plain SQL."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg
import pytest
from postgres import PostgresServer
from support.appended import ORDERS, fill, produced
from support.kafka_topics import wait_until
from support.runs import Launcher
from support.spark_standalone import SparkStandalone

from txstream.plugins.local.embedded import Services

MODULE = """
from txstream import Decode, KafkaSource, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.examples.word_count import SPOUTS


def topology(topic: str, semantics: str):
    fields = "customer string, amount decimal(12,2)"
    source = KafkaSource(
        topic,
        decode=Decode("json", fields),
        kafka_columns=("topic", "partition", "offset"),
        max_records_per_partition=30,
    )
    spout = SPOUTS[semantics](source)
    builder = TransactionalTopologyBuilder("orders", "orders", spout, parallelism=2, commit="executors")
    store = builder.set_bolt("store", SqlAppendBolt(SqlTable(topic, fields)), parallelism=2)
    store.local_or_shuffle_grouping("orders")
    return builder.build()
"""
_ROWS = 'SELECT topic, partition, "offset", customer, amount::text FROM {} ORDER BY 1, 2, 3'


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_executors_append_each_record_once(
    launcher: Launcher,
    services: Services,
    cluster: SparkStandalone,
    postgres: PostgresServer,
    unique: str,
    semantics: str,
) -> None:
    url = postgres.create_database(unique)
    fill(services.kafka, unique)
    (launcher.directory / "mine.py").write_text(MODULE)
    arguments = [
        *("run", "mine:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"semantics={semantics}"),
        *("--master", cluster.url, "--spark-conf", "spark.executor.memory=512m"),
        *("--spark-conf", "spark.executor.cores=1", "--session-timeout", "2", "--until", "caught-up"),
    ]
    variables = {"TXSTREAM_DATABASE": url}

    def found(statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
            return connection.execute(statement.encode()).fetchall()

    def rows() -> list[tuple[Any, ...]]:
        is_there = found(f"SELECT to_regclass('{unique}') IS NOT NULL") == [(True,)]
        return found(_ROWS.format(unique)) if is_there else []

    command = launcher.start(*arguments, **variables, TXSTREAM_FAULT="kill@after-write:11")
    try:
        wait_until(rows, "rows are there", 120)
        wait_until(lambda: len(cluster.executor_pids()) == 2, "an executor on each worker", 60)
        os.kill(cluster.executor_pids(1)[0], signal.SIGKILL)
        killed = command.wait(180)
    finally:
        command.kill()
    assert killed.status == -signal.SIGKILL, killed.stderr
    assert 0 < len(rows()) < ORDERS
    ended = launcher.run(*arguments, **variables, timeout_seconds=180)
    assert ended.status == 0, ended.stderr
    assert rows() == produced(services.kafka, unique)
    paths = found("SELECT details::json->>'path' FROM txstream_batch")
    assert paths.count(("executors",)) > len(paths) // 2
