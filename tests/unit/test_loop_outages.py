"""The event loop waits for partitions, databases and the progress store, and loses nothing meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from support.bolts import word_count
from support.inmemory import MemoryLog
from support.loops import DEADLINE_SECONDS, Run, World, failing_once, wait, words

from txstream.api.errors import (
    BatchFailedError,
    ServiceUnavailableError,
)
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.engine.commit.committer import Committer, StateTarget
from txstream.engine.driver.loop import RunAbortedError
from txstream.state import AnswerLostError, TableSpec
from txstream.testing import ManualClock
from txstream.transaction import TransactionAttempt
from txstream.zookeeper import LostAnswerError

pytestmark = pytest.mark.usefixtures("impatient")
BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


# --- stored plans ----------------------------------------------------------------------------------


def test_waiting_for_a_partition_of_a_stored_plan_is_visible_and_no_attempt_of_it_counts(
    log: MemoryLog,
) -> None:
    world = World(log, TransactionalSpout)
    first = Run(world, max_batch_records=100, until=None)

    def crash(when: str, write: str) -> None:
        if (when, write) == ("after", "persist"):
            raise RunAbortedError("killed after its first plan was stored")

    first.hook = crash
    with pytest.raises(RunAbortedError, match="killed after"):
        first.complete()
    log.hidden.add("b")
    run = Run(world, max_batch_records=100, options={"message_timeout_seconds": 30.0, "max_attempts": 1})
    events, clock = run.loop._events, ManualClock()
    events.clock = clock

    def let_pass(seconds: float) -> None:
        clock.advance(seconds)
        events.wake()

    shown: list[str | None] = []
    unreadable = run.spout.unreadable

    def watched(metas: Mapping[str, Any]) -> Any:
        shown.append(run.loop.waiting_for)
        return unreadable(metas)

    run.spout.unreadable = watched  # type: ignore[method-assign]
    run.start()
    for _ in range(3):
        let_pass(30)  # as much as an attempt may take
        with events.changed:
            assert events.changed.wait_for(lambda: events.is_quiet(0), DEADLINE_SECONDS)
    assert run.runner.attempts == [], "started without the partition"
    assert shown[-1] is not None
    assert shown[-1].startswith("partition b since ")
    log.hidden.clear()
    let_pass(1)
    run.finish()
    assert world.table.totals() == words(log)
    assert run.loop.waiting_for is None
    assert run.loop.statistics.failed_attempts == 0
    assert len(run.runner.attempts) == 1
    assert run.loop.statistics.recovered_batches == 1


def test_a_transactional_replay_waits_for_a_partition_that_was_lost_meanwhile(log: MemoryLog) -> None:
    lost = threading.Event()
    asked = threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if partition == "b" and not lost.is_set():
            lost.set()
            log.hidden.add("b")

    log.on_emit = on_emit
    run = Run(World(log, TransactionalSpout), max_batch_records=100)
    unreadable = run.spout.unreadable

    def watched(metas: Mapping[str, Any]) -> Any:
        asked.set()
        return unreadable(metas)

    run.spout.unreadable = watched  # type: ignore[method-assign]
    run.start()
    wait(asked, "the replay asking for its partitions")
    assert run.world.table.batches == {}
    log.hidden.clear()
    run.finish()
    assert run.world.table.totals() == words(log)
    assert sorted(run.world.table.batches) == [1], "the replay held all that the first plan did"


def test_partitions_that_batches_go_without_are_told_once_and_when_they_are_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = MemoryLog({name: ["the cat", "a dog"] for name in "abc"})
    log.hidden.update("bc")
    plans = iter(range(6))

    def on_plan(last: Mapping[str, Any]) -> None:
        if next(plans, None) is None:
            log.hidden.clear()

    log.on_plan = on_plan
    run = Run(World(log), max_batch_records=1).complete()
    assert run.world.table.totals() == words(log)
    assert [one.message for one in caplog.records] == [
        "batches go on without partitions b, c until they can be read: it is hidden",
        "batches have partitions b, c again",
    ]


def test_partitions_that_cannot_be_asked_about_are_waited_for_too(log: MemoryLog) -> None:
    log.on_emit = failing_once(BatchFailedError("not now"), 1)
    run = Run(World(log, TransactionalSpout))
    answers: Iterator[Exception] = iter([ServiceUnavailableError("no broker"), BatchFailedError("no leader")])

    def unreadable(metas: Mapping[str, Any]) -> Any:
        error = next(answers, None)
        if error is not None:
            raise error
        return {}

    run.spout.unreadable = unreadable  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)


# --- databases -------------------------------------------------------------------------------------


class Database:
    """A database as the committer sees it, which may be away."""

    url_for_people = "sqlite:///words.db"

    def __init__(self, run: Callable[[], Run]) -> None:
        self._run = run
        self.fail: dict[int, Exception] = {}
        self.away = 0
        self.checks = 0
        self.shown: list[str | None] = []
        self.commits: list[TransactionAttempt] = []
        self.committed: set[TransactionAttempt] = set()
        self.table: dict[int, dict[str, int]] = {}
        self.apply_failed = False

    @property
    def store(self) -> Database:
        return self

    def of(self, *life: Any) -> Database:
        return self

    def commit(self, commit: Any, *, reached: Any) -> None:
        self.commits.append(commit.attempt)
        error = self.fail.pop(len(self.commits), None)
        if error is None or self.apply_failed:
            rows = commit.deltas["words"].to_pylist()
            self.table[commit.attempt.txid] = {row["word"]: row["n"] for row in rows}
            self.committed.add(commit.attempt)
        if error is not None:
            raise error

    def _ask(self) -> None:
        self.checks += 1
        self.shown.append(self._run().loop.waiting_for)
        if self.away:
            self.away -= 1
            raise ServiceUnavailableError("connection refused")

    def check(self) -> None:
        self._ask()

    def outcome(self, attempt: TransactionAttempt) -> bool:
        self._ask()
        return attempt in self.committed

    def totals(self) -> dict[str, int]:
        totals: Counter[str] = Counter()
        for deltas in self.table.values():
            totals.update(deltas)
        return dict(totals)


def with_database(log: MemoryLog, spout: Any = OpaqueSpout) -> tuple[Run, Database]:
    runs: list[Run] = []
    database = Database(lambda: runs[0])
    topology = word_count(log, spout=spout, parallelism=2)
    (bolt, semantics), *_ = topology.states
    table = TableSpec(bolt.state, semantics, bolt.reducers)
    target = StateTarget(database, (table,), ("store",))  # type: ignore[arg-type]  # all the committer needs
    committer = Committer(
        topology, "u", [target], wait_for=lambda what, check: runs[0].loop.wait_for(what, check)
    )
    runs.append(Run(World(log, spout), committer=committer))
    return runs[0], database


@BOTH
def test_a_database_that_is_away_is_waited_for_and_then_a_new_attempt_is_made(
    log: MemoryLog, spout: Any
) -> None:
    run, database = with_database(log, spout)
    database.fail[2] = ServiceUnavailableError("the server restarts")
    database.away = 5
    run.complete()
    assert database.totals() == words(log)
    assert database.checks == 6
    assert database.shown[0] is None
    assert database.shown[1] is not None
    assert database.shown[1].startswith("database sqlite:///words.db since ")
    first, failed, again, last = database.commits
    assert [first.txid, failed.txid, again.txid, last.txid] == [1, 2, 2, 3]
    assert again > failed
    assert run.loop.statistics.failed_attempts == 1
    assert run.loop.waiting_for is None


@BOTH
def test_a_lost_answer_that_turns_out_to_be_a_commit_is_an_ack(log: MemoryLog, spout: Any) -> None:
    run, database = with_database(log, spout)
    database.fail[2] = AnswerLostError("the connection broke during COMMIT")
    database.apply_failed = True
    database.away = 3
    run.complete()
    assert database.totals() == words(log)
    assert [attempt.txid for attempt in database.commits] == [1, 2, 3]
    assert run.loop.statistics.failed_attempts == 0


def test_a_lost_answer_that_turns_out_to_be_no_commit_fails_the_attempt(log: MemoryLog) -> None:
    run, database = with_database(log)
    database.fail[1] = AnswerLostError("the connection broke during COMMIT")
    run.complete()
    assert database.totals() == words(log)
    assert [attempt.txid for attempt in database.commits] == [1, 1, 2, 3]


def test_a_database_that_goes_away_again_before_it_tells_the_outcome_is_asked_again(log: MemoryLog) -> None:
    """Failing the attempt instead would be safe, but process again what is committed already."""
    run, database = with_database(log)
    database.fail[1] = AnswerLostError("the connection broke during COMMIT")
    database.apply_failed = True
    check = database.check

    def answers_then_leaves() -> None:
        check()
        if database.checks == 1:
            database.away = 2

    database.check = answers_then_leaves  # type: ignore[method-assign]
    run.complete()
    assert database.totals() == words(log)
    assert [attempt.txid for attempt in database.commits] == [1, 2, 3]


def test_a_run_that_waits_for_a_database_can_be_aborted(log: MemoryLog) -> None:
    run, database = with_database(log)
    database.fail[1] = ServiceUnavailableError("gone")
    database.away = 1 << 30
    waiting = threading.Event()
    check = database.check

    def watched() -> None:
        waiting.set()
        check()

    database.check = watched  # type: ignore[method-assign]
    run.start()
    wait(waiting, "the database being asked")
    run.loop.abort()
    with pytest.raises(RunAbortedError):
        run.finish()


# --- advance ---------------------------------------------------------------------------------------


@BOTH
def test_advance_is_repeated_until_it_is_answered_and_no_commit_begins_before(
    log: MemoryLog, spout: Any
) -> None:
    run = Run(World(log, spout))
    advancing, answer = threading.Event(), threading.Event()
    lost = iter(range(3))

    def hook(when: str, write: str) -> None:
        if write != "advance":
            return
        if when == "before":
            advancing.set()
            wait(answer, "the test letting ZooKeeper answer")
        if next(lost, None) is not None:
            raise LostAnswerError("the session moved")

    run.hook = hook
    run.start()
    wait(advancing, "the first advance")
    assert [attempt.txid for attempt in run.committer.attempts] == [1]
    assert run.loop.open_batches()[run.coordinator.current] == "advancing"
    answer.set()
    run.finish()
    assert run.world.table.totals() == words(log)
    assert [attempt.txid for attempt in run.committer.attempts] == [1, 2, 3]
    assert run.loop.statistics.failed_attempts == 0


def test_an_attempt_whose_commit_was_acked_does_not_time_out(log: MemoryLog) -> None:
    run = Run(World(log), max_batch_records=100, options={"message_timeout_seconds": 0.2})
    passed = threading.Event()

    def hook(when: str, write: str) -> None:
        if (when, write) == ("before", "advance"):
            run.loop._events.post(lambda: run.loop._events.after(0.3, passed.set))
            wait(passed, "more time passing than an attempt may take")

    run.hook = hook
    run.complete()
    assert run.loop.statistics.failed_attempts == 0
    assert len(run.runner.attempts) == 1


def test_a_run_whose_advance_is_never_answered_can_be_aborted_and_is_recovered(log: MemoryLog) -> None:
    world = World(log)
    run = Run(world)
    asked = iter(range(3))
    asked_often = threading.Event()

    def hook(when: str, write: str) -> None:
        if (when, write) == ("before", "advance"):
            if next(asked, None) is None:
                asked_often.set()
            raise LostAnswerError("nobody answers")

    run.hook = hook
    run.start()
    wait(asked_often, "the advance being repeated")
    run.loop.abort()
    with pytest.raises(RunAbortedError):
        run.finish()
    assert run.coordinator.current == 1
    assert sorted(world.table.batches) == [1]
