"""Round after round, a leader is killed or frozen at a random moment and its standby, warm or cold, goes on.

After each round the totals are exact. A leader that was frozen is woken when its successor has counted
everything: it writes nothing and ends with status 3.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from postgres import PostgresServer
from support.ahead import Ahead
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher, RunningCommand, has_ended, java_of
from support.tables import read_counts, read_rows
from support.texts import count_words, create_topic, make_lines, produce

from txstream.plugins.local.embedded import EmbeddedKafka, Services

SEED = int(os.environ.get("TXSTREAM_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
LINES = 800
DEADLINE_SECONDS = 120.0
BLAME = ("broker", "the source", "waiting for partition", "go on without")

# The message timeout limits how long a frozen driver's open transaction can keep its locks.
IMPATIENT = """
import dataclasses
from txstream.examples import word_count


def topology(topic: str):
    built = word_count.topology(topic, table="counts", max_records_per_partition=20)
    return dataclasses.replace(built, message_timeout_seconds=4.0)
"""


class Succession:
    """Drivers of one topology. The first leads at once; each later one stands by and then leads."""

    def __init__(self, launcher: Launcher, name: str) -> None:
        (launcher.directory / "impatient.py").write_text(IMPATIENT)
        create_topic(launcher.services.kafka, name)
        self.launcher = launcher
        self.name = name
        self.truth: Counter[str] = Counter()
        self.lines = 0
        self._started: list[RunningCommand] = []
        self.leader = self.start("cold")
        self.leader.wait_for_line("is running")

    def start(self, standby: str) -> RunningCommand:
        conf = [argument for setting in self.launcher.spark_conf for argument in ("--spark-conf", setting)]
        arguments = ["-p", f"topic={self.name}", "--session-timeout", "2", "--standby", standby, *conf]
        self._started.append(self.launcher.start("run", "impatient:topology", "--id", self.name, *arguments))
        return self._started[-1]

    def stand_by(self, standby: str) -> RunningCommand:
        """Start a driver and wait until it stands by, and until it is ready if it is warm."""
        command = self.start(standby)
        command.wait_for_line({"cold": "standing by to take over", "warm": "ready to take over"}[standby])
        return command

    def produce(self, lines: list[str], partitions: int = 4) -> None:
        produce(self.launcher.services.kafka, self.name, lines, partitions)
        self.truth.update(count_words(lines))
        self.lines += len(lines)

    def wait_until_exact(self) -> None:
        """Wait for exact totals: a batch that was ever lost or counted twice is never made up for."""
        wait_until(lambda: self.counts() == self.truth, f"totals of {self.lines} lines", DEADLINE_SECONDS)

    def counts(self) -> dict[str, int]:
        with contextlib.suppress(Exception):  # the run creates the table
            return read_counts(self.launcher.database, "counts")
        return {}

    def everything(self) -> list[list[dict[str, Any]]]:
        """Return everything in the database that a driver may write to."""
        tables = ("counts", "txstream_batch", "txstream_fence")
        return [sorted(read_rows(self.launcher.database, table), key=repr) for table in tables]

    def assert_ledger(self) -> None:
        batches = sorted(read_rows(self.launcher.database, "txstream_batch"), key=lambda row: row["txid"])
        assert [batch["txid"] for batch in batches] == list(range(1, len(batches) + 1))
        assert {batch["status"] for batch in batches} == {"committed"}
        assert sum(batch["tuples"] for batch in batches) == self.lines

    def __enter__(self) -> Succession:
        return self

    def __exit__(self, *_: object) -> None:
        for command in self._started:
            command.kill()


def play(launcher: Launcher, name: str, how: signal.Signals, rounds: int) -> list[int]:
    """Play so many takeovers; return the statuses with which the leaders ended."""
    rng = random.Random(f"{SEED} {how}")
    statuses = []
    with Succession(launcher, name) as drivers:
        for number in range(rounds):
            standby = drivers.stand_by("cold" if number % 2 else "warm")
            drivers.produce(make_lines(LINES, seed=number))
            leader = drivers.leader
            with contextlib.suppress(subprocess.TimeoutExpired):
                leader.process.wait(rng.uniform(0.0, 2.0))
            leader.process.send_signal(how)
            drivers.leader = standby
            standby.wait_for_line("is running")
            drivers.wait_until_exact()
            if how == signal.SIGSTOP:
                before = drivers.everything()
                leader.process.send_signal(signal.SIGCONT)
                told = leader.wait().stderr
                assert drivers.everything() == before, "it wrote when it was woken"
                assert "has a newer leader" in told
                _, _, while_it_led = told.rpartition(" is running")
                assert [
                    line for line in while_it_led.splitlines() if any(word in line for word in BLAME)
                ] == []
            statuses.append(leader.wait().status)
        drivers.assert_ledger()
        drivers.leader.process.send_signal(signal.SIGTERM)
        assert drivers.leader.wait().status == 0
    return statuses


@pytest.fixture(scope="module")
def rounds(
    request: pytest.FixtureRequest,
    services: Services,
    postgres: PostgresServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ahead[list[int]]]:
    """Starts the rounds of each test with a topic, a topology and a database of their own."""

    def work(how: signal.Signals, number: int, *, on_spark: bool) -> Callable[[], list[int]]:
        folder = tmp_path_factory.mktemp("takeovers")
        name = f"o{folder.name}"
        launcher = Launcher(services, folder, postgres.create_database(name), on_spark=on_spark)
        return lambda: play(launcher, name, how, number)

    works = {
        "test_two_leaders_killed": work(signal.SIGKILL, 2, on_spark=False),
        "test_two_leaders_frozen_and_woken": work(signal.SIGSTOP, 2, on_spark=False),
        "test_twenty_leaders_killed": work(signal.SIGKILL, 20, on_spark=True),
        "test_twenty_leaders_frozen_and_woken": work(signal.SIGSTOP, 20, on_spark=True),
    }
    with Ahead(request, works, at_once=2) as begun:
        yield begun


@pytest.fixture
def statuses(request: pytest.FixtureRequest, rounds: Ahead[list[int]]) -> list[int]:
    """The statuses with which this test's leaders ended."""
    print(f"TXSTREAM_KILL_SEED={SEED}")
    return rounds[request.node.name]


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_two_leaders_killed(statuses: list[int]) -> None:
    assert statuses == [-signal.SIGKILL] * 2


@pytest.mark.timeout(900)
def test_two_leaders_frozen_and_woken(statuses: list[int]) -> None:
    assert statuses == [3] * 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_leaders_killed(statuses: list[int]) -> None:
    assert statuses == [-signal.SIGKILL] * 20


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_leaders_frozen_and_woken(statuses: list[int]) -> None:
    assert statuses == [3] * 20


# --- a warm standby while it waits -------------------------------------------------------------------------


@pytest.mark.soak
def test_a_warm_standby_outlives_outages_and_takes_over(
    services: Services, own_kafka: EmbeddedKafka, own_postgres: PostgresServer, tmp_path: Path, unique: str
) -> None:
    """Its Spark is started anew, and the topic is no longer what it was when the standby opened it."""
    launcher = Launcher(
        replace(services, kafka=own_kafka.address), tmp_path, own_postgres.create_database(unique)
    )
    with Succession(launcher.without_spark, unique) as drivers, Topics(own_kafka.address) as topics:
        drivers.launcher = launcher
        standby = drivers.stand_by("warm")
        java = java_of(standby)
        java.kill()
        own_postgres.stop()
        own_kafka.stop_broker(1)
        standby.wait_for_line("waiting for database")
        own_postgres.start()
        own_kafka.start_broker(1)
        standby.wait_for_line("no longer waiting for database")
        wait_until(lambda: has_ended(java) and java_of(standby) != java, "Spark is started anew")
        topics.add_partitions(unique, 6)
        drivers.leader.kill()
        drivers.produce(make_lines(LINES), partitions=6)
        standby.wait_for_line("is running")
        drivers.wait_until_exact()
        drivers.assert_ledger()
        standby.process.send_signal(signal.SIGTERM)
        assert standby.wait().status == 0


@pytest.mark.soak
def test_a_warm_standby_that_never_leads_ends_when_it_is_told_to(launcher: Launcher, unique: str) -> None:
    """Even while its Spark starts; here, its Java is frozen and never gets ready."""
    with Succession(launcher.without_spark, unique) as drivers:
        drivers.launcher = launcher
        ready, starting = drivers.stand_by("warm"), drivers.start("warm")
        javas = [java_of(starting), java_of(ready)]
        javas[0].suspend()
        for standby in (starting, ready):
            standby.process.send_signal(signal.SIGTERM)
            outcome = standby.wait()
            assert outcome.status == 0, outcome.stderr
            assert "stopped before its first batch; nothing was done" in outcome.stderr
            assert "Spark's Java process" not in outcome.stderr
        wait_until(lambda: all(map(has_ended, javas)), "Java has ended")
