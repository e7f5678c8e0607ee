"""A run that does not begin at the logs' beginning: its driver dies before it has committed a record.

What is produced after the first run began must be counted, whoever dies. The truth is the list of what was
sent; it is compared with what plain SQL finds in the tables.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher, RunningCommand
from support.tables import read_rows, table_exists

from txstream.plugins.local.embedded import EmbeddedKafka, Services

MODULE = """
import json

from txstream import Count, KafkaOptions, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt, TransactionalSpout
from txstream import TransactionalTopologyBuilder

SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}


def topology(topic, semantics, starting, second="", pattern=""):
    starting = json.loads(starting) if starting.startswith("{") else starting
    names = {"topic_pattern": pattern} if pattern else {"topics": topic}
    source = KafkaSource(**names, start=starting, client=KafkaOptions(partition_discovery_seconds=0.5))
    builder = TransactionalTopologyBuilder(topic, "lines", SPOUTS[semantics](source))
    for name, url in {"one": None, "two": second}.items():
        if url != "":
            state = SqlState(f"{topic}_{name}", key="value string", value="n bigint", url=url)
            bolt = SqlStateBolt(state, n=Count())
            builder.set_committer_bolt(name, bolt).fields_grouping("lines", "value")
    return builder.build()
"""


@dataclass
class Begun:
    """A topology whose first run begins behind ten records in each partition."""

    launcher: Launcher
    topics: Topics
    name: str
    arguments: Sequence[str]
    second: str | None = None

    def start(self, fault: str = "", *more: str) -> RunningCommand:
        variables = {"TXSTREAM_FAULT": fault} if fault else {}
        return self.launcher.start(*self.arguments, *more, **variables)

    def committed(self) -> int:
        """Return the last committed txid, as the first database has it."""
        if not table_exists(self.launcher.database, "txstream_batch"):
            return 0
        return max((row["txid"] for row in self.rows("txstream_batch", committed=True)), default=0)

    def rows(self, table: str, *, committed: bool = False) -> list[dict[str, Any]]:
        found = read_rows(self.launcher.database, table)
        return [row for row in found if not committed or row["status"] == "committed"]

    def wait_until_begun(self, run: RunningCommand) -> None:
        wait_until(lambda: self.committed() == 1 or run.process.poll() is not None, "txid 1 is committed")
        assert run.process.poll() is None, run.wait().stderr

    def send(self, *partitions: int) -> None:
        for partition in partitions or (0, 1):
            self.topics.send(self.name, [b"new-%d" % number for number in range(10)], partition)

    def finish(self, *more: str) -> None:
        ended = self.start("", "--until", "caught-up", *more).wait()
        assert ended.status == 0, ended.stderr

    def assert_counted(self, times: int = 2, **old: int) -> None:
        """Assert that exactly what was sent since the first run began is in the tables, and in the ledger."""
        truth = {**{f"new-{number}": times for number in range(10)}, **old}
        places = {"one": self.launcher.database, **({"two": self.second} if self.second else {})}
        for state, url in places.items():
            table = f"{self.name}_{state}"
            assert {row["value"]: row["n"] for row in read_rows(url, table)} == truth
        assert sum(row["tuples"] for row in self.rows("txstream_batch", committed=True)) == sum(
            truth.values()
        )


def begin(
    launcher: Launcher,
    topics: Topics,
    name: str,
    semantics: str,
    starting: str = "latest",
    *,
    two: bool = False,
    replicas: dict[int, list[int]] | None = None,
    pattern: str | None = None,
) -> Begun:
    if pattern is None:
        topics.create(name, 2, replicas=replicas)
        for partition in (0, 1):
            topics.send(name, [b"old"] * 10, partition)
    (launcher.directory / "begins.py").write_text(MODULE)
    second = f"sqlite:///{launcher.directory / 'second.db'}" if two else None
    arguments = ["run", "begins:topology", "--session-timeout", "1", "--json"]
    given = {
        "topic": name,
        "semantics": semantics,
        "starting": starting,
        "second": second,
        "pattern": pattern,
    }
    for key, value in given.items():
        if value:
            arguments += ["-p", f"{key}={value}"]
    return Begun(launcher.without_spark, topics, name, arguments, second)


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


DEATHS = [
    ("opaque", "before-commit:2", False),
    ("transactional", "before-persist:2", False),
    ("opaque", "between-commits:2", True),
]


@pytest.mark.soak
@pytest.mark.parametrize(("semantics", "point", "two"), DEATHS)
def test_killed_before_the_first_records_are_committed(
    launcher: Launcher, topics: Topics, unique: str, semantics: str, point: str, two: bool
) -> None:
    begun = begin(launcher, topics, unique, semantics, two=two)
    first = begun.start(f"kill@{point}")
    begun.wait_until_begun(first)
    begun.send()
    assert first.wait().status == -signal.SIGKILL
    begun.finish()
    begun.assert_counted()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("semantics", "point", "two"),
    [("opaque", "before-commit:1", False), ("opaque", "between-commits:1", True)],
)
def test_killed_while_the_first_places_are_committed(
    launcher: Launcher, topics: Topics, unique: str, semantics: str, point: str, two: bool
) -> None:
    begun = begin(launcher, topics, unique, semantics, two=two)
    assert begun.start(f"kill@{point}").wait().status == -signal.SIGKILL
    begun.send()
    begun.finish()
    begun.assert_counted()


def test_a_run_that_had_nothing_to_read_has_begun(launcher: Launcher, topics: Topics, unique: str) -> None:
    begun = begin(launcher, topics, unique, "opaque")
    begun.finish()
    assert begun.committed() == 1
    program = ["--topology", "begins:topology", *begun.arguments[begun.arguments.index("-p") :]]
    shown, replayed, checked, status = (
        begun.launcher.run(*command)
        for command in (
            ["show", unique, "1"],
            ["replay", unique, "1", *program],
            ["fsck", unique, *program],
            ["status", unique, "--json"],
        )
    )
    assert f"no records; {unique}/0 begins at 10, {unique}/1 begins at 10" in shown.stdout
    assert (replayed.status, "nothing was shown" in replayed.stderr) == (1, True), replayed.stderr
    assert (checked.status, "all is well" in checked.stdout) == (0, True), checked.stdout
    assert status.json()["lag_records"] == 0
    assert status.json()["positions"] == {f"{unique}/0": 10, f"{unique}/1": 10}
    begun.send()
    begun.finish()
    begun.assert_counted()


@pytest.mark.parametrize("semantics", ["opaque", pytest.param("transactional", marks=pytest.mark.soak)])
def test_a_first_run_that_found_no_topic_has_begun(
    launcher: Launcher, topics: Topics, unique: str, semantics: str
) -> None:
    begun = begin(launcher, topics, unique, semantics, pattern=f"{unique}.*")
    first = begun.start()
    begun.wait_until_begun(first)
    first.kill()
    topics.create(unique, 2)
    begun.send()
    begun.finish()
    begun.assert_counted()
    program = ["--topology", "begins:topology", *begun.arguments[begun.arguments.index("-p") :]]
    checked = begun.launcher.run("fsck", unique, *program)
    assert (checked.status, "all is well" in checked.stdout) == (0, True), checked.stdout
    assert begun.launcher.run("status", unique, "--json").json()["lag_records"] == 0


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_latest_for_one_partition_alone(
    launcher: Launcher, topics: Topics, unique: str, semantics: str
) -> None:
    begun = begin(launcher, topics, unique, semantics, f'{{"{unique}/1": "latest"}}')
    first = begun.start("kill@before-commit:2")  # which has the old records of the other partition
    assert first.wait().status == -signal.SIGKILL
    begun.send()
    begun.finish()
    begun.assert_counted(old=10)


def test_what_is_new_after_a_death_before_the_first_commit_begins_at_its_beginning(
    launcher: Launcher, topics: Topics, unique: str
) -> None:
    rules = f'{{"{unique}/0": "earliest", "{unique}/1": "earliest", "*": "latest"}}'
    begun = begin(launcher, topics, unique, "opaque", rules)
    assert begun.start("kill@before-commit:1").wait().status == -signal.SIGKILL
    topics.add_partitions(unique, 3)
    begun.send(2)
    begun.finish()
    begun.assert_counted(1, old=20)


# --- a broker that is away ---------------------------------------------------------------------------------


@pytest.fixture
def apart(launcher: Launcher, own_kafka: EmbeddedKafka) -> Iterator[tuple[Launcher, Topics]]:
    """A cluster of two brokers, of which a test may stop the second; partition 1 is on that alone."""
    with Topics(own_kafka.address) as topics:
        yield replace(launcher, services=replace(launcher.services, kafka=own_kafka.address)), topics


APART = {0: [1], 1: [2]}


def test_a_partition_that_was_away_when_the_first_run_began(
    apart: tuple[Launcher, Topics], own_kafka: EmbeddedKafka, unique: str
) -> None:
    begun = begin(*apart, unique, "opaque", replicas=APART)
    own_kafka.stop_broker(2)
    first = begun.start("kill@before-commit:2")
    begun.wait_until_begun(first)
    begun.send(0)
    assert first.wait().status == -signal.SIGKILL
    second = begun.start()
    try:
        wait_until(lambda: begun.committed() == 2, "the partition that can be read is")
        own_kafka.start_broker(2)
        wait_until(lambda: begun.committed() == 3, "the other partition has its place")
    finally:
        second.kill()
    begun.send(1)
    begun.finish()
    begun.assert_counted()


@pytest.mark.soak
def test_one_named_partition_was_away_when_the_first_run_began(
    apart: tuple[Launcher, Topics], own_kafka: EmbeddedKafka, unique: str
) -> None:
    begun = begin(*apart, unique, "opaque", f'{{"{unique}/1": "latest"}}', replicas=APART)
    own_kafka.stop_broker(2)
    first = begun.start("kill@before-commit:2")  # which has the old records of the other partition
    assert first.wait().status == -signal.SIGKILL
    assert [row["tuples"] for row in begun.rows("txstream_batch", committed=True)] == [0]
    second = begun.start()
    try:
        wait_until(lambda: begun.committed() == 2, "the partition that can be read is")
        own_kafka.start_broker(2)
        wait_until(lambda: begun.committed() == 3, "the other partition has its place")
    finally:
        second.kill()
    begun.send(1)
    begun.finish()
    begun.assert_counted(1, old=10)


@pytest.mark.soak
def test_a_first_run_does_not_wait_to_begin(
    apart: tuple[Launcher, Topics], own_kafka: EmbeddedKafka, unique: str
) -> None:
    begun = begin(*apart, unique, "opaque", "earliest", replicas=APART)
    own_kafka.stop_broker(2)
    run = begun.start("", "--until", "caught-up")
    try:
        begun.wait_until_begun(run)
        run.wait_for_line("waiting for the end of the log", 30)
        assert [row["n"] for row in begun.rows(f"{unique}_one")] == [10]
        assert run.process.poll() is None, "it ended before it could know that it has caught up"
        own_kafka.start_broker(2)
        assert run.wait().status == 0
    finally:
        run.kill()
    assert [row["n"] for row in begun.rows(f"{unique}_one")] == [20]
