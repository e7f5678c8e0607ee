"""Bad records of a real topic: each is in exactly one row of `txstream_dead_letter`, all others are counted,
also when the driver is killed in the attempt that isolates them."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.runs import Launcher
from support.tables import read_rows
from support.texts import create_topic, produce

from txstream.embedded import Services

RECORDS = 500
BAD_JSON = {17: b"{no json", 130: b"\xff\xfe", 401: b'{"user": "u1", "amount": "much"}'}
BAD_ORDERS = {60: -1, 299: -2}
MODULE = """
from txstream import *


class Check(BasicBolt):
    output = "user string, amount bigint"

    def execute(self, tup, collector):
        if tup["amount"] < 0:
            raise ValueError("an order of less than nothing")
        collector.emit((tup["user"], tup["amount"]))


def topology(name, semantics="opaque", letters="yes"):
    source = KafkaSource(name, value_format="json", schema="user string, amount bigint")
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics]
    wanted = DeadLetters(max_share=1.0) if letters == "yes" else None
    builder = TransactionalTopologyBuilder(name, "orders", spout(source), parallelism=2, dead_letters=wanted)
    builder.set_bolt("check", Check(), parallelism=2).shuffle_grouping("orders")
    state = SqlState(name, key="user string", value="n bigint, amount bigint")
    store = SqlStateBolt(state, n=Count(), amount=Sum("amount"))
    builder.set_committer_bolt("store", store).fields_grouping("check", "user")
    return builder.build()
"""
POINTS = ("before-commit:1", "inside-commit:1", "after-commit:1")


def orders() -> list[bytes]:
    """The values of the topic's records, in order."""
    values = []
    for number in range(RECORDS):
        amount = BAD_ORDERS.get(number, number)
        good = json.dumps({"user": f"u{number % 7}", "amount": amount}).encode()
        values.append(BAD_JSON.get(number, good))
    return values


def truth() -> dict[str, tuple[int, int]]:
    good = [number for number in range(RECORDS) if number not in {*BAD_JSON, *BAD_ORDERS}]
    times = Counter(f"u{number % 7}" for number in good)
    return {
        user: (count, sum(number for number in good if f"u{number % 7}" == user))
        for user, count in times.items()
    }


def arguments(name: str, semantics: str) -> list[str]:
    return [
        *("run", "letters_of_orders:topology", "-p", f"name={name}", "-p", f"semantics={semantics}"),
        *("--until", "caught-up", "--session-timeout", "5"),
    ]


def prepare(launcher: Launcher, name: str) -> None:
    (launcher.directory / "letters_of_orders.py").write_text(MODULE, encoding="utf-8")
    create_topic(launcher.services.kafka, name)
    produce(launcher.services.kafka, name, orders())


def check(launcher: Launcher, name: str) -> None:
    """Compare table and dead letters, read by plain SQL, with what was produced."""
    found = {row["user"]: (row["n"], row["amount"]) for row in read_rows(launcher.database, name)}
    assert found == truth()
    engine = sa.create_engine(launcher.database)
    with engine.connect() as connection:
        query = "SELECT * FROM txstream_dead_letter WHERE topology = :id"
        rows = connection.execute(sa.text(query), {"id": name}).mappings().all()
    engine.dispose()
    values = orders()
    bad = sorted((*BAD_JSON, *BAD_ORDERS))
    assert sorted(4 * row["offset"] + row["partition"] for row in rows) == bad
    for row in rows:
        number = 4 * row["offset"] + row["partition"]
        assert (bytes(row["value"]), row["topic"], row["status"]) == (values[number], name, "dead")
        assert row["timestamp"] > 0
        told = (row["component"], row["exception"])
        assert told == (("orders", "DecodeError") if number in BAD_JSON else ("check", "ValueError"))
        assert row["message"]
    ledger = json.loads(launcher.run("batches", name, "--json").stdout)
    assert sum(batch["tuples"] for batch in ledger) == RECORDS - len(bad)


def run_through(launcher: Launcher, name: str, semantics: str, points: Sequence[str]) -> None:
    prepare(launcher, name)
    for point in points:
        killed = launcher.run(*arguments(name, semantics), TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, killed.stderr
    ended = launcher.run(*arguments(name, semantics))
    assert ended.status == 0, ended.stderr
    check(launcher, name)
    assert launcher.run("fsck", name).status == 0


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_each_record_is_counted_or_dead_though_drivers_are_killed(
    launcher: Launcher, unique: str, semantics: str
) -> None:
    run_through(launcher.without_spark, unique, semantics, POINTS)


@pytest.mark.timeout(600)
def test_each_record_is_counted_or_dead_on_spark_with_postgresql(
    services: Services, launcher: Launcher, postgres_url: str, unique: str
) -> None:
    run_through(replace(launcher, database=postgres_url), unique, "transactional", POINTS[1:2])
