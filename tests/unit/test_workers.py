"""The workers behind the event loop: order, timers and clocks; and workers that a test steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from support.loops import DEADLINE_SECONDS, wait

from txstream.core.errors import BatchFailedError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.loop.workers import Lane, ThreadWorkers
from txstream.plugins.testing.stepping import SteppedWorkers
from txstream.spouts.memory.failure_markers import CrashError
from txstream.testing import ManualClock

ATTEMPT = TransactionAttempt(Txid(1), AttemptId(7))


def unexpected(answer: object) -> None:
    raise AssertionError(f"nobody expected {answer!r}")


class Handled:
    """A thread that handles events until one says `stop`."""

    def __init__(self, workers: ThreadWorkers) -> None:
        self.workers = workers
        self.names: list[str] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._handle, daemon=True)
        self._thread.start()

    def event(self, name: str) -> Callable[[], None]:
        return lambda: self.names.append(name)

    def until_quiet(self) -> list[str]:
        assert isinstance(self.workers, SteppedWorkers)
        assert self.workers.run_until_quiet(lambda: False, time.monotonic() + DEADLINE_SECONDS)
        return self.names

    def stop(self) -> None:
        def end() -> None:
            self._stopped = True

        self.workers.post(end)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()
        self.workers.shut_down()

    def _handle(self) -> None:
        while not self._stopped:
            self.workers.next()()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def workers(clock: ManualClock) -> SteppedWorkers:
    stepped = SteppedWorkers(jobs=2, clock=clock)
    clock.listen(stepped.wake)
    return stepped


@pytest.fixture
def handled(workers: SteppedWorkers) -> Iterator[Handled]:
    thread = Handled(workers)
    yield thread
    workers.let_all_go()
    thread.stop()


def test_events_come_in_the_order_in_which_they_were_posted(
    workers: SteppedWorkers, handled: Handled
) -> None:
    for name in "abc":
        workers.post(handled.event(name))
    assert handled.until_quiet() == ["a", "b", "c"]


def test_a_timer_comes_when_the_clock_is_moved_to_it_and_not_before(
    workers: SteppedWorkers, handled: Handled, clock: ManualClock
) -> None:
    workers.after(10.0, handled.event("ten"))
    workers.after(5.0, handled.event("five"))
    clock.advance(4.0)
    assert handled.until_quiet() == []
    clock.advance(1.0)
    assert handled.until_quiet() == ["five"]
    clock.advance(100.0)
    assert handled.until_quiet() == ["five", "ten"]


def test_timers_that_are_due_go_first_and_those_of_one_time_in_their_order(
    workers: SteppedWorkers, handled: Handled, clock: ManualClock
) -> None:
    workers.post(handled.event("posted"))
    for name in "abc":
        workers.after(1.0, handled.event(name))
    clock.advance(1.0)
    assert handled.until_quiet() == ["a", "b", "c", "posted"]


def test_a_timer_of_the_real_clock_comes_by_itself() -> None:
    handled = Handled(ThreadWorkers(jobs=1))
    rung = threading.Event()
    handled.workers.post(lambda: handled.workers.after(0.001, rung.set))
    wait(rung, "the timer")
    handled.stop()


def test_between_two_steps_nothing_is_handed_out(
    workers: SteppedWorkers, handled: Handled, clock: ManualClock
) -> None:
    handled.until_quiet()
    workers.after(1.0, handled.event("timer"))
    workers.post(handled.event("posted"))
    clock.advance(2.0)
    with workers.changed:
        assert not workers.is_quiet()
    assert handled.names == []
    assert handled.until_quiet() == ["timer", "posted"]


def test_it_is_quiet_only_when_work_has_been_answered_and_the_answer_handled(
    workers: SteppedWorkers, handled: Handled
) -> None:
    go = threading.Event()
    workers.submit(Lane.PLAN, lambda: wait(go, "go"), lambda _: handled.names.append("done"), unexpected)
    assert not workers.run_until_quiet(lambda: False, time.monotonic())
    go.set()
    assert handled.until_quiet() == ["done"]


def test_an_error_of_work_is_an_answer(workers: SteppedWorkers, handled: Handled) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    workers.submit(Lane.WRITE, work, unexpected, lambda error: handled.names.append(type(error).__name__))
    assert handled.until_quiet() == ["KeyboardInterrupt"]


def test_work_of_one_lane_is_done_in_its_order_and_jobs_side_by_side() -> None:
    workers, together = ThreadWorkers(jobs=2), threading.Barrier(4)
    done: list[str] = []
    for number in range(3):
        workers.submit(Lane.COMMIT, lambda number=number: done.append(str(number)))  # type: ignore[misc]
    for lane in (Lane.COMMIT, Lane.JOB, Lane.JOB):
        workers.submit(lane, lambda: together.wait(DEADLINE_SECONDS))
    together.wait(DEADLINE_SECONDS)
    workers.shut_down()
    assert done == ["0", "1", "2"]


def test_after_its_end_no_work_is_taken() -> None:
    workers = ThreadWorkers(jobs=1)
    workers.shut_down()
    with pytest.raises(RuntimeError, match="after shutdown"):
        workers.submit(Lane.PLAN, lambda: None)


def test_a_pause_ends_when_the_run_is_to_end() -> None:
    workers = ThreadWorkers(jobs=1)
    assert not workers.pause(0.0)
    workers.interrupt()
    assert workers.pause(1_000.0)
    workers.shut_down()


def test_waits_are_skipped_in_their_order_and_deadlines_are_not(
    workers: SteppedWorkers, handled: Handled, clock: ManualClock
) -> None:
    workers.after(2.0, handled.event("two"))
    workers.after(0.5, handled.event("deadline"), is_deadline=True)
    workers.after(1.0, handled.event("one"))
    assert workers.skip_waits() == 2
    assert handled.until_quiet() == ["one", "two"]
    assert workers.skip_waits() == 0
    assert clock() == 0.0
    clock.advance(0.5)
    assert handled.until_quiet() == ["one", "two", "deadline"]


@pytest.mark.parametrize("lane", [Lane.JOB, Lane.COMMIT])
def test_an_attempt_is_held_back_until_it_may_go(
    workers: SteppedWorkers, handled: Handled, lane: Lane
) -> None:
    def work() -> str:
        if lane is Lane.COMMIT:
            workers.begin_commit()
        return "done"

    workers.submit(lane, work, handled.names.append, unexpected, attempt=ATTEMPT)
    assert handled.until_quiet() == []
    assert workers.held_back() == [ATTEMPT]
    workers.allow(process=1, commit=1)
    assert handled.until_quiet() == ["done"]
    assert not workers.fail(ATTEMPT, BatchFailedError("too late"))


@pytest.mark.parametrize(
    ("let_go", "ends_with"),
    [
        (lambda workers: workers.fail(ATTEMPT, ValueError("x")), ValueError),
        (lambda workers: workers.drop(ATTEMPT), BatchFailedError),
        (lambda workers: workers.let_all_go(), CrashError),
    ],
    ids=["fails", "dropped", "driver ends"],
)
def test_what_is_held_back_is_let_go_with_an_error(
    workers: SteppedWorkers, handled: Handled, let_go: Callable[[SteppedWorkers], None], ends_with: type
) -> None:
    errors: list[BaseException] = []
    ended = threading.Event()

    def failed(error: BaseException) -> None:
        errors.append(error)
        ended.set()

    workers.submit(Lane.JOB, lambda: None, unexpected, failed, attempt=ATTEMPT)
    handled.until_quiet()
    let_go(workers)
    workers.run_until_quiet(ended.is_set, time.monotonic() + DEADLINE_SECONDS)
    assert [type(error) for error in errors] == [ends_with]
