"""The story that a coordinator keeps, its invariants as code, and who shows them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.coordinators import TRANSACTIONAL, filled, make, metas, only
from support.inmemory import MemoryLog
from support.lists import each
from support.loops import DEADLINE_SECONDS, Run, World

import txstream.engine.run
from txstream.cli import run as run_module
from txstream.cli.main import main
from txstream.core.coordinator import BatchPhase, Coordinator, Plan
from txstream.core.errors import BatchFailedError, BoltError, CoordinatorError
from txstream.core.story import LONGEST_STORY, Story
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.core.waiting import RunAbortedError
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.run import start
from txstream.engine.start.batch_tier import BatchTier
from txstream.examples.word_count import topology as word_count
from txstream.settings import Settings


def told(coordinator: Coordinator[Any], txid: int | None = None) -> list[str]:
    """The story without its times."""
    lines = coordinator.story.lines(None if txid is None else Txid(txid))
    return [line.lstrip().split("  ", 1)[1] for line in lines]


def test_a_batch_leaves_its_events_and_commands() -> None:
    coordinator, (attempt,) = filled(TRANSACTIONAL, pending=1)
    coordinator.ack(attempt)
    coordinator.fail(attempt, "BoltError")
    assert told(coordinator, 1) == [
        "command  Plan txid 1, after sync",
        "event    planned txid 1",
        "command  Persist txid 1, after planned txid 1",
        "event    persisted txid 1",
        "command  EmitBatch txid 1 attempt 1.1, after persisted txid 1",
        "event    ack txid 1 attempt 1.1",
        "command  EmitCommit txid 1 attempt 1.1, after ack txid 1 attempt 1.1",
        "event    fail txid 1 attempt 1.1: BoltError",
        "command  Cancel txid 1 attempt 1.1, after fail txid 1 attempt 1.1",
        "command  EmitBatch txid 1 attempt 1.2, after fail txid 1 attempt 1.1",
    ]
    assert told(coordinator, 2) == []


def test_a_batch_tells_which_other_batch_had_it_cancelled() -> None:
    coordinator, (first, second) = filled(TRANSACTIONAL, pending=2)
    coordinator.fail(first, "BoltError")
    assert f"command  Cancel {second}, after fail {first}" in told(coordinator, second.txid)


def test_a_story_has_times_by_the_loops_clock_and_an_end() -> None:
    story, now = Story(), 10.0
    story.add("sync")
    story.clock = lambda: now
    for number in range(LONGEST_STORY - 1):
        story.add("ack", Txid(1), AttemptId(number))
    now = 12.5
    lines = story.lines()
    assert lines[0].split() == ["at", "the", "start", "event", "sync"]
    assert lines[-1].split()[:4] == ["2.500", "s", "ago", "event"]
    story.add("wake")
    assert len(story.lines()) == LONGEST_STORY
    assert not any("sync" in line for line in story.lines())


def test_a_refusal_shows_the_story() -> None:
    coordinator = make()
    coordinator.sync()
    with pytest.raises(CoordinatorError, match="was advanced, but") as caught:
        coordinator.advanced(Txid(7))
    assert caught.value.story[-1].endswith("advanced txid 7")
    assert "Plan txid 1" in "\n".join(caught.value.__notes__)


def test_an_answer_that_nobody_waits_for_is_in_the_story() -> None:
    coordinator = make()
    plan = only(coordinator.sync(), Plan)
    coordinator.planned(plan.ticket + 1, metas(0, 1))
    assert told(coordinator)[-1] == f"event    planned: ticket {plan.ticket + 1} is not waited for"


# --- invariants ------------------------------------------------------------------------------------


def gap(coordinator: Coordinator[Any]) -> None:
    del coordinator.active[Txid(1)]


def too_many(coordinator: Coordinator[Any]) -> None:
    coordinator.max_spout_pending = 1


def commits_early(coordinator: Coordinator[Any]) -> None:
    coordinator.active[Txid(2)].phase = BatchPhase.COMMITTING


def commits_two(coordinator: Coordinator[Any]) -> None:
    for batch in coordinator.active.values():
        batch.phase = BatchPhase.ADVANCING


def one_attempt_twice(coordinator: Coordinator[Any]) -> None:
    coordinator.active[Txid(2)].attempt = coordinator.active[Txid(1)].attempt


def no_metas(coordinator: Coordinator[Any]) -> None:
    coordinator._metas.remove(Txid(2))


def emitted_before_stored(coordinator: Coordinator[Any]) -> None:
    coordinator._persisting = Txid(2)


def two_plans(coordinator: Coordinator[Any]) -> None:
    coordinator._planning = Plan(9, Txid(3), coordinator.metas(Txid(2)).positions(), False)
    coordinator._persisting = Txid(3)


def plan_from_elsewhere(coordinator: Coordinator[Any]) -> None:
    coordinator._planning = Plan(9, Txid(3), coordinator.metas(Txid(1)).positions(), False)


def replay_of_a_committed_txid(coordinator: Coordinator[Any]) -> None:
    coordinator._replays.add(Txid(0))


def old_metas(coordinator: Coordinator[Any]) -> None:
    coordinator.active.clear()
    coordinator.current = Txid(3)


@each(
    ("broken", "sentence"),
    [
        (gap, "active txids have a gap"),
        (too_many, "more txids are active than may be"),
        (commits_early, "another txid than the current one commits"),
        (commits_two, "another txid than the current one commits"),
        (one_attempt_twice, "an attempt stands for two txids"),
        (no_metas, "an active txid has no metas"),
        (emitted_before_stored, "a plan was emitted before it was stored"),
        (two_plans, "two plans are made at once"),
        (plan_from_elsewhere, "a plan does not start where the txid before it ends"),
        (replay_of_a_committed_txid, "a committed txid is to be replayed"),
        (old_metas, "metas before those of the last committed txid are kept"),
    ],
)
def test_each_broken_invariant_is_found(broken: Callable[[Coordinator[Any]], None], sentence: str) -> None:
    coordinator, _ = filled(TRANSACTIONAL, pending=2)
    coordinator.check()
    broken(coordinator)
    with pytest.raises(CoordinatorError, match=sentence) as caught:
        coordinator.check()
    assert caught.value.story


# --- a run -----------------------------------------------------------------------------------------


def test_the_loop_logs_each_command_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "txstream.engine.loop.event_loop"):
        Run(World(MemoryLog({"a": ["the cat"]}))).complete()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("event_loop")]
    assert [line for line in said if "txid 1" in line] == [
        "Plan txid 1",
        "EmitBatch txid 1 attempt 1.1",
        "EmitCommit txid 1 attempt 1.1",
        "Advance txid 1 attempt 1.1",
    ]


def test_a_failed_attempt_has_its_reason_in_the_story() -> None:
    log = MemoryLog({"a": ["the cat"]})
    failed: list[TransactionAttempt] = []

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if not failed:
            failed.append(attempt)
            raise BatchFailedError("not yet")

    log.on_emit = on_emit
    run = Run(World(log)).complete()
    assert "event    fail txid 1 attempt 1.1: BatchFailedError" in told(run.loop.coordinator, 1)


@pytest.mark.parametrize("error", [RunAbortedError("stopped"), BoltError("a bolt raised"), KeyError("a bug")])
def test_the_error_of_a_run_has_the_story(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    stopped = isinstance(error, RunAbortedError)
    coordinator = make()
    coordinator.sync()
    loop = SimpleNamespace(
        coordinator=coordinator,
        statistics=SimpleNamespace(batches=0, failed_attempts=0, failure_reasons={}, first_txid=None),
    )

    def fail() -> None:
        raise error

    topology = word_count()
    tier = BatchTier(topology)
    tier.loop = cast(EventLoop, loop)
    driver = SimpleNamespace(tier=tier, run=fail, is_told_to_stop=stopped, state="running")
    monkeypatch.setattr(txstream.engine.run, "Driver", lambda *_, **__: driver)
    running = start(topology, settings=Settings(zookeeper="127.0.0.1:1"))
    with pytest.raises(type(error)) as caught:
        running.wait(DEADLINE_SECONDS)
    shown = getattr(caught.value, "story", None) or caught.value.__notes__
    assert "Plan txid 1" in "\n".join(shown)


# --- the command line ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options", "shown"),
    [
        (CoordinatorError, [], 20),
        (RunAbortedError, [], 20),
        (BoltError, [], 0),
        (BoltError, ["--verbose"], 30),
        (CoordinatorError, ["-v"], 30),
    ],
)
def test_who_shows_the_story(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    kind: Any,
    options: list[str],
    shown: int,
) -> None:
    error = kind("it ended")
    error.story = [f"moment {number}" for number in range(30)]

    def ends(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "_run", ends)
    run = ["run", "txstream.examples.word_count:topology", "--zookeeper", "127.0.0.1:1", *options]
    assert main(run) == 1
    *story, last = capsys.readouterr().err.splitlines()
    assert last == f"txstream: it ended (guide: errors.md, {kind.__name__})"
    assert [line for line in story if line.startswith("moment")] == error.story[30 - shown :]
    assert any("(--verbose shows more)" in line for line in story) is (shown == 20)
