"""`ManualClock`: time that the test moves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.lists import each

from txstream.core.errors import UsageError
from txstream.testing import ManualClock


def test_it_stands_until_it_is_moved() -> None:
    clock = ManualClock()
    assert [clock(), clock()] == [0.0, 0.0]
    clock.advance(1.5)
    clock.advance(0)
    assert clock() == 1.5
    assert ManualClock(10)() == 10
    assert repr(clock) == "ManualClock(1.5)"


@each("seconds", [-1, -0.001, float("nan")])
def test_time_only_goes_on(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises(UsageError, match="time only goes on"):
        clock.advance(seconds)
    assert clock() == 0.0


def test_who_listens_is_told_after_the_move_until_it_stops() -> None:
    clock = ManualClock()
    seen: list[float] = []
    stop = clock.listen(lambda: seen.append(clock()))
    clock.advance(1)
    clock.advance(1)
    stop()
    clock.advance(1)
    assert seen == [1.0, 2.0]


def test_no_move_is_lost_between_threads() -> None:
    clock = ManualClock()
    barrier = threading.Barrier(4)

    def move() -> None:
        barrier.wait(10)
        for _ in range(500):
            clock.advance(1)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(move) for _ in range(4)]:
            future.result(20)
    assert clock() == 2000
