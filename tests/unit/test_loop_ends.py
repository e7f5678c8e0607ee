"""What stops the event loop, what ends it with an error, and the points where a driver may die."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from support.inmemory import MemoryCoordinator, MemoryLog, Range
from support.lists import each
from support.loops import Run, World, failing_once, wait, words

from txstream.api.spouts import OpaqueSpout, TransactionalSpout, Unavailable
from txstream.core.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    DataLostError,
    FencedError,
    MetaTooLargeError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateValueError,
)
from txstream.core.fault_points import WRITE_POINTS, Point
from txstream.core.transaction import Epoch, TransactionAttempt, Txid
from txstream.core.waiting import BACKOFF, RunAbortedError
from txstream.core.waits import wait_until
from txstream.engine.letters.retry_policy import TxidFailures, Verdict, judge
from txstream.engine.start.run_services import RunServices
from txstream.settings import Settings
from txstream.testing import InProcessRunner

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


# --- succession ------------------------------------------------------------------------------------


def test_a_run_that_was_succeeded_ends_though_it_has_nothing_to_write() -> None:
    run = Run(World(MemoryLog({})), until=None).start()
    services: Any = RunServices(run.topology, Settings(), runner_factory=InProcessRunner)
    services.workers = run.workers
    services._store = run.store
    services._leadership = SimpleNamespace(held=False, acquire=lambda **_: run.driver.abort())
    Run(run.world)
    services.watch(run.loop)
    run.loop.abort()  # changes nothing if the watch has already ended it
    with pytest.raises(FencedError, match="has a newer leader"):
        run.finish()


# --- starting --------------------------------------------------------------------------------------


def test_the_end_of_the_log_is_waited_for_and_that_is_said_once(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    errors = iter([PartitionUnavailableError("lines/2: it has no leader")] * 3)

    def targets(self: MemoryCoordinator) -> Mapping[str, Any]:
        for error in errors:
            raise error
        return everything(self)

    everything = MemoryCoordinator.targets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryCoordinator, "targets", targets)
        run = Run(World(log))
        assert run.loop.log_end.targets is None
        run.complete()
    assert run.loop.log_end.targets == {"a": 4, "b": 2}
    assert run.loop.caught_up
    began, ended = caplog.messages
    assert began.startswith("waiting for the end of the log since ")
    assert began.endswith(": lines/2: it has no leader")
    assert ended.startswith("no longer waiting for the end of the log")


@BOTH
def test_what_can_be_read_is_committed_while_the_end_of_the_log_is_not_known(
    log: MemoryLog, spout: Any
) -> None:
    def targets(self: MemoryCoordinator) -> Mapping[str, Any]:
        if log.hidden:
            raise PartitionUnavailableError("b: it has no leader")
        return everything(self)

    committed = threading.Event()

    def before(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2:
            committed.set()

    everything = MemoryCoordinator.targets
    log.hidden.add("b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryCoordinator, "targets", targets)
        run = Run(World(log, spout))
        run.world.table.before = before
        run.start()
        wait(committed, "all of a is committed")
        assert run.loop.waiting_for is not None
        assert run.loop.waiting_for.startswith("the end of the log since ")
        assert not run.loop.caught_up
        log.hidden.clear()
        run.finish()
    assert run.loop.caught_up
    assert run.world.table.totals() == words(log)


def test_another_error_than_an_outage_ends_the_run(log: MemoryLog) -> None:
    log.hidden.add("b")

    def targets(self: MemoryCoordinator) -> Mapping[str, Any]:
        if log.hidden:
            log.hidden.clear()
            raise PartitionUnavailableError("b: it has no leader")
        raise DataLostError("b is gone")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryCoordinator, "targets", targets)
        run = Run(World(log))
        with pytest.raises(DataLostError, match="b is gone"):
            run.complete()


# --- stopping --------------------------------------------------------------------------------------


@BOTH
def test_stop_ends_on_a_txid_boundary(log: MemoryLog, spout: Any) -> None:
    run = Run(World(log, spout), until=None, max_batch_records=1, options={"max_spout_pending": 2})
    committing, stopped = threading.Event(), threading.Event()

    def before(attempt: TransactionAttempt) -> None:
        committing.set()
        wait(stopped, "the test asking for the stop")

    run.world.table.before = before
    run.start()
    wait(committing, "the first commit")
    run.loop.stop()
    stopped.set()
    run.finish()
    assert run.coordinator.is_idle
    assert run.coordinator.current == len(run.world.table.batches) + 1
    opened = {attempt.txid for attempt in run.runner.attempts}
    assert opened == set(run.world.table.batches), "something was left open"
    assert len(opened) < 6, "the stop came too late to show anything"
    rest = Run(run.world).complete()
    assert rest.world.table.totals() == words(log)
    assert rest.loop.statistics.replayed_attempts == 0


def test_stop_does_not_wait_for_a_source_that_is_away(log: MemoryLog) -> None:
    asked = iter(range(4))
    asked_often = threading.Event()

    def on_plan(last: Mapping[str, Range]) -> None:
        if next(asked, None) is None:
            asked_often.set()
        raise ServiceUnavailableError("no broker answers")

    log.on_plan = on_plan
    run = Run(World(log), until=None).start()
    wait(asked_often, "planning being tried again")
    assert run.loop.waiting_for is not None
    assert run.loop.waiting_for.startswith("the source since ")
    run.loop.stop()
    run.finish()


def test_a_database_that_planning_needs_is_waited_for_by_its_name(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(World(log))
    away = iter(range(3))

    def next_letters(*_: Any) -> tuple[Any, ...]:
        if next(away, None) is not None:
            error = ServiceUnavailableError("it does not answer; start or repair it")
            error.service = "database postgresql://h/db"
            raise error
        return ()

    retries: Any = run.loop._planning._retries
    retries.next = next_letters
    retries._asked.append(None)
    run.start()
    assert wait_until(lambda: "no longer waiting for database postgresql://h/db" in caplog.text, 30.0)
    assert "waiting for the source" not in caplog.text
    run.loop.abort()
    with pytest.raises(RunAbortedError):
        run.finish()


def test_a_source_that_comes_back_is_planned_from(log: MemoryLog) -> None:
    away = iter(range(3))

    def on_plan(last: Mapping[str, Range]) -> None:
        if next(away, None) is not None:
            raise ServiceUnavailableError("no broker answers")

    log.on_plan = on_plan
    run = Run(World(log)).complete()
    assert run.world.table.totals() == words(log)
    assert run.loop.waiting_for is None


def test_abort_ends_at_once_and_the_next_run_recovers(log: MemoryLog) -> None:
    world = World(log)
    run = Run(world, until=None)
    reading, let_go = threading.Event(), threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        reading.set()
        wait(let_go, "the end of the test")

    log.on_emit = on_emit
    run.start()
    wait(reading, "a batch being read")
    run.loop.abort()
    with pytest.raises(RunAbortedError, match="the run was aborted"):
        run.finish()
    assert run.runner.cancelled
    assert world.table.batches == {}
    let_go.set()
    log.on_emit = None
    Run(world).complete()
    assert world.table.totals() == words(log)


def test_abort_with_a_reason_raises_the_reason(log: MemoryLog) -> None:
    run = Run(World(log), until=None)
    run.loop.abort(FencedError("a newer leader"))
    with pytest.raises(FencedError, match="a newer leader"):
        run.complete()


# --- what ends the run -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [DataLostError("offset 5 is gone"), StateValueError("a null in a key")], ids=["lost", "value"]
)
def test_an_error_in_the_data_ends_the_run_at_its_first_attempt(log: MemoryLog, error: Exception) -> None:
    log.on_emit = failing_once(error, 2)
    run = Run(World(log), options={"max_spout_pending": 1})
    with pytest.raises(type(error), match=str(error)):
        run.complete()
    assert sorted(run.world.table.batches) == [1]
    assert [attempt.txid for attempt in run.runner.attempts] == [1, 2]


@BOTH
def test_batches_before_the_one_with_the_error_are_committed_first(log: MemoryLog, spout: Any) -> None:
    """Otherwise every run would end before them again, and none would ever reach the batch with the error."""
    found = threading.Event()

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 2:
            found.set()
            raise DataLostError("offset 5 is gone")

    log.on_emit = on_emit
    run = Run(World(log, spout), options={"max_spout_pending": 2})
    run.world.table.before = lambda attempt: wait(found, "the error of the batch behind")
    with pytest.raises(DataLostError, match="offset 5 is gone"):
        run.complete()
    assert sorted(run.world.table.batches) == [1]
    assert run.coordinator.current == 2, "the batch before it was committed, but its progress is not stored"


def test_an_error_of_a_superseded_attempt_does_not_end_the_run(log: MemoryLog) -> None:
    """The batch before it is replayed, and so is its own. What counts is how the new attempt ends."""
    found = threading.Event()
    committed: list[TransactionAttempt] = []

    def on_emit(attempt: TransactionAttempt, partition: str) -> None:
        if attempt.txid == 2 and not found.is_set():
            found.set()
            raise DataLostError("offset 5 is gone")

    def before(attempt: TransactionAttempt) -> None:
        wait(found, "the error of the batch behind")
        committed.append(attempt)
        if len(committed) == 1:
            raise BatchFailedError("once more")

    log.on_emit = on_emit
    run = Run(World(log), options={"max_spout_pending": 2})
    run.world.table.before = before
    run.complete()
    assert run.loop.caught_up
    assert run.world.table.totals() == words(log)


def test_an_error_in_the_data_found_by_the_commit_ends_the_run(log: MemoryLog) -> None:
    run = Run(World(log))

    def before(attempt: TransactionAttempt) -> None:
        raise StateValueError("n is out of range")

    run.world.table.before = before
    with pytest.raises(StateValueError, match="n is out of range"):
        run.complete()
    assert len(run.world.table.attempts) == 1


def test_a_plan_that_cannot_be_made_for_another_reason_than_an_outage_ends_the_run(log: MemoryLog) -> None:
    def on_plan(last: Mapping[str, Range]) -> None:
        raise DataLostError("the topic was created again")

    log.on_plan = on_plan
    with pytest.raises(DataLostError, match="created again"):
        Run(World(log)).complete()


def test_metas_that_could_not_be_stored_are_refused_before_the_batch_is_emitted(log: MemoryLog) -> None:
    """After the batch's commit it would be too late: the progress store could never follow."""
    run = Run(World(log, OpaqueSpout))

    def check_size(metas: Any) -> None:
        raise MetaTooLargeError("two megabytes")

    run.store.check_size = check_size  # type: ignore[method-assign]
    with pytest.raises(MetaTooLargeError, match="two megabytes"):
        run.complete()
    assert run.runner.attempts == []


def test_a_newer_leader_ends_the_run_as_fenced(log: MemoryLog) -> None:
    world = World(log)
    run = Run(world)

    def before(attempt: TransactionAttempt) -> None:
        Run(world).store.claim_epoch(Epoch(0))
        raise StaleAttemptError("the fence is at attempt 2.0")

    run.world.table.before = before
    with pytest.raises(FencedError, match="has a newer leader"):
        run.complete()
    assert world.table.batches == {}


def test_a_newer_fence_under_my_own_epoch_ends_the_run_too(log: MemoryLog) -> None:
    run = Run(World(log))

    def before(attempt: TransactionAttempt) -> None:
        raise StaleAttemptError("the fence is at attempt 1.9")

    run.world.table.before = before
    with pytest.raises(StaleAttemptError, match=r"attempt 1\.9"):
        run.complete()


def test_what_a_superseded_attempt_meets_at_the_fence_does_not_end_the_run(log: MemoryLog) -> None:
    """It is the fence of its own successor, which goes on."""
    log.on_emit = failing_once(BatchFailedError("once"), 1)
    run = Run(World(log))
    late: list[TransactionAttempt] = []

    def before(attempt: TransactionAttempt) -> None:
        if not late:
            late.append(run.runner.attempts[0])
            stale = StaleAttemptError("the fence is at a newer attempt")
            run.loop.workers.post(lambda: run.loop.failures.failed(late[0], stale))

    run.world.table.before = before
    run.complete()
    assert late[0] not in run.world.table.attempts
    assert run.world.table.totals() == words(log)


def test_a_newer_leader_is_noticed_by_the_progress_store(log: MemoryLog) -> None:
    world = World(log)
    run = Run(world)
    run.world.table.before = lambda attempt: Run(world).store.verify()
    with pytest.raises(FencedError, match="has a newer leader"):
        run.complete()
    assert run.coordinator.current == 1


@pytest.mark.parametrize("is_away", [False, True])
def test_a_driver_that_was_frozen_says_that_it_was_succeeded_and_blames_no_broker(
    log: MemoryLog, caplog: pytest.LogCaptureFixture, is_away: bool
) -> None:
    world = World(log)
    run = Run(world)

    def thaws(last: Mapping[str, Range]) -> None:
        Run(world).store.claim_epoch(Epoch(0))
        log.on_plan = lambda _: None
        if is_away:
            raise ServiceUnavailableError("no broker answers")

    log.on_plan = thaws
    if not is_away:
        log.hidden.add("b")
    with pytest.raises(FencedError, match="has a newer leader"):
        run.complete()
    assert caplog.messages == []


def test_nor_does_it_for_a_batch_that_it_was_reading(
    log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(log)
    run = Run(world)

    def thaws(attempt: TransactionAttempt, partition: str) -> None:
        Run(world).store.claim_epoch(Epoch(0))
        raise PartitionUnavailableError("no broker answers")

    log.on_emit = thaws
    with pytest.raises(FencedError, match="has a newer leader"):
        run.complete()
    assert [message for message in caplog.messages if "broker" in message] == []


def test_nor_does_it_for_a_stored_plan_whose_partitions_it_asks_for(
    log: MemoryLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(log, TransactionalSpout)
    log.on_emit = failing_once(RuntimeError("a bug"), 1)
    run = Run(world)

    def thaws(self: MemoryCoordinator, metas: Mapping[str, Range]) -> Any:
        Run(world).store.claim_epoch(Epoch(0))
        return {name: Unavailable("no broker answers") for name in metas}

    monkeypatch.setattr(MemoryCoordinator, "unreadable", thaws)
    with pytest.raises(FencedError, match="has a newer leader"):
        run.complete()
    assert [message for message in caplog.messages if "broker" in message] == []


def test_brokers_are_blamed_though_zookeeper_is_away_too(
    log: MemoryLog, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, back = Run(World(log)), threading.Event()
    verify = run.store.verify

    def waits() -> None:
        wait(back, "ZooKeeper is back")
        verify()

    def away(last: Mapping[str, Range]) -> None:
        raise ServiceUnavailableError("no broker answers")

    monkeypatch.setattr(run.store, "verify", waits)
    log.on_plan = away
    run.start()
    try:
        assert wait_until(lambda: "waiting for the source" in caplog.text, 10)
    finally:
        log.on_plan = None
        back.set()
    run.finish()


# --- points ----------------------------------------------------------------------------------------

COMMIT = [
    Point.BEFORE_COMMIT,
    Point.INSIDE_COMMIT,
    Point.AFTER_COMMIT,
    Point.BEFORE_ADVANCE,
    Point.AFTER_ADVANCE,
]


@pytest.mark.parametrize(
    ("spout", "expected"),
    [(OpaqueSpout, COMMIT), (TransactionalSpout, [Point.BEFORE_PERSIST, Point.AFTER_PERSIST, *COMMIT])],
)
def test_every_named_point_is_passed_in_order(log: MemoryLog, spout: Any, expected: list[Point]) -> None:
    passed: dict[int, list[Point]] = {}

    def listener(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        passed.setdefault(txid, []).append(point)
        if point is Point.BEFORE_COMMIT:
            assert open_batches[txid] == "committing"

    Run(World(log, spout), listener=listener).complete()
    assert passed == {1: expected, 2: expected, 3: expected}
    elsewhere = {*WRITE_POINTS, Point.BETWEEN_COMMITS}
    assert set(Point) - elsewhere == {*expected, Point.BEFORE_PERSIST, Point.AFTER_PERSIST}


@BOTH
@pytest.mark.parametrize("deadly", [Point.BEFORE_PERSIST, Point.AFTER_PERSIST, *COMMIT])
def test_a_driver_that_dies_at_a_point_is_recovered_by_the_next(
    log: MemoryLog, spout: Any, deadly: Point
) -> None:
    """The table here keeps one result per txid, as a real table does through restore and fence."""
    world = World(log, spout)

    def die(point: Point, txid: Txid, open_batches: dict[Txid, str]) -> None:
        if point is deadly and txid == 2:
            raise RunAbortedError(f"killed at {deadly}")

    run = Run(world, listener=die)
    if spout is OpaqueSpout and deadly in (Point.BEFORE_PERSIST, Point.AFTER_PERSIST):
        run.complete()
    else:
        with pytest.raises(RunAbortedError, match="killed at"):
            run.complete()
    Run(world).complete()
    assert world.table.totals() == words(log)


# --- what failures mean ----------------------------------------------------------------------------


@each(
    ("error", "verdict"),
    [
        (BatchFailedError("x"), Verdict.REPLAY),
        (BatchTimeoutError("x"), Verdict.REPLAY),
        (ServiceUnavailableError("x"), Verdict.REPLAY),
        (BoltError("x"), Verdict.BUG),
        (ValueError("x"), Verdict.BUG),
        (DataLostError("x"), Verdict.FATAL),
        (FencedError("x"), Verdict.FATAL),
        (KeyboardInterrupt(), Verdict.FATAL),
    ],
    ids=repr,
)
def test_what_an_error_means(error: BaseException, verdict: Verdict) -> None:
    assert judge(error) is verdict


def test_attempts_wait_longer_and_longer_up_to_a_bound() -> None:
    failures = TxidFailures()
    delays = [failures.delay_seconds]
    for _ in range(2000):
        failures.add(BatchFailedError("x"))
        delays.append(failures.delay_seconds)
    assert delays[:4] == [0.0, 0.05, 0.1, 0.2]
    assert delays == sorted(delays)
    assert delays[-1] == BACKOFF.longest_seconds
    assert (failures.attempts, failures.bugs) == (2000, 0)
