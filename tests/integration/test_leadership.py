"""Two drivers with one topology id: a standby waits and takes over; a frozen leader that wakes is fenced."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.runs import Launcher, RunningCommand
from support.tables import read_counts
from support.texts import fill_topic, make_lines

from txstream.embedded import Services

LINES = 4_000
OPTIONS = ["-p", "max_records_per_partition=200", "--session-timeout", "3"]

# The message timeout bounds how long a frozen driver's open transaction can keep its locks.
IMPATIENT = """
import dataclasses
from txstream.examples import word_count


def topology(topic: str, table: str, semantics: str = "opaque"):
    built = word_count.topology(topic, semantics, table, max_records_per_partition=200)
    return dataclasses.replace(built, message_timeout_seconds=6.0)
"""


def wait_for_file(path: Path, command: RunningCommand, deadline_seconds: float = 60) -> dict[str, object]:
    """What the fault wrote before it froze the process."""
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


def freeze_succeed_wake(
    launcher: Launcher, tmp_path: Path, start: Callable[..., RunningCommand], point: str
) -> tuple[RunningCommand, RunningCommand]:
    """Freeze one driver at a point, let a standby finish, wake the first. Gives both, ended."""
    told = tmp_path / "frozen.json"
    first = start(TXSTREAM_FAULT=f"stop@{point}", TXSTREAM_FAULT_LOG=str(told))
    standby = None
    try:
        frozen = wait_for_file(told, first)
        standby = start()
        standby.wait(90)
        os.kill(int(str(frozen["pid"])), signal.SIGCONT)
        first.wait(60)
    finally:
        first.kill()
        if standby is not None:
            standby.kill()
    return first, standby


@pytest.mark.parametrize("point", ["before-commit:3", "before-advance:3"])
def test_frozen_driver_is_succeeded_and_fenced(
    launcher: Launcher, services: Services, unique: str, tmp_path: Path, point: str
) -> None:
    truth = fill_topic(services.kafka, unique, make_lines(LINES))
    arguments = launcher.word_count_arguments(unique, unique, unique, *OPTIONS)
    first, standby = freeze_succeed_wake(
        launcher, tmp_path, lambda **variables: launcher.start(*arguments, **variables), point
    )
    finished, fenced = standby.wait(), first.wait()
    assert finished.status == 0, finished.stderr
    assert fenced.status == 3, fenced.stderr
    assert read_counts(launcher.database, unique) == truth


@pytest.mark.parametrize("semantics", ["transactional", "opaque"])
def test_driver_frozen_inside_its_sql_transaction(
    launcher: Launcher, services: Services, postgres_url: str, unique: str, tmp_path: Path, semantics: str
) -> None:
    """PostgreSQL ends a transaction that idles; SQLite has no such thing, its lock ends with the process."""
    truth = fill_topic(services.kafka, unique, make_lines(LINES))
    (tmp_path / "impatient.py").write_text(IMPATIENT)
    launcher.database = postgres_url
    arguments = [
        *("run", "impatient:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}"),
        *("-p", f"semantics={semantics}", "--until", "caught-up", "--json", "--session-timeout", "3"),
    ]
    first, standby = freeze_succeed_wake(
        launcher, tmp_path, lambda **variables: launcher.start(*arguments, **variables), "inside-commit:3"
    )
    finished, fenced = standby.wait(), first.wait()
    assert finished.status == 0, finished.stderr
    assert fenced.status == 3, fenced.stderr
    assert read_counts(postgres_url, unique) == truth


@pytest.mark.parametrize(
    ("point", "session_seconds", "line"),
    [("before-commit:3", "12", "standing by"), ("inside-commit:3", "3", "lock")],
    ids=["standing by", "waiting for its lock"],
)
def test_standby_takes_over_when_the_leader_is_killed(
    launcher: Launcher,
    services: Services,
    unique: str,
    tmp_path: Path,
    point: str,
    session_seconds: str,
    line: str,
) -> None:
    """While the leader's session lives, the standby waits in the election and `--no-wait` is refused. Inside
    its transaction a frozen driver keeps SQLite's lock beyond its session: the standby waits for that too."""
    truth = fill_topic(services.kafka, unique, make_lines(LINES))
    arguments = launcher.word_count_arguments(
        unique, unique, unique, "-p", "max_records_per_partition=200", "--session-timeout", session_seconds
    )
    told = tmp_path / "frozen.json"
    leader = launcher.start(*arguments, TXSTREAM_FAULT=f"stop@{point}", TXSTREAM_FAULT_LOG=str(told))
    standby = None
    try:
        wait_for_file(told, leader)
        standby = launcher.start(*arguments)
        standby.wait_for_line(line)
        if line == "standing by":
            refused = launcher.run(*arguments, "--no-wait")
            assert refused.status == 1
            assert "Traceback" not in refused.stderr
            assert str(leader.process.pid) in refused.stderr, "the message names the present leader"
        leader.kill()
        finished = standby.wait()
    finally:
        leader.kill()
        if standby is not None:
            standby.kill()
    assert finished.status == 0, finished.stderr
    assert read_counts(launcher.database, unique) == truth
