"""Windows in a real server, from a real topic: drivers are killed by SIGKILL on both commit paths while
windows close. What must be there comes from what the test produced, and from the metas in the ledger."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from kafka import KafkaProducer
from postgres import PostgresServer
from support.runs import Launcher
from support.texts import create_topic
from support.window_oracle import expected

from txstream.plugins.local.embedded import Services

PARTITIONS = 3
CLICKS = 600
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START = datetime(2026, 1, 31, tzinfo=UTC)
HOUR = 3_600_000_000
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
POINTS: Sequence[tuple[Sequence[str], str]] = (
    ([], "inside-commit:3"),
    ([], "after-commit:5"),
    (BY_EXECUTORS, "after-begin:7"),
    (BY_EXECUTORS, "after-write:8"),
    ([], "before-advance:9"),
    (BY_EXECUTORS, "inside-commit:11"),
)


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def produce(bootstrap: str, topic: str, chance: random.Random) -> dict[str, list[tuple[int, str]]]:
    """Produce clicks of two days, each partition at a pace of its own. Most are minutes out of order, a few
    are a day late, and one is from the year 2099."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=20)
    sent: dict[str, list[tuple[int, str]]] = {f"{topic}/{number}": [] for number in range(PARTITIONS)}
    for number in range(CLICKS):
        partition = number % PARTITIONS
        minutes = number * (4 + partition) - chance.choice([0] * 6 + [3, 9, 1500])
        at = START + timedelta(minutes=minutes, seconds=chance.randrange(60))
        if number == CLICKS // 3:
            at = datetime(2099, 1, 1, tzinfo=UTC)
        page = chance.choice("abc")
        producer.send(topic, json.dumps({"page": page, "at": at.isoformat()}).encode(), partition=partition)
        sent[f"{topic}/{partition}"].append((micros(at), page))
    producer.flush()
    producer.close()
    return sent


def hour(time: int) -> list[tuple[int, int]]:
    return [(time // HOUR * HOUR, time // HOUR * HOUR + HOUR)]


@pytest.mark.parametrize(
    ("semantics", "late"),
    [
        ("opaque", "dead-letter"),
        pytest.param("transactional", "amend", marks=pytest.mark.soak),
        pytest.param("opaque", "amend", marks=pytest.mark.soak),
        pytest.param("transactional", "dead-letter", marks=pytest.mark.soak),
    ],
)
def test_killed_drivers_close_the_windows_that_records_and_metas_say(
    services: Services, postgres: PostgresServer, tmp_path: Path, unique: str, semantics: str, late: str
) -> None:
    create_topic(services.kafka, unique, PARTITIONS)
    launcher = Launcher(services, tmp_path, postgres.create_database(unique)).without_spark
    records = produce(services.kafka, unique, random.Random(3))
    arguments = [
        *("run", "txstream.examples.windows:topology", "--id", unique, "-p", f"topic={unique}"),
        *("-p", f"semantics={semantics}", "-p", f"late={late}", "-p", "max_records_per_partition=15"),
        *("--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    for path, point in POINTS:
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=unique) as connection:
        rows: list[Any] = connection.execute(
            "SELECT page, window_start, window_end, n, closed FROM clicks_by_hour"
        ).fetchall()
        ledger: dict[int, Any] = dict(connection.execute("SELECT txid, metas FROM txstream_batch").fetchall())
        places = connection.execute("SELECT place FROM txstream_dead_letter").fetchall()
    metas = {txid: one if isinstance(one, dict) else json.loads(one) for txid, one in ledger.items()}
    wanted = expected(records, metas, hour, HOUR // 6, amend=late == "amend", table="clicks_by_hour")
    assert {(page, micros(start)): (n, closed) for page, start, _, n, closed in rows} == wanted.rows
    assert all(end - start == timedelta(hours=1) for _, start, end, _, _ in rows)
    assert {(place.rpartition("@")[0], int(place.rpartition("@")[2])) for (place,) in places} == wanted.late
    assert len(wanted.closed_in) > 50
    assert bool(wanted.late) == (late == "dead-letter")
    assert len({*wanted.closed_in.values()}) > 5
