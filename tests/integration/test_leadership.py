"""Two drivers with one topology id: a standby waits and takes over; a frozen leader that wakes is fenced.

All this is between the drivers, ZooKeeper and the database, so only one pair of drivers runs on Spark. Every
test waits for a session to end, so they wait side by side.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from postgres import PostgresServer
from support.ahead import Ahead
from support.runs import WORD_COUNT, Launcher, Outcome, RunningCommand
from support.tables import read_counts
from support.texts import count_words, create_topic, fill_topic, make_lines, produce

from txstream.plugins.local.embedded import Services

LINES = make_lines(4_000)
SMALL_BATCHES = ["-p", "max_records_per_partition=200"]

# The message timeout limits how long a frozen driver's open transaction can keep its locks.
IMPATIENT = """
import dataclasses
from txstream.examples import word_count


def topology(topic: str, table: str, semantics: str = "opaque"):
    built = word_count.topology(topic, semantics, table, max_records_per_partition=200)
    return dataclasses.replace(built, message_timeout_seconds=4.0)
"""


@dataclass(frozen=True)
class Succession:
    """How the first driver and its standby ended, and what the table holds then."""

    first: Outcome
    standby: Outcome
    truth: Mapping[str, int]
    counts: Mapping[str, int]

    def assert_taken_over(self) -> None:
        assert self.standby.status == 0, self.standby.stderr
        assert self.counts == self.truth


def wait_for_file(path: Path, command: RunningCommand, deadline_seconds: float = 120) -> dict[str, object]:
    """Return what the fault wrote before it froze the process."""
    tick = threading.Event()
    for _ in range(int(deadline_seconds / 0.05)):
        if path.exists():
            document: dict[str, object] = json.loads(path.read_text())
            return document
        if command.process.poll() is not None:
            break
        tick.wait(0.05)
    command.kill()
    raise AssertionError(f"the driver was never frozen: {command.wait().stderr}")


def freeze(launcher: Launcher, arguments: list[str], point: str) -> tuple[RunningCommand, int]:
    """Start a driver that freezes at the point; return it and the pid of the frozen process."""
    told = launcher.directory / "frozen.json"
    driver = launcher.start(*arguments, TXSTREAM_FAULT=f"stop@{point}", TXSTREAM_FAULT_LOG=str(told))
    return driver, int(str(wait_for_file(told, driver)["pid"]))


def freeze_succeed_wake(launcher: Launcher, name: str, arguments: list[str], point: str) -> Succession:
    """Freeze one driver at a point, let a standby finish, wake the first."""
    truth = fill_topic(launcher.services.kafka, name, LINES)
    first, frozen = freeze(launcher, arguments, point)
    standby = None
    try:
        standby = launcher.start(*arguments)
        standby.wait(180)
        os.kill(frozen, signal.SIGCONT)
        first.wait(120)
    finally:
        first.kill()
        if standby is not None:
            standby.kill()
    return Succession(first.wait(), standby.wait(), truth, read_counts(launcher.database, name))


def freeze_at(launcher: Launcher, name: str, point: str) -> Succession:
    arguments = launcher.word_count_arguments(name, name, name, *SMALL_BATCHES)
    return freeze_succeed_wake(launcher, name, arguments, point)


def freeze_inside_its_transaction(launcher: Launcher, name: str, semantics: str) -> Succession:
    (launcher.directory / "impatient.py").write_text(IMPATIENT)
    arguments = [
        *("run", "impatient:topology", "--id", name, "-p", f"topic={name}", "-p", f"table={name}"),
        *("-p", f"semantics={semantics}", "--until", "caught-up", "--json", "--session-timeout", "1"),
    ]
    return freeze_succeed_wake(launcher, name, arguments, "inside-commit:3")


def kill_while_one_stands_by(launcher: Launcher, name: str) -> Succession:
    """The leader waits for data until the standby is there; it is killed in its third batch."""
    create_topic(launcher.services.kafka, name)
    arguments = launcher.word_count_arguments(name, name, name, *SMALL_BATCHES, "--session-timeout", "4")
    endless = [
        *("run", WORD_COUNT, "--id", name, "-p", f"topic={name}", "-p", f"table={name}", *SMALL_BATCHES),
        *("--session-timeout", "4"),
    ]
    leader = launcher.start(*endless, TXSTREAM_FAULT="kill@before-commit:3")
    standby = None
    try:
        leader.wait_for_line("is running")
        standby = launcher.start(*arguments)
        standby.wait_for_line("standing by")
        status = launcher.run("status", name, "--json", "--database", launcher.database)
        (waits,) = json.loads(status.stdout)["standbys"]
        assert waits["standby"] == "cold"
        assert waits["driver"].endswith(f":{standby.process.pid}")
        refused = launcher.run(*arguments, "--no-wait")
        assert refused.status == 1
        assert "Traceback" not in refused.stderr
        assert str(leader.process.pid) in refused.stderr, "the message names the present leader"
        produce(launcher.services.kafka, name, LINES)
        first, second = leader.wait(), standby.wait()
    finally:
        leader.kill()
        if standby is not None:
            standby.kill()
    return Succession(first, second, count_words(LINES), read_counts(launcher.database, name))


def kill_while_one_waits_for_its_lock(launcher: Launcher, name: str) -> Succession:
    """A driver that is frozen inside its transaction keeps SQLite's lock longer than its session."""
    truth = fill_topic(launcher.services.kafka, name, LINES)
    arguments = launcher.word_count_arguments(name, name, name, *SMALL_BATCHES)
    leader, _ = freeze(launcher, arguments, "inside-commit:3")
    standby = None
    try:
        standby = launcher.start(*arguments)
        standby.wait_for_line("lock")
        leader.kill()
        second = standby.wait()
    finally:
        leader.kill()
        if standby is not None:
            standby.kill()
    return Succession(leader.wait(), second, truth, read_counts(launcher.database, name))


@pytest.fixture(scope="module")
def successions(
    request: pytest.FixtureRequest,
    services: Services,
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ahead[Succession]]:
    """Starts the drivers of each test with a topic, a topology and a database of their own."""

    def work(
        play: Callable[..., Succession],
        *arguments: str,
        on_spark: bool = False,
        on_postgres: bool = False,
    ) -> Callable[[], Succession]:
        folder = tmp_path_factory.mktemp("leadership")
        name = f"l{folder.name}"
        url = postgres.create_database(name) if on_postgres else f"sqlite:///{folder / 'state.db'}"
        return lambda: play(Launcher(services, folder, url, on_spark=on_spark), name, *arguments)

    frozen, inside = "test_frozen_driver_is_succeeded_and_fenced", freeze_inside_its_transaction
    works = {
        f"{frozen}_on_spark": work(freeze_at, "before-commit:3", on_spark=True),
        f"{frozen}[before-commit:3]": work(freeze_at, "before-commit:3"),
        f"{frozen}[before-advance:3]": work(freeze_at, "before-advance:3"),
        "test_driver_frozen_inside_its_sql_transaction[transactional]": work(
            inside, "transactional", on_postgres=True
        ),
        "test_driver_frozen_inside_its_sql_transaction[opaque]": work(inside, "opaque", on_postgres=True),
        "test_standby_takes_over_when_the_leader_is_killed": work(kill_while_one_stands_by),
        "test_standby_waits_for_the_lock_of_a_frozen_leader": work(kill_while_one_waits_for_its_lock),
    }
    with Ahead(request, works, at_once=4) as begun:
        yield begun


@pytest.fixture
def succession(request: pytest.FixtureRequest, successions: Ahead[Succession]) -> Succession:
    """How this test's two drivers ended."""
    return successions[request.node.name]


@pytest.mark.parametrize("point", ["before-commit:3", "before-advance:3"])
def test_frozen_driver_is_succeeded_and_fenced(succession: Succession, point: str) -> None:
    succession.assert_taken_over()
    assert succession.first.status == 3, succession.first.stderr


@pytest.mark.soak
def test_frozen_driver_is_succeeded_and_fenced_on_spark(succession: Succession) -> None:
    """Its Spark is not frozen with it, but ends with it."""
    succession.assert_taken_over()
    assert succession.first.status == 3, succession.first.stderr


@pytest.mark.parametrize("semantics", [pytest.param("transactional", marks=pytest.mark.soak), "opaque"])
def test_driver_frozen_inside_its_sql_transaction(succession: Succession, semantics: str) -> None:
    """PostgreSQL ends an idle transaction. SQLite cannot: there the lock ends with the process."""
    succession.assert_taken_over()
    assert succession.first.status == 3, succession.first.stderr


def test_standby_takes_over_when_the_leader_is_killed(succession: Succession) -> None:
    """As long as the leader's session lives, the standby waits in the election and `--no-wait` is refused."""
    succession.assert_taken_over()
    assert succession.first.status == -signal.SIGKILL


def test_standby_waits_for_the_lock_of_a_frozen_leader(succession: Succession) -> None:
    succession.assert_taken_over()
    assert succession.first.status == -signal.SIGKILL


def test_a_leader_that_was_killed_here_is_told_with_its_end_and_a_new_id_waits_for_nobody(
    launcher: Launcher, services: Services, unique: str
) -> None:
    launcher = launcher.without_spark
    create_topic(services.kafka, unique)
    arguments = ["--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}", "--session-timeout", "4"]
    leader = launcher.start("run", WORD_COUNT, *arguments)
    leader.wait_for_line("is running")
    leader.process.kill()
    told = leader.wait().stderr
    assert [word for word in ("leader", "standing by", "waiting for") if word in told] == []
    successor = launcher.word_count(unique, unique, unique)
    assert successor.status == 0
    assert (
        f":{leader.process.pid}, which has ended; its session ends within 4 s, then this run takes over"
        in successor.stderr
    )
    assert "standing by" not in successor.stderr
