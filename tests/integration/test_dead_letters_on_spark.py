"""Bad records of a real topic: each is in exactly one row of `txstream_dead_letter`, all others are counted,
also when the driver is killed in the attempt that leaves them out. That is the first one, unless the bolt
keeps something of each tuple (`KEEPS`): then it is one that searches."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from kafka import KafkaConsumer
from support.on_spark import DiesOn, FailsOn
from support.runs import Launcher
from support.tables import read_rows
from support.texts import create_topic, produce

import txstream
from txstream import Count, DeadLetters, Decode, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt, Topology
from txstream.api.bolts import BasicBolt, DataFrameBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.plugins.local.embedded import Services

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 500
BAD_JSON = {17: b"{no json", 130: b"\xff\xfe", 401: b'{"user": "u1", "amount": "much"}'}
BAD_ORDERS = {60: -1, 299: -2}
MODULE = """
import itertools
import os
import signal
import sys

from txstream import *
from txstream.engine.letters.isolation import _Search
from txstream.engine.letters.retries import Retries
from txstream.engine.letters.rows import LetterReader
from txstream.zookeeper import ProgressStore

KILL_AT = os.environ.get("KILL_AT", "").split("/")


def is_killed_at(owner, name):
    real, calls = getattr(owner, name), itertools.count(1)

    def step(*given, **options):
        call = next(calls)
        try:
            if KILL_AT == ["before", name, str(call)]:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*given, **options)
        finally:
            if KILL_AT == ["after", name, str(call)]:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, step)


def told(reader, attempt, metas, real=LetterReader._read):
    print("read again:", *sorted({one.component for one in metas.excluded}), file=sys.stderr, flush=True)
    return real(reader, attempt, metas)


LetterReader._read = told
for owner, name in (
    (_Search, "found_in"),
    (_Search, "_processed"),
    (ProgressStore, "amend"),
    (ProgressStore, "answer_request"),
    (Retries, "loaded"),
):
    if name in KILL_AT:
        is_killed_at(owner, name)


class Check(BasicBolt):
    output = "user string, amount bigint"
    tuples = 0

    def execute(self, tup, collector):
        if os.environ.get("KEEPS"):
            self.tuples += 1
        if tup["amount"] < 0 and not os.environ.get("REPAIRED"):
            raise ValueError("an order of less than nothing")
        collector.emit((tup["user"], tup["amount"]))


def topology(name, semantics="opaque", letters="yes", topic=""):
    source = KafkaSource(name, decode=Decode("json", "user string, amount bigint"))
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics]
    wanted = DeadLetters(max_share=1.0, topic=topic or None) if letters == "yes" else None
    builder = TransactionalTopologyBuilder(name, "orders", spout(source), parallelism=2, dead_letters=wanted)
    builder.set_bolt("check", Check(), parallelism=2).shuffle_grouping("orders")
    state = SqlState(name, key="user string", value="n bigint, amount bigint")
    store = SqlStateBolt(state, n=Count(), amount=Sum("amount"))
    builder.set_committer_bolt("store", store).fields_grouping("check", "user")
    return builder.build()
"""


def orders() -> list[bytes]:
    """The values of the topic's records, in order."""
    values = []
    for number in range(RECORDS):
        amount = BAD_ORDERS.get(number, number)
        good = json.dumps({"user": f"u{number % 7}", "amount": amount}).encode()
        values.append(BAD_JSON.get(number, good))
    return values


def truth(*, is_repaired: bool = False) -> dict[str, tuple[int, int]]:
    amounts = {number: number for number in range(RECORDS)} | BAD_ORDERS
    bad = BAD_JSON if is_repaired else {*BAD_JSON, *BAD_ORDERS}
    good = [number for number in range(RECORDS) if number not in bad]
    times = Counter(f"u{number % 7}" for number in good)
    return {
        user: (count, sum(amounts[number] for number in good if f"u{number % 7}" == user))
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
    rows = rows_of(launcher, name)
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


def rows_of(launcher: Launcher, name: str) -> Sequence[Mapping[str, Any]]:
    engine = sa.create_engine(launcher.database)
    with engine.connect() as connection:
        query = "SELECT * FROM txstream_dead_letter WHERE topology = :id"
        rows: Sequence[Any] = connection.execute(sa.text(query), {"id": name}).mappings().all()
    engine.dispose()
    return rows


def run_through(launcher: Launcher, name: str, semantics: str, points: Sequence[str]) -> None:
    """Kill the driver at these points of the first batch, then run to the end: no attempt fails by itself.
    The first driver reads no record again: they came with the answer."""
    prepare(launcher, name)
    told = [killed(launcher, arguments(name, semantics), point, 1) for point in points]
    assert "read again" not in told[0]
    ended = launcher.run(*arguments(name, semantics))
    assert ended.status == 0, ended.stderr
    assert "failed and will be replayed" not in ended.stderr
    check(launcher, name)
    assert launcher.run("fsck", name).status == 0


SEARCH = [
    *("before/found_in/1", "after/found_in/1", "before/found_in/2", "after/found_in/2"),
    *("before/_processed/1", "after/_processed/1"),
]
"""Around the search by workers, the second look at what they found, and the batch without that."""
AMENDED = ["before/amend/1", "after/amend/1"]
COMMIT = ["before-commit", "inside-commit", "after-commit"]
RETRY = [
    *("before/loaded/1", "after/loaded/1"),
    # The batch as a whole, each of its records alone, and those that pass.
    *("before/_processed/1", "after/_processed/1", "before/_processed/4", "after/_processed/6"),
    "after/_processed/7",
]


def killed(launcher: Launcher, command: list[str], at: str, txid: int, **more: str) -> str:
    how = {"KILL_AT": at} if "/" in at else {"TXSTREAM_FAULT": f"kill@{at}:{txid}"}
    ended = launcher.start(*command, **how, **more).wait()
    assert ended.status == -signal.SIGKILL, (at, ended.stdout, ended.stderr)
    return ended.stderr


def kill_in_every_step(
    launcher: Launcher,
    name: str,
    semantics: str,
    search: Sequence[str],
    commit: Sequence[str],
    retry: Sequence[str],
) -> None:
    """Kill the driver in each step of the attempt that isolates, then in each of a retry by repaired code."""
    prepare(launcher, name)
    command = [*arguments(name, semantics)[:-1], "5" if launcher.on_spark else "1"]
    for at in (*search, *commit):
        killed(launcher, command, at, 1, KEEPS="yes")
    ended = launcher.run(*command, KEEPS="yes")
    assert ended.status == 0, ended.stderr
    check(launcher, name)
    for at in (*retry, *commit):
        ask(launcher, name)
        killed(launcher, command, at, 2, REPAIRED="yes")
    ask(launcher, name)
    ended = launcher.run(*command, REPAIRED="yes")
    assert ended.status == 0, ended.stderr
    found = {row["user"]: (row["n"], row["amount"]) for row in read_rows(launcher.database, name)}
    assert found == truth(is_repaired=True)
    status = {4 * row["offset"] + row["partition"]: row["status"] for row in rows_of(launcher, name)}
    assert status == {**dict.fromkeys(BAD_JSON, "dead"), **dict.fromkeys(BAD_ORDERS, "retried in txid 2")}
    assert launcher.run("fsck", name).status == 0


def ask(launcher: Launcher, name: str) -> None:
    asked = launcher.run("dead-letters", "retry", name, "--later")
    assert asked.status == 0, asked.stderr


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_driver_is_killed_in_every_step_of_an_isolating_attempt_and_of_a_retry(
    launcher: Launcher, unique: str, semantics: str, database: str, request: pytest.FixtureRequest
) -> None:
    launcher = launcher.without_spark
    if database == "postgresql":
        launcher = replace(launcher, database=request.getfixturevalue("postgres_url"))
    search = [*SEARCH, *AMENDED] if semantics == "transactional" else SEARCH
    kill_in_every_step(launcher, unique, semantics, search, COMMIT, RETRY)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_driver_is_killed_in_an_isolating_attempt_and_in_a_retry_on_spark_with_postgresql(
    launcher: Launcher, postgres_url: str, unique: str
) -> None:
    launcher = replace(launcher, database=postgres_url)
    search, retry = ["after/found_in/1", "after/amend/1"], ["before/_processed/4"]
    kill_in_every_step(launcher, unique, "transactional", search, ["inside-commit"], retry)


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_each_record_is_counted_or_dead_though_drivers_are_killed(
    launcher: Launcher, unique: str, semantics: str
) -> None:
    amended = AMENDED if semantics == "transactional" else []
    run_through(launcher.without_spark, unique, semantics, [*amended, *COMMIT])


@pytest.mark.soak
def test_dead_letters_are_sent_to_a_topic_too(launcher: Launcher, unique: str) -> None:
    """There is no such topic at first, which is as good as no broker: the next run sends them."""
    launcher, topic = launcher.without_spark, f"{unique}-dead"
    prepare(launcher, unique)
    asked = [*arguments(unique, "opaque"), "-p", f"topic={topic}"]
    first = launcher.run(*asked)
    assert (first.status, "dead letters wait" in first.stderr) == (0, True), first.stderr
    assert "5 records left out as dead letters" in first.stdout
    create_topic(launcher.services.kafka, topic)
    ended = launcher.run(*asked)
    assert ended.status == 0, ended.stderr
    check(launcher, unique)
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=launcher.services.kafka,
        auto_offset_reset="earliest",
        consumer_timeout_ms=5000,
    )
    found = list(consumer)
    consumer.close()
    values = orders()
    by_partition: dict[int, list[int]] = {}
    for record in found:
        told = {name.removeprefix("__streams.errors."): value.decode() for name, value in record.headers}
        assert told["topic"] == unique
        number = 4 * int(told["offset"]) + int(told["partition"])
        assert record.value == values[number]
        assert told["exception"] == ("DecodeError" if number in BAD_JSON else "ValueError")
        assert told["message"]
        assert "stacktrace" in told
        by_partition.setdefault(record.partition, []).append(number)
    found_numbers = [number for numbers in by_partition.values() for number in numbers]
    assert sorted(found_numbers) == sorted((*BAD_JSON, *BAD_ORDERS))
    assert all(numbers == sorted(numbers) for numbers in by_partition.values())


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("semantics", "points"),
    [
        ("transactional", ["after/amend/1", "inside-commit"]),
        pytest.param("opaque", ["before-commit", "inside-commit"], marks=pytest.mark.soak),
    ],
)
def test_each_record_is_counted_or_dead_on_spark_with_postgresql(
    services: Services, launcher: Launcher, postgres_url: str, unique: str, semantics: str, points: list[str]
) -> None:
    run_through(replace(launcher, database=postgres_url), unique, semantics, points)


def words_of(name: str, behind_exchange: BasicBolt | DataFrameBolt, limits: DeadLetters) -> Topology:
    """Without tasks that stay, since each of them is one more of the Spark jobs that a test counts."""
    spout = OpaqueSpout(KafkaSource(name, decode=Decode("json", "word string")), max_batch_records=50_000)
    builder = TransactionalTopologyBuilder(
        name, "words", spout, parallelism=2, dead_letters=limits, resident_tasks=0
    )
    bolt = builder.set_bolt("same", behind_exchange, parallelism=2)
    if isinstance(behind_exchange, DataFrameBolt):
        bolt.shuffle_grouping("words")
    else:
        bolt.fields_grouping("words", "word")
    store = SqlStateBolt(SqlState(name, key="word string", value="n bigint"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("same", "word")
    return builder.build()


def run_on(spark: SparkSession, services: Services, url: str, topology: Topology) -> tuple[int, int, int]:
    """Run a topology through its topic. Return how many batches, failed attempts and Spark jobs it took."""
    settings = txstream.Settings(zookeeper=services.zookeeper, kafka=services.kafka, database=url)
    scheduler = spark.sparkContext._jsc.sc().dagScheduler()
    before = scheduler.numTotalJobs()
    report = txstream.run(topology, spark, settings)
    return report.batches, report.failed_attempts, scheduler.numTotalJobs() - before


def dead_in(url: str, name: str) -> list[tuple[str, str, str]]:
    """Return place, component and exception of each dead letter, read by plain SQL."""
    engine = sa.create_engine(url)
    query = "SELECT place, component, exception FROM txstream_dead_letter WHERE topology = :id ORDER BY place"
    with engine.connect() as connection:
        rows = [(place, who, what) for place, who, what in connection.execute(sa.text(query), {"id": name})]
    engine.dispose()
    return rows


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("behind_exchange", "expected"),
    [
        (FailsOn("odd"), (1, 0, 1)),
        # The first attempt, the search, a second look at what it found, and the batch without that.
        (FailsOn("odd", keeps=True), (1, 1, 4)),
    ],
)
def test_bad_records_among_many_cost_no_job_or_one_further_attempt_of_three(
    spark: SparkSession,
    services: Services,
    sqlite_url: str,
    unique: str,
    behind_exchange: BasicBolt,
    expected: tuple[int, int, int],
) -> None:
    values = [json.dumps({"word": f"w{number % 50}"}).encode() for number in range(50_000)]
    values[20_001], values[49_999], values[30_002] = b"{no json", b"\xff", b'{"word": "odd"}'
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, values)
    topology = words_of(unique, behind_exchange, DeadLetters())
    assert run_on(spark, services, sqlite_url, topology) == expected
    assert dead_in(sqlite_url, unique) == [
        (f"{unique}/1@5000", "words", "DecodeError"),
        (f"{unique}/2@7500", "same", "ValueError"),
        (f"{unique}/3@12499", "words", "DecodeError"),
    ]
    assert sum(row["n"] for row in read_rows(sqlite_url, unique)) == 49_997


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_record_that_kills_its_worker_is_found_by_halving(
    spark: SparkSession, services: Services, sqlite_url: str, unique: str
) -> None:
    create_topic(services.kafka, unique, 1)
    words = ["a", "b", "deadly", "a", "c", "a", "b", "a"]
    produce(services.kafka, unique, [json.dumps({"word": word}).encode() for word in words], 1)
    topology = words_of(unique, DiesOn("deadly"), DeadLetters())
    batches, failed, _ = run_on(spark, services, sqlite_url, topology)
    assert (batches, failed) == (1, 1)
    assert dead_in(sqlite_url, unique) == [(f"{unique}/0@2", "", "BoltError")]
    assert {row["word"]: row["n"] for row in read_rows(sqlite_url, unique)} == {"a": 4, "b": 2, "c": 1}


class RefusesOdd(DataFrameBolt):
    output = "word string"

    def transform(self, df: DataFrame) -> DataFrame:
        from pyspark.sql import functions as fn

        refused = fn.raise_error(fn.lit("an odd word"))
        return df.select(fn.when(df["word"] == "odd", refused).otherwise(df["word"]).alias("word"))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_record_that_makes_a_dataframe_bolt_fail_is_found_by_halving(
    spark: SparkSession, services: Services, sqlite_url: str, unique: str
) -> None:
    create_topic(services.kafka, unique, 1)
    words = ["a", "b", "a", "odd", "c"]
    produce(services.kafka, unique, [json.dumps({"word": word}).encode() for word in words], 1)
    topology = words_of(unique, RefusesOdd(), DeadLetters())
    batches, failed, _ = run_on(spark, services, sqlite_url, topology)
    assert (batches, failed) == (1, 1)
    assert dead_in(sqlite_url, unique) == [(f"{unique}/0@3", "same", "BoltError")]
    assert {row["word"]: row["n"] for row in read_rows(sqlite_url, unique)} == {"a": 2, "b": 1, "c": 1}
