"""SIGKILL of the driver at every named point and at random moments: the next run ends with exact totals.

The kills test the driver's protocol, so most drivers run without Spark; one for each semantics runs with it.
A sequence of kills mostly waits, for a driver to start and for a session to end, so all run side by side.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.ahead import Ahead
from support.runs import Launcher
from support.tables import read_counts
from support.texts import fill_topic, make_lines

from txstream.plugins.local.embedded import Services

# Each run is killed at the next point, and the run after it goes on from there. Together the two semantics
# cross every point, and both cross the one at which they differ; a soak takes both through all points.
COMMIT_POINTS = [
    "before-commit:3",
    "inside-commit:4",
    "after-commit:5",
    "before-advance:6",
    "after-advance:7",
]
# The same table; from there on, tasks commit to it.
EXECUTOR_POINTS = ["inside-begin:8", "after-begin:9", "after-write:10"]
BY_EXECUTORS = ["-p", "driver_commit_rows=1"]
PERSIST_POINTS = ["before-persist:1", "after-persist:2"]
EVERY_POINT = PERSIST_POINTS + COMMIT_POINTS + EXECUTOR_POINTS
LINES = 8_000
SMALL_BATCHES = "max_records_per_partition=200"  # 4 partitions: ten batches of 8,000 lines
SEED = int(os.environ.get("TXSTREAM_KILL_SEED", random.SystemRandom().randrange(1 << 32)))


@dataclass(frozen=True)
class Killed:
    """What is left after some kills and one run to the end of the log."""

    truth: Mapping[str, int]
    counts: Mapping[str, int]
    batches: Sequence[Mapping[str, Any]]

    def assert_exact(self, lines: int) -> None:
        """Assert that the table is right, and the ledger has every txid and line once, all committed."""
        assert self.counts == self.truth
        assert [batch["txid"] for batch in self.batches] == list(range(1, len(self.batches) + 1))
        assert {batch["status"] for batch in self.batches} == {"committed"}
        assert sum(batch["tuples"] for batch in self.batches) == lines


def kill_at_points(
    launcher: Launcher, name: str, semantics: str, points: Sequence[str], *, lines: int = LINES
) -> Killed:
    """Run until killed at one point after the other, then once to the end."""
    truth = fill_topic(launcher.services.kafka, name, make_lines(lines))
    arguments = launcher.word_count_arguments(
        name, name, name, "-p", f"semantics={semantics}", "-p", SMALL_BATCHES
    )
    for point in points:
        path = BY_EXECUTORS if point in EXECUTOR_POINTS else []
        killed = launcher.run(*arguments, *path, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    return finished(launcher, name, arguments, truth)


def kill_at_random_moments(
    launcher: Launcher, name: str, semantics: str, *, kills: int, rng: random.Random
) -> Killed:
    """Kill runs that have much to do in the middle of their work, then run once to the end."""
    truth = fill_topic(launcher.services.kafka, name, make_lines(20_000))
    options = ["-p", f"semantics={semantics}"]
    arguments = launcher.word_count_arguments(  # 4 partitions: 250 batches
        name, name, name, *options, "-p", "max_records_per_partition=20"
    )
    seconds = 2.0 if launcher.on_spark else 0.8  # of each run's work; the rest is left for the next run
    hit = 0
    while hit < kills:
        command = launcher.start(*arguments)
        try:
            command.wait_for_line("running")
            try:
                command.process.wait(rng.uniform(0.0, seconds))  # a run that ends before is a miss
            except subprocess.TimeoutExpired:
                hit += 1
        finally:
            command.kill()
        if command.process.returncode == 0:
            break
    assert hit, "the run was never hit while it ran; give it more to do"
    return finished(launcher, name, launcher.word_count_arguments(name, name, name, *options), truth)


def finished(launcher: Launcher, name: str, arguments: Sequence[str], truth: Mapping[str, int]) -> Killed:
    outcome = launcher.run(*arguments)
    assert outcome.status == 0, outcome.stderr
    batches = launcher.run("batches", name, "-n", "1000", "--json").json()
    return Killed(truth, read_counts(launcher.database, name), batches)


@pytest.fixture(scope="module")
def sequences(
    request: pytest.FixtureRequest, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ahead[Killed]]:
    """Starts the kills of each test with a topic, a topology and a database of their own."""

    def work(
        kill: Callable[..., Killed], semantics: str, *, on_spark: bool = False, **how: Any
    ) -> Callable[[], Killed]:
        folder = tmp_path_factory.mktemp("killed")
        launcher = Launcher(services, folder, f"sqlite:///{folder / 'state.db'}", on_spark=on_spark)
        return lambda: kill(launcher, f"k{folder.name}", semantics, **how)

    def moments(semantics: str, kills: int, **how: Any) -> Callable[[], Killed]:
        rng = random.Random(f"{SEED} {semantics}")
        return work(kill_at_random_moments, semantics, kills=kills, rng=rng, **how)

    works = {
        "test_killed_on_spark_at_a_named_point": work(
            kill_at_points, "transactional", points=["after-commit:5"], on_spark=True
        ),
        "test_killed_on_spark_at_a_random_moment": moments("opaque", 1, on_spark=True),
        "test_killed_at_every_named_point[transactional]": work(
            kill_at_points, "transactional", points=PERSIST_POINTS + COMMIT_POINTS[:3] + EXECUTOR_POINTS[1:2]
        ),
        "test_killed_at_every_named_point[opaque]": work(
            kill_at_points, "opaque", points=COMMIT_POINTS[2:] + EXECUTOR_POINTS
        ),
        "test_non_transactional_miscounts_when_killed_alike": work(
            kill_at_points, "non-transactional", points=["after-commit:2"], lines=4_000
        ),
        "test_killed_at_random_moments[transactional]": moments("transactional", 2),
        "test_killed_at_random_moments[opaque]": moments("opaque", 2),
    }
    with Ahead(request, works, at_once=4) as begun:
        yield begun


@pytest.fixture
def killed(request: pytest.FixtureRequest, sequences: Ahead[Killed]) -> Killed:
    """What this test's sequence of kills left."""
    print(f"TXSTREAM_KILL_SEED={SEED}")
    return sequences[request.node.name]


@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
def test_killed_at_every_named_point(killed: Killed, semantics: str) -> None:
    killed.assert_exact(LINES)


def test_non_transactional_miscounts_when_killed_alike(killed: Killed) -> None:
    assert killed.counts != killed.truth
    assert sum(killed.counts.values()) > sum(killed.truth.values()), (
        "a batch that was committed twice counts twice"
    )


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
def test_killed_at_random_moments(killed: Killed, semantics: str) -> None:
    killed.assert_exact(20_000)


@pytest.mark.soak
def test_killed_on_spark_at_a_named_point(killed: Killed) -> None:
    """The driver leaves Spark's processes behind for a while; its successor starts its own."""
    killed.assert_exact(LINES)


@pytest.mark.soak
def test_killed_on_spark_at_a_random_moment(killed: Killed) -> None:
    killed.assert_exact(20_000)


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
@pytest.mark.timeout(1800)
def test_killed_at_many_random_moments(launcher: Launcher, unique: str, semantics: str) -> None:
    print(f"TXSTREAM_KILL_SEED={SEED}")
    rng = random.Random(f"{SEED} {semantics}")
    kill_at_random_moments(launcher, unique, semantics, kills=10, rng=rng).assert_exact(20_000)


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
@pytest.mark.timeout(1800)
def test_killed_at_all_points(launcher: Launcher, unique: str, semantics: str) -> None:
    # Only a transactional topology stores a plan before it is read.
    points = EVERY_POINT if semantics == "transactional" else COMMIT_POINTS + EXECUTOR_POINTS
    kill_at_points(launcher.without_spark, unique, semantics, points).assert_exact(LINES)
