"""SIGKILL of the driver at every named point and at random moments: the next run ends with exact totals."""

from __future__ import annotations

import os
import random
import signal
import subprocess

import pytest
from support.runs import Launcher
from support.tables import read_counts
from support.texts import fill_topic, make_lines

from txstream.embedded import Services

# Each run is killed at the next point and the run after it goes on from there, so that one sequence
# crosses every point: a run costs Spark's start, whatever it does.
COMMIT_POINTS = [
    "before-commit:3",
    "inside-commit:4",
    "after-commit:5",
    "before-advance:6",
    "after-advance:7",
]
PERSIST_POINTS = ["before-persist:1", "after-persist:2"]
LINES = 8_000
PER_PARTITION = "200"  # 4 partitions: ten batches


@pytest.mark.parametrize(
    ("semantics", "points"),
    [("transactional", PERSIST_POINTS + COMMIT_POINTS), ("opaque", COMMIT_POINTS)],
    ids=["transactional", "opaque"],
)
@pytest.mark.timeout(400)
def test_killed_at_every_named_point(
    launcher: Launcher, services: Services, unique: str, semantics: str, points: list[str]
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(LINES))
    options = ["-p", f"semantics={semantics}", "-p", f"max_records_per_partition={PER_PARTITION}"]
    for point in points:
        killed = launcher.word_count(unique, unique, unique, *options, TXSTREAM_FAULT=f"kill@{point}")
        assert killed.status == -signal.SIGKILL, f"not killed at {point}: {killed.stderr}"
    finished = launcher.word_count(unique, unique, unique, *options)
    assert finished.status == 0, finished.stderr
    assert read_counts(launcher.database, unique) == truth
    batches = launcher.run("batches", unique, "--json").json()
    assert [batch["txid"] for batch in batches] == list(range(1, len(batches) + 1))
    assert {batch["status"] for batch in batches} == {"committed"}
    assert sum(batch["tuples"] for batch in batches) == LINES


def test_non_transactional_miscounts_when_killed_alike(
    launcher: Launcher, services: Services, unique: str
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(4_000))
    options = ["-p", "semantics=non-transactional", "-p", f"max_records_per_partition={PER_PARTITION}"]
    killed = launcher.word_count(unique, unique, unique, *options, TXSTREAM_FAULT="kill@after-commit:2")
    assert killed.status == -signal.SIGKILL, killed.stderr
    finished = launcher.word_count(unique, unique, unique, *options)
    assert finished.status == 0, finished.stderr
    counts = read_counts(launcher.database, unique)
    assert counts != truth
    assert sum(counts.values()) > sum(truth.values()), "a batch that was committed twice counts twice"


@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
@pytest.mark.timeout(600)
def test_killed_at_random_moments(
    launcher: Launcher, services: Services, unique: str, semantics: str
) -> None:
    seed = int(os.environ.get("TXSTREAM_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TXSTREAM_KILL_SEED={seed}")
    _kill_at_random_moments(launcher, services, unique, semantics, kills=3, rng=random.Random(seed))


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
@pytest.mark.timeout(1800)
def test_killed_at_many_random_moments(
    launcher: Launcher, services: Services, unique: str, semantics: str
) -> None:
    seed = int(os.environ.get("TXSTREAM_KILL_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TXSTREAM_KILL_SEED={seed}")
    _kill_at_random_moments(launcher, services, unique, semantics, kills=10, rng=random.Random(seed))


def _kill_at_random_moments(
    launcher: Launcher, services: Services, unique: str, semantics: str, *, kills: int, rng: random.Random
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(60_000))
    arguments = launcher.word_count_arguments(
        unique, unique, unique, "-p", f"semantics={semantics}", "-p", "max_records_per_partition=100"
    )
    hit = 0
    while hit < kills:
        command = launcher.start(*arguments)
        try:
            command.wait_for_line("running")
            moment = rng.uniform(0.0, 2.0)
            try:
                command.process.wait(moment)  # ending before the moment has come is a miss
            except subprocess.TimeoutExpired:
                hit += 1
        finally:
            command.kill()
        if command.process.returncode == 0:
            break
    assert hit, "the run was never hit while it ran; give it more to do"
    finished = launcher.word_count(unique, unique, unique, "-p", f"semantics={semantics}")
    assert finished.status == 0, finished.stderr
    assert read_counts(launcher.database, unique) == truth
