"""The queue behind the event loop: order, timers, clocks, and what a test sees of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.loops import DEADLINE_SECONDS, wait

from txstream.engine.driver.events import EventQueue
from txstream.testing import ManualClock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def unexpected(answer: object) -> None:
    raise AssertionError(f"nobody expected {answer!r}")


class Handled:
    """A thread that handles events until one says `stop`."""

    def __init__(self, events: EventQueue) -> None:
        self.events = events
        self.names: list[str] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._handle, daemon=True)
        self._thread.start()

    def event(self, name: str) -> Callable[[], None]:
        return lambda: self.names.append(name)

    def until_quiet(self, held_back: int = 0) -> list[str]:
        with self.events.changed:
            quiet = self.events.changed.wait_for(lambda: self.events.is_quiet(held_back), DEADLINE_SECONDS)
        assert quiet
        return self.names

    def stop(self) -> None:
        def end() -> None:
            self._stopped = True

        self.events.post(end)
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive()

    def _handle(self) -> None:
        while not self._stopped:
            self.events.next()()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def events(clock: ManualClock) -> EventQueue:
    queue = EventQueue(clock)
    clock.listen(queue.wake)
    return queue


@pytest.fixture
def handled(events: EventQueue) -> Iterator[Handled]:
    thread = Handled(events)
    yield thread
    events.release()
    thread.stop()


def test_events_come_in_the_order_in_which_they_were_posted(events: EventQueue, handled: Handled) -> None:
    for name in "abc":
        events.post(handled.event(name))
    assert handled.until_quiet() == ["a", "b", "c"]


def test_a_timer_comes_when_the_clock_is_moved_to_it_and_not_before(
    events: EventQueue, handled: Handled, clock: ManualClock
) -> None:
    events.after(10.0, handled.event("ten"))
    events.after(5.0, handled.event("five"))
    clock.advance(4.0)
    assert handled.until_quiet() == []
    clock.advance(1.0)
    assert handled.until_quiet() == ["five"]
    clock.advance(100.0)
    assert handled.until_quiet() == ["five", "ten"]


def test_timers_that_are_due_go_first_and_those_of_one_time_in_their_order(
    events: EventQueue, handled: Handled, clock: ManualClock
) -> None:
    events.hold()
    events.post(handled.event("posted"))
    for name in "abc":
        events.after(1.0, handled.event(name))
    clock.advance(1.0)
    events.release()
    assert handled.until_quiet() == ["a", "b", "c", "posted"]


def test_a_timer_of_the_real_clock_comes_by_itself() -> None:
    handled = Handled(EventQueue())
    rung = threading.Event()
    handled.events.post(lambda: handled.events.after(0.001, rung.set))
    wait(rung, "the timer")
    handled.stop()


def test_while_it_is_held_nothing_is_handed_out(
    events: EventQueue, handled: Handled, clock: ManualClock
) -> None:
    handled.until_quiet()
    events.hold()
    events.after(1.0, handled.event("timer"))
    events.post(handled.event("posted"))
    clock.advance(2.0)
    with events.changed:
        assert not events.is_quiet(0)
    assert handled.names == []
    events.release()
    assert handled.until_quiet() == ["timer", "posted"]


def test_it_is_quiet_only_when_work_has_been_answered_and_the_answer_handled(
    events: EventQueue, handled: Handled, pool: ThreadPoolExecutor
) -> None:
    go = threading.Event()
    events.submit(pool, lambda: wait(go, "go"), lambda _: handled.names.append("done"), unexpected)
    assert handled.until_quiet(held_back=1) == []
    with events.changed:
        assert not events.is_quiet(0)
    go.set()
    assert handled.until_quiet() == ["done"]


def test_an_error_of_work_is_an_answer(
    events: EventQueue, handled: Handled, pool: ThreadPoolExecutor
) -> None:
    def work() -> None:
        raise KeyboardInterrupt

    events.submit(pool, work, unexpected, lambda error: handled.names.append(type(error).__name__))
    assert handled.until_quiet() == ["KeyboardInterrupt"]


def test_work_that_was_cancelled_or_never_taken_is_not_waited_for(
    events: EventQueue, handled: Handled
) -> None:
    pool = ThreadPoolExecutor(1)
    go = threading.Event()
    events.submit(pool, lambda: wait(go, "go"), lambda _: handled.names.append("first"), unexpected)
    events.submit(pool, lambda: None, lambda _: handled.names.append("second"), unexpected)
    pool.shutdown(wait=False, cancel_futures=True)
    go.set()
    assert handled.until_quiet() == ["first"]
    with pytest.raises(RuntimeError, match="after shutdown"):
        events.submit(pool, lambda: None, unexpected, unexpected)
    assert handled.until_quiet() == ["first"]


def test_waits_are_skipped_in_their_order_and_deadlines_are_not(
    events: EventQueue, handled: Handled, clock: ManualClock
) -> None:
    events.after(2.0, handled.event("two"))
    with events.adding_deadlines():
        events.after(0.5, handled.event("deadline"))
    events.after(1.0, handled.event("one"))
    assert events.skip_waits() == 2
    assert handled.until_quiet() == ["one", "two"]
    assert events.skip_waits() == 0
    assert clock() == 0.0
    clock.advance(0.5)
    assert handled.until_quiet() == ["one", "two", "deadline"]
