"""The event loop waits for partitions, databases and the progress store, and loses nothing meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from support.inmemory import MemoryLog
from support.loops import DEADLINE_SECONDS, TOPOLOGY, Run, WatchedStates, World, failing_once, wait, words

from txstream.api.spouts import OpaqueSpout, TransactionalSpout, Unavailable
from txstream.core.errors import (
    BatchFailedError,
    ServiceUnavailableError,
)
from txstream.core.failing_batch import Wait
from txstream.core.fault_points import Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.waiting import RunAbortedError
from txstream.core.waits import wait_until
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.state import AnswerLostError, Commit
from txstream.testing import ManualClock
from txstream.zookeeper import WAITING, LostAnswerError
from txstream.zookeeper.paths import ROOT

HOLDS_THE_SAME = "txid 1 must hold the same tuples"
NO_OTHER = "no other can be read"
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
    clock = ManualClock()
    options = {"message_timeout_seconds": 30.0, "max_attempts": 1}
    run = Run(world, max_batch_records=100, clock=clock, options=options)

    def let_pass(seconds: float) -> None:
        """Let time pass until the loop has asked for the partition once more."""
        asked = len(shown)
        clock.advance(seconds)

        def is_asked_again() -> bool:
            clock.advance(0.01)  # the pause before the next question may only just have begun
            run.workers.wake()
            return len(shown) > asked

        assert wait_until(is_asked_again, DEADLINE_SECONDS)

    shown: list[str | None] = []
    stored: list[Sequence[Wait]] = []
    unreadable = run.spout.unreadable

    def watched(metas: Mapping[str, Any]) -> Any:
        stored.append(run.store.notes.get(WAITING) or ())
        shown.append(run.loop.waiting_for)
        return unreadable(metas)

    run.spout.unreadable = watched  # type: ignore[method-assign]
    run.start()
    for _ in range(3):
        let_pass(30)  # the time that one attempt may take
    assert run.runner.attempts == [], "started without the partition"
    [told] = stored[-1]
    assert (told.what, told.because, told.reason) == ("partition b", HOLDS_THE_SAME, "it is hidden")
    since = f"{told.since.astimezone():%H:%M:%S}"
    assert shown[-1] == str(told) == f"partition b since {since} ({HOLDS_THE_SAME})"
    log.hidden.clear()
    let_pass(1)
    run.finish()
    assert world.table.totals() == words(log)
    assert run.loop.waiting_for is None
    assert run.loop.statistics.failed_attempts == 0
    assert len(run.runner.attempts) == 1
    assert run.loop.statistics.recovered_batches == 1
    assert run.store.notes.get(WAITING) is None
    assert world.tree.get(f"{ROOT}/{TOPOLOGY}/waiting") is None


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


def test_the_stored_plans_behind_a_failed_one_wait_for_their_partitions_too() -> None:
    log = MemoryLog({"a": ["the cat", "the dog"], "b": ["the end"]})
    run = Run(World(log, TransactionalSpout), options={"max_spout_pending": 2})

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 1 and len([one for one in run.runner.attempts if one.txid == 1]) == 1:
            both = wait_until(lambda: any(one.txid == 2 for one in run.runner.results), DEADLINE_SECONDS)
            assert both, "the batch behind it was not processed"
            log.hidden.add("b")
            raise BatchFailedError("of itself, and b is lost meanwhile")

    log.on_emit = on_emit
    unreadable = run.spout.unreadable

    def watched(metas: Mapping[str, Any]) -> Any:
        answer = unreadable(metas)
        if answer:
            log.hidden.clear()
        return answer

    run.spout.unreadable = watched  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.statistics.failed_attempts == 1, "a batch was tried without its partition"


def test_several_partitions_are_waited_for_in_one_line_and_since_the_first_of_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The list shows what is still away. The log has the wait's begin and its end, not each change."""
    log = MemoryLog({f"t/{number}": ["the cat"] for number in range(12)})
    log.on_emit = failing_once(BatchFailedError("not now"), 1)
    run = Run(World(log, TransactionalSpout), max_batch_records=100)
    away = iter([[f"t/{n}" for n in range(12)], ["t/10", "t/9"], []])
    shown: list[str] = []

    def unreadable(metas: Mapping[str, Any]) -> Any:
        shown.append(str(run.loop.waiting_for))
        return {name: Unavailable("no broker") for name in next(away)}

    run.spout.unreadable = unreadable  # type: ignore[method-assign]
    run.complete()
    since = shown[1].partition(" since ")[2]
    assert since.endswith(f" ({HOLDS_THE_SAME})")
    first = f"partitions t/0, 1, 2, 3, 4, 5, 6, 7 and 4 more since {since}"
    assert shown == ["None", first, f"partitions t/9, 10 since {since}"]
    told = [one.message for one in caplog.records if "waiting" in one.message]
    assert told == [f"waiting for {first}: no broker", f"no longer waiting for {shown[2]}"]


def test_nothing_is_stored_of_waits_where_there_are_none(log: MemoryLog) -> None:
    run = Run(World(log, TransactionalSpout))
    writes: list[str] = []
    run.hook = lambda when, write: writes.append(write)
    run.complete()
    assert "advance" in writes
    assert "write_waiting" not in writes


def test_what_a_former_leader_waited_for_is_not_shown_as_the_present_ones(log: MemoryLog) -> None:
    world = World(log)
    former = Run(world)
    former.store.notes.put(WAITING, [Wait("partition b", datetime.now(UTC), "", "it is hidden")])
    assert former.store.notes.get(WAITING)
    assert Run(world).store.notes.get(WAITING) is None


@BOTH
def test_the_ledger_knows_what_a_failed_attempt_held(log: MemoryLog, spout: Any) -> None:
    """An opaque replay leaves out what is hidden by then; a transactional one holds the same tuples."""
    log = MemoryLog({"a": ["the cat"], "b": ["a dog"]})
    run = Run(World(log, spout), max_batch_records=100)

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if log.hidden == set() and attempt == run.runner.attempts[0]:
            log.hidden.update("b")
            raise BatchFailedError("not now")

    unreadable = run.spout.unreadable

    def back(metas: Mapping[str, Any]) -> Any:
        log.hidden.clear()
        return unreadable(metas)

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.AFTER_ADVANCE:
            log.hidden.clear()

    log.on_emit = on_emit
    run.listener = listener
    run.spout.unreadable = back  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)
    [failed] = MemoryBackend(run.world.table.url).batches(TOPOLOGY)[0].details["attempts"]
    assert failed["attempt"] == run.runner.attempts[0].attempt
    if spout is TransactionalSpout:
        assert failed["same"]
    else:
        held = {"a": {"start": 0, "end": 1}, "b": {"start": 0, "end": 1}}
        assert (failed["ranges"], failed["left_out"], failed["more"]) == (held, [], 0)


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


def test_a_run_without_a_partition_to_read_waits_for_them_and_stores_since_when() -> None:
    log = MemoryLog({name: ["the cat", "a dog"] for name in "ab"})
    run = Run(World(log), max_batch_records=1)
    stored: list[Sequence[Wait]] = []
    plans = itertools.count()

    def on_plan(last: Mapping[str, Any]) -> None:
        number = next(plans)
        if number in (2, 3):  # one partition goes, later the other one
            log.hidden.add("ab"[number - 2])
        if number > 3 and log.hidden:
            found = run.store.notes.get(WAITING)
            if found:
                stored.append(found)
                log.hidden.clear()

    log.on_plan = on_plan
    run.complete()
    [told] = stored[-1]
    assert (told.what, told.because, told.reason) == ("partitions a, b", NO_OTHER, "it is hidden")
    assert run.loop.waiting_for is None
    assert run.store.notes.get(WAITING) is None
    assert run.world.table.totals() == words(log)


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


class Trouble(WatchedStates):
    """A database as the committer sees it, which may be away. `fail` maps a commit's number to the error that
    it raises; with `applies`, such a commit is applied all the same."""

    fail: ClassVar[dict[int, Exception]]
    applies: ClassVar[bool]
    away: ClassVar[int]
    checks: ClassVar[int]
    shown: ClassVar[list[str | None]]
    run: ClassVar[Run]

    def commit(self, commit: Commit, **options: Any) -> None:
        trouble = type(self)
        error = trouble.fail.pop(len(trouble.run.world.table.attempts) + 1, None)
        if error is None or trouble.applies:
            super().commit(commit, **options)
        else:
            trouble.run.world.table.attempts.append(commit.attempt)
        if error is not None:
            raise error

    def outcome(self, attempt: TransactionAttempt) -> bool:
        type(self).ask()
        return super().outcome(attempt)

    @classmethod
    def ask(cls) -> None:
        cls.checks += 1
        cls.shown.append(cls.run.loop.waiting_for)
        if cls.away:
            cls.away -= 1
            raise ServiceUnavailableError("connection refused")


def with_database(log: MemoryLog, spout: Any = OpaqueSpout) -> tuple[Run, type[Trouble]]:
    class Mine(Trouble):
        fail: ClassVar[dict[int, Exception]] = {}
        applies = False
        away = 0
        checks = 0
        shown: ClassVar[list[str | None]] = []

    world = World(log, spout, states=Mine)
    Mine.run = Run(world)
    for target in Mine.run.services.targets:
        target.database.check = lambda: Mine.ask()  # type: ignore[method-assign]
    return Mine.run, Mine


@BOTH
def test_a_database_that_is_away_is_waited_for_and_then_a_new_attempt_is_made(
    log: MemoryLog, spout: Any
) -> None:
    run, database = with_database(log, spout)
    database.fail[2] = ServiceUnavailableError("the server restarts")
    database.away = 5
    run.complete()
    assert run.world.table.totals() == words(log)
    assert database.checks == 6
    assert database.shown[0] is None
    assert database.shown[1] is not None
    assert database.shown[1].startswith("database memory://loops-")
    first, failed, again, last = run.world.table.attempts
    assert [first.txid, failed.txid, again.txid, last.txid] == [1, 2, 2, 3]
    assert again > failed
    assert run.loop.statistics.failed_attempts == 1
    assert run.loop.waiting_for is None


@BOTH
def test_a_lost_answer_that_turns_out_to_be_a_commit_is_an_ack(log: MemoryLog, spout: Any) -> None:
    run, database = with_database(log, spout)
    database.fail[2] = AnswerLostError("the connection broke during COMMIT")
    database.applies = True
    database.away = 3
    run.complete()
    assert run.world.table.totals() == words(log)
    assert [attempt.txid for attempt in run.world.table.attempts] == [1, 2, 3]
    assert run.loop.statistics.failed_attempts == 0


def test_a_lost_answer_that_turns_out_to_be_no_commit_fails_the_attempt(log: MemoryLog) -> None:
    run, database = with_database(log)
    database.fail[1] = AnswerLostError("the connection broke during COMMIT")
    run.complete()
    assert run.world.table.totals() == words(log)
    assert [attempt.txid for attempt in run.world.table.attempts] == [1, 1, 2, 3]


def test_a_database_that_goes_away_again_before_it_tells_the_outcome_is_asked_again(log: MemoryLog) -> None:
    """Failing the attempt instead would be safe, but would process again what is already committed."""
    run, database = with_database(log)
    database.fail[1] = AnswerLostError("the connection broke during COMMIT")
    database.applies = True
    check = database.ask

    def answers_then_leaves() -> None:
        check()
        if database.checks == 1:
            database.away = 2

    database.ask = answers_then_leaves  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)
    assert [attempt.txid for attempt in run.world.table.attempts] == [1, 2, 3]


def test_a_run_that_waits_for_a_database_can_be_aborted(log: MemoryLog) -> None:
    run, database = with_database(log)
    database.fail[1] = ServiceUnavailableError("gone")
    database.away = 1 << 30
    waiting = threading.Event()
    check = database.ask

    def watched() -> None:
        waiting.set()
        check()

    database.ask = watched  # type: ignore[method-assign]
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
    assert [attempt.txid for attempt in run.world.table.attempts] == [1]
    assert run.loop.open_batches()[run.coordinator.current] == "advancing"
    answer.set()
    run.finish()
    assert run.world.table.totals() == words(log)
    assert [attempt.txid for attempt in run.world.table.attempts] == [1, 2, 3]
    assert run.loop.statistics.failed_attempts == 0


def test_an_attempt_whose_commit_was_acked_does_not_time_out(log: MemoryLog) -> None:
    run = Run(World(log), max_batch_records=100, options={"message_timeout_seconds": 0.2})
    passed = threading.Event()

    def hook(when: str, write: str) -> None:
        if (when, write) == ("before", "advance"):
            run.workers.post(lambda: run.workers.after(0.3, passed.set))
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


# --- services besides the log ----------------------------------------------------------------------


@BOTH
def test_a_batch_waits_for_a_service_of_its_source_and_no_attempt_counts(
    log: MemoryLog, spout: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log.on_emit = failing_once(ServiceUnavailableError("the registry is away"), 1)
    run = Run(World(log, spout), max_batch_records=100, options={"max_attempts": 1})
    answers = iter([{"the registry": "no answer"}, {"the registry": "no answer"}, {}])
    shown: list[str] = []

    def services_away() -> Mapping[str, str]:
        shown.append(str(run.loop.waiting_for))
        return next(answers)

    run.spout.services_away = services_away  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)
    assert [one.txid for one in run.runner.attempts] == [1, 1], "it was tried while the service was away"
    since = shown[1].removeprefix("the registry since ")
    assert since.endswith(" (txid 1 needs it)")
    assert shown == ["None", f"the registry since {since}", f"the registry since {since}"]
    told = [one.message for one in caplog.records if "waiting" in one.message]
    assert told == [f"waiting for {shown[1]}: no answer", f"no longer waiting for {shown[1]}"]
