"""The event loop: how long it runs, and what it replays."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from support.bolts import Split
from support.inmemory import MemoryLog, MemorySource, Range
from support.loops import DEADLINE_SECONDS, Run, World, failing_once, stop_when, wait, words

from txstream.api.bolts import OutputCollector
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.tuples import Tuple
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
)
from txstream.core.fault_points import Point
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.waits import wait_until
from txstream.engine.loop.workers import Lane
from txstream.plugins.testing.clock import ManualClock
from txstream.zookeeper import FAILING

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


# --- until when ------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("pending", [1, 2, 3])
def test_until_caught_up(log: MemoryLog, spout: Any, pending: int) -> None:
    run = Run(World(log, spout), options={"max_spout_pending": pending}).complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.caught_up
    statistics = run.loop.statistics
    assert (statistics.batches, statistics.records) == (3, 6)
    assert (statistics.first_txid, run.coordinator.current) == (1, 4)
    assert (statistics.failed_attempts, statistics.replayed_attempts) == (0, 0)
    assert [timing.txid for timing in statistics.timings] == [1, 2, 3]
    assert sum(timing.records for timing in statistics.timings) == 6


def test_an_empty_log_is_caught_up_at_once() -> None:
    run = Run(World(MemoryLog({"a": []}))).complete()
    assert run.loop.caught_up
    assert run.loop.statistics.batches == 0


def test_caught_up_means_the_end_as_it_was_at_the_start(log: MemoryLog) -> None:
    at_the_start = words(log)
    run = Run(World(log))
    log.partitions["b"].append("too late")
    run.complete()
    assert run.loop.caught_up
    assert run.world.table.totals() == at_the_start


def test_a_plan_that_reached_the_end_and_then_shrank_in_its_replay_is_not_caught_up(log: MemoryLog) -> None:
    """The plan of txid 2 finds that txid 1 reaches the end. Then txid 1 fails and goes on without b."""
    looked_further = threading.Event()
    came_back = threading.Event()
    tries: list[TransactionAttempt] = []

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if not tries:
            tries.append(attempt)
            wait(looked_further, "the next batch being planned")
            log.hidden.add("b")
            raise BatchFailedError("the leader of b moved")

    log.on_emit = on_emit
    run = Run(World(log), max_batch_records=100)
    reached = run.spout.reached
    answers: list[bool] = []

    def watched(last: Mapping[str, Range], targets: Mapping[str, Any]) -> bool:
        answer = reached(last, targets)
        answers.append(answer)
        if answer:
            looked_further.set()
        if looked_further.is_set() and not answer and run.world.table.batches:
            came_back.set()
        return answer

    run.spout.reached = watched  # type: ignore[method-assign]
    run.start()
    wait(came_back, "the shrunken batch being committed and found not to be all")
    assert run.world.table.totals() != words(log)
    log.hidden.clear()
    run.finish()
    assert run.loop.caught_up
    assert run.world.table.totals() == words(log)


@pytest.mark.parametrize(
    ("gather_seconds", "most", "gathered"),
    [(60.0, None, True), (60.0, 5, True), (60.0, 4, False), (0.001, None, False)],
)
def test_a_small_batch_gathers_while_the_one_before_is_processed_or_until_its_time_is_over(
    log: MemoryLog, gather_seconds: float, most: int | None, gathered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait if the source cut the last batch off at 4 records of a partition: more may be left."""
    monkeypatch.setattr(MemorySource, "max_records_per_partition", most)
    run = Run(World(log), until=2, max_batch_records=100, gather_seconds=gather_seconds)
    asked_again = threading.Event()
    jobs_beside: list[int] = []

    def on_plan(last: Mapping[str, Range]) -> None:
        beside = sum(batch.phase is BatchPhase.PROCESSING for batch in run.coordinator.active.values())
        jobs_beside.append(beside)
        if beside:
            asked_again.set()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 1 and partition == "a":
            if gathered:
                assert wait_until(
                    lambda: any(not t.is_deadline for t in run.workers.timers), DEADLINE_SECONDS
                )
            else:
                wait(asked_again, "the next batch being planned beside this job")
            log.partitions["a"].append("late")

    log.on_plan, log.on_emit = on_plan, on_emit
    run.workers.pauses = {60.0: 60.0}
    run.complete()
    assert asked_again.is_set() is not gathered
    assert (max(jobs_beside) == 0) is gathered
    assert run.world.table.totals() == words(log)


@pytest.mark.parametrize(("gather_seconds", "gathered"), [(60.0, True), (0.001, False)])
@pytest.mark.parametrize("pending", [2, 3])
def test_a_small_batch_gathers_until_the_one_before_is_committed(
    log: MemoryLog, gather_seconds: float, gathered: bool, pending: int
) -> None:
    """Planned earlier it would slow that one down, and wait for it with fewer records. To advance the one
    before is not waited for."""
    limits = {"max_spout_pending": pending}
    run = Run(World(log), until=3, max_batch_records=100, gather_seconds=gather_seconds, options=limits)
    planned = {txid: threading.Event() for txid in (1, 2)}  # the batch after this one
    open_then: list[set[BatchPhase]] = []

    def on_plan(last: Mapping[str, Range]) -> None:
        active = dict(run.coordinator.active)
        if active:
            open_then.append({batch.phase for batch in active.values()})
            planned.get(max(active), threading.Event()).set()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if partition == "a" and attempt.txid < 3:
            log.partitions["a"].append(f"late-{attempt.txid}")

    def before(attempt: TransactionAttempt) -> None:
        if attempt.txid == 1 and not gathered:
            wait(planned[1], "the second batch being planned beside the first one's commit")

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.BEFORE_ADVANCE and txid in planned:
            wait(planned[txid], "the next batch being planned before this one has advanced")

    log.on_plan, log.on_emit, run.world.table.before = on_plan, on_emit, before
    run.listener = listener
    run.workers.pauses = {60.0: 60.0}
    run.complete()
    assert gathered is all(phases == {BatchPhase.ADVANCING} for phases in open_then)
    assert sorted(run.world.table.batches) == [1, 2, 3]
    assert run.world.table.totals() == words(log)


def test_an_unreadable_partition_is_not_caught_up(log: MemoryLog) -> None:
    log.hidden.add("b")
    plans: list[Mapping[str, Range]] = []
    idle = threading.Event()

    run = Run(World(log))

    def on_plan(last: Mapping[str, Range]) -> None:
        plans.append(last)
        if len(plans) > 6 and run.coordinator.current == 3:
            idle.set()

    log.on_plan = on_plan
    run.start()
    wait(idle, "planning going on when the readable partition is committed")
    assert not run.loop.caught_up
    log.hidden.clear()
    run.finish()
    assert run.world.table.totals() == words(log)


@BOTH
def test_until_a_txid(log: MemoryLog, spout: Any) -> None:
    run = Run(World(log, spout), until=2).complete()
    assert sorted(run.world.table.batches) == [1, 2]
    assert run.coordinator.current == 3
    again = Run(run.world, until=2).complete()
    assert again.loop.statistics.batches == 0
    rest = Run(run.world, until=3).complete()
    assert rest.loop.statistics.first_txid == 3
    assert rest.world.table.totals() == words(log)


def test_a_source_that_pauses_does_not_end_a_run_before_its_txid() -> None:
    log = MemoryLog({"a": ["x"]})
    run = Run(World(log), until=2)
    asked_in_vain: list[None] = []

    def on_plan(last: Mapping[str, Range]) -> None:
        if run.coordinator.current == 2:
            if asked_in_vain:
                log.partitions["a"] = ["x", "y"]
            asked_in_vain.append(None)

    log.on_plan = on_plan
    run.complete()
    assert sorted(run.world.table.batches) == [1, 2]


@BOTH
def test_a_second_run_goes_on_where_the_first_ended(log: MemoryLog, spout: Any) -> None:
    world = World(log, spout)
    Run(world, until=1).complete()
    log.partitions["c"] = ["a new partition"]
    run = Run(world).complete()
    assert world.table.totals() == words(log)
    assert run.loop.statistics.first_txid == 2


def test_without_an_end_it_waits_for_more_until_it_is_stopped() -> None:
    log = MemoryLog({"a": []})
    run = Run(World(log), until=None)
    idle = threading.Event()
    log.on_plan = lambda last: idle.set()
    run.start()
    wait(idle, "a first plan with nothing in it")
    stop_when(run, lambda: run.world.table.totals() == {"x": 1, "y": 1})
    log.partitions["a"].append("x")
    log.partitions["b"] = ["y"]
    run.finish()
    assert run.coordinator.is_idle
    assert not run.loop.caught_up


# --- replays ---------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("txid", [1, 2, 3])
def test_a_failed_batch_is_replayed_with_all_later_ones(log: MemoryLog, spout: Any, txid: int) -> None:
    log.on_emit = failing_once(BatchFailedError("not now"), txid)
    run = Run(World(log, spout)).complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.statistics.failed_attempts == 1
    assert run.loop.statistics.replayed_attempts >= 1
    assert [a.txid for a in run.world.table.attempts] == [1, 2, 3]
    errors = run.world.table.errors
    assert [error is not None for error in errors] == [t == txid for t in (1, 2, 3)]
    assert "not now" in str(errors[txid - 1])


def test_replayed_attempts_counts_every_attempt_beyond_a_txids_first(log: MemoryLog) -> None:
    """Txid 1 fails once txid 2 has been read, so both are replayed."""
    second_read = threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 2:
            second_read.set()
        elif attempt.txid == 1 and not second_read.is_set():
            wait(second_read, "txid 2 being read")
            raise BatchFailedError("not now")

    log.on_emit = on_emit
    run = Run(World(log), options={"max_spout_pending": 2}).complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.statistics.failed_attempts == 1
    assert run.loop.statistics.replayed_attempts == 2
    assert len(run.runner.cancelled) == 2


def test_batch_failed_error_is_replayed_without_limit(log: MemoryLog) -> None:
    left = iter(range(12))

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if next(left, None) is not None:
            raise BatchFailedError("not now")

    log.on_emit = on_emit
    run = Run(World(log), options={"max_attempts": 2, "max_spout_pending": 1}).complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.statistics.failed_attempts == 12


def test_a_reason_for_failing_is_told_at_once_and_not_each_time(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    left = iter(range(12))

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        number = next(left, None)
        if number is not None:
            raise BatchFailedError("the service is away" if number else "it is full")

    log.on_emit = on_emit
    run = Run(World(log), options={"max_spout_pending": 1}).complete()
    told = [
        one.message
        for one in caplog.records
        if "will be replayed" in one.message and one.levelno >= logging.WARNING
    ]
    assert [message.rpartition(": ")[2] for message in told] == ["it is full", *["the service is away"] * 2]
    assert "10th time" in told[-1]
    full, away = (f"component 'lines': {why}" for why in ("it is full", "the service is away"))
    assert run.loop.statistics.failure_reasons == {full: 1, away: 11}
    failing = run.store.notes.get(FAILING)
    assert failing is not None
    assert (failing.txid, failing.attempt, failing.failed_attempts) == (
        1,
        run.runner.attempts[11].attempt,
        12,
    )
    assert all("the run's output has the message" in reason for reason in failing.reasons)


class NoDogs(Split):
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["value"] == "the dog":
            raise ValueError("no dogs")
        super().execute(tup, collector)


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_bug_stops_the_run_after_max_attempts_with_its_own_error(
    log: MemoryLog, max_attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("support.bolts.Split", NoDogs)
    run = Run(World(log), max_batch_records=1, options={"max_attempts": max_attempts, "max_spout_pending": 1})
    with pytest.raises(BoltError) as caught:
        run.complete()
    message = str(caught.value)
    assert message.startswith(
        f"txid 2 attempt 1.{1 + max_attempts}, component 'split', task 0: ValueError: no dogs"
    )
    assert "while processing Tuple(value='the dog')" in message
    assert caught.value.__notes__
    assert [a.txid for a in run.runner.attempts] == [1] + [2] * max_attempts
    assert sorted(run.world.table.batches) == [1], "data was skipped"


def test_an_attempt_that_takes_too_long_is_cancelled_and_replayed(log: MemoryLog) -> None:
    let_go = threading.Event()
    stuck: list[TransactionAttempt] = []

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 1 and not stuck:
            stuck.append(attempt)
            wait(let_go, "the test letting the stuck attempt go")

    log.on_emit = on_emit
    run = Run(World(log), until=None, options={"message_timeout_seconds": 0.3})
    all_in = threading.Event()

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is Point.AFTER_ADVANCE and txid == 3:
            all_in.set()

    run.listener = listener
    run.start()
    wait(all_in, "everything being committed beside the stuck attempt")
    assert stuck[0] in run.runner.cancelled
    winner = run.world.table.batches[stuck[0].txid][0]
    assert winner > stuck[0]
    let_go.set()  # its late answer must not count any more
    run.loop.stop()
    run.finish()
    assert run.world.table.totals() == words(log)
    assert run.world.table.batches[stuck[0].txid][0] == winner
    told = [error for error in run.world.table.errors if error is not None]
    assert len(told) == 1
    assert "was not processed within 0.3 s (message_timeout_seconds)" in told[0]


def test_one_thread_commits_whatever_was_given_up(log: MemoryLog) -> None:
    """The next attempt's commit is submitted while the attempt that was given up is still committing."""
    run = Run(World(log), options={"max_spout_pending": 1})
    others = set(threading.enumerate())
    given_up, committing = set[TransactionAttempt](), set[threading.Thread]()
    asked_again = threading.Event()
    submit = run.workers.submit

    def asked(lane: Lane, *arguments: Any, **options: Any) -> None:
        submit(lane, *arguments, **options)
        if given_up and lane is Lane.COMMIT and options["attempt"] not in given_up:
            committing.update(t for t in threading.enumerate() if t.name.startswith("txstream-commit"))
            asked_again.set()

    def before(attempt: TransactionAttempt) -> None:
        if not given_up:
            given_up.add(attempt)
            gave_up = BatchFailedError("given up")
            run.workers.post(lambda: run.loop.failures.failed(attempt, gave_up))
            wait(asked_again, "the commit of the next attempt being asked for")

    run.workers.submit = asked  # type: ignore[method-assign]
    run.world.table.before = before
    run.complete()
    assert len(committing - others) == 1
    assert run.world.table.totals() == words(log)


def test_a_runs_first_attempts_and_those_after_a_timeout_have_the_warm_up_on_top(log: MemoryLog) -> None:
    """A cancelled worker starts anew. One that needs longer than the timeout would never get warm."""
    let_go = {1: threading.Event(), 2: threading.Event()}
    emitted: queue.Queue[TransactionAttempt] = queue.Queue()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid in let_go and not let_go[attempt.txid].is_set():
            emitted.put(attempt)
            wait(let_go[attempt.txid], "the test letting the attempts go")

    log.on_emit = on_emit
    clock = ManualClock()
    options = {"message_timeout_seconds": 30.0, "max_spout_pending": 1}
    run = Run(World(log), clock=clock, warm_up_seconds=20.0, options=options)
    clock.listen(run.workers.wake)

    def look() -> None:
        passed = threading.Event()
        run.workers.post(passed.set)
        wait(passed, "the loop having looked at the time")

    run.start()
    for txid, seconds, is_last in ((1, 50.0, False), (1, 50.0, True), (2, 30.0, True)):
        attempt = emitted.get(timeout=DEADLINE_SECONDS)
        assert attempt.txid == txid
        look()  # its deadline is set by the event that began it
        clock.advance(seconds - 0.5)
        look()
        assert attempt not in run.runner.cancelled
        clock.advance(0.5)
        assert wait_until(lambda attempt=attempt: attempt in run.runner.cancelled, DEADLINE_SECONDS)  # type: ignore[misc]
        look()
        if is_last:
            let_go[txid].set()
        assert wait_until(
            lambda: any(not timer.is_deadline for timer in run.workers.timers), DEADLINE_SECONDS
        )
        clock.advance(1)  # the pause before the next attempt
    run.finish()
    assert run.world.table.totals() == words(log)
    first, second, warm = run.loop.statistics.failure_reasons
    so_long = "within 50 s (message_timeout_seconds and the workers' warm-up)"
    assert so_long in first
    assert f"{so_long}, nor was the attempt before it; the batch has 2 records" in second
    assert "within 30 s (message_timeout_seconds)" in warm


def test_stuck_jobs_cannot_keep_others_from_being_cancelled(log: MemoryLog) -> None:
    """As many attempts hang as there are threads for jobs. Each must still be cancelled, which ends it."""
    cancelled: dict[TransactionAttempt, threading.Event] = {}
    tries = iter(range(5))

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if next(tries, None) is not None:
            wait(cancelled.setdefault(attempt, threading.Event()), f"{attempt} being cancelled")
            raise BatchFailedError("cancelled")

    log.on_emit = on_emit
    run = Run(World(log), options={"message_timeout_seconds": 0.05, "max_spout_pending": 1})
    run.runner.cancel = lambda attempt: cancelled.setdefault(attempt, threading.Event()).set()  # type: ignore[method-assign]
    run.complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.statistics.failed_attempts >= 5


def test_an_opaque_replay_goes_on_without_a_lost_partition_whose_tuples_come_later(log: MemoryLog) -> None:
    lost = threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if partition == "b" and not lost.is_set():
            lost.set()
            log.hidden.add("b")

    log.on_emit = on_emit
    run = Run(World(log), max_batch_records=100, until=None)
    without_b = threading.Event()
    asked: list[Any] = []
    run.spout.unreadable = lambda metas: asked.append(metas) or {}  # type: ignore[method-assign, func-returns-value]

    def before(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2:
            assert run.world.table.totals() == {"the": 2, "cat": 2, "dog": 1, "a": 1}
        elif lost.is_set():
            without_b.set()

    run.world.table.before = before
    run.start()
    wait(without_b, "a commit without the lost partition")
    log.hidden.clear()
    stop_when(run, lambda: run.world.table.totals() == words(log))
    run.finish()
    assert sorted(run.world.table.batches) == [1, 2]
    assert asked == [], "only a stored plan waits for its partitions"
