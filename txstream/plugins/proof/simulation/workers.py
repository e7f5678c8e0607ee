"""Workers that do one piece of work at a time, in an order that `chances` decide."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from txstream.core.transaction import TransactionAttempt
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.workers import Event, Lane, Timer

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.driver import SimulatedDriver

_MOST_AT_ONCE = 3

_Piece = tuple[Callable[[], Any], Callable[[Any], None] | None, Callable[[BaseException], None] | None]


class SeededWorkers:
    """The workers of one driver. Time moves on only when nothing is left but a timer; a deadline may pass at
    any time."""

    def __init__(self, driver: SimulatedDriver) -> None:
        self._driver = driver
        self._waiting: dict[Lane, deque[_Piece]] = {lane: deque() for lane in Lane}
        self._busy: list[Lane] = []
        self._events: deque[Event] = deque()
        self._timers: list[Timer] = []
        self._deadlines: list[Event] = []
        self._numbers = itertools.count()
        self._now = 0.0
        self._is_handling = False

    # --- for the simulation ---------------------------------------------------------------------------

    def step(self, loop: EventLoop, *, meanwhile: bool = False) -> None:
        """Do one thing; with `meanwhile`, in the middle of another, as on another thread."""
        chances = self._driver.world.chances
        lanes = [
            lane
            for lane, pieces in self._waiting.items()
            if pieces and (lane is Lane.JOB or lane not in self._busy)
        ]
        if meanwhile and (len(self._busy) == _MOST_AT_ONCE or self._is_handling):
            return
        if self._events and (not lanes or chances.below(2) == 0):
            self._handle(loop, self._events.popleft())
        elif self._deadlines and self._driver.world.happens("deadline"):
            self._handle(loop, self._deadlines.pop(chances.below(len(self._deadlines))))
        elif lanes:
            self._work(chances.pick(lanes))
        elif self._timers and not meanwhile:
            timer = heapq.heappop(self._timers)
            self._now = timer.due
            self._handle(loop, timer.event)

    def _handle(self, loop: EventLoop, event: Event) -> None:
        self._is_handling = True
        try:
            loop.handle(event)
            loop.coordinator.check()
        finally:
            self._is_handling = False

    def _work(self, lane: Lane) -> None:
        pieces = self._waiting[lane]
        if lane is Lane.JOB:
            pieces.rotate(-self._driver.world.chances.below(len(pieces)))
        work, done, failed = pieces.popleft()
        self._busy.append(lane)
        try:
            answer = work()
        except Exception as error:  # noqa: BLE001 - for the loop to judge; a CrashError is no Exception
            if failed is not None:
                self._answer(failed, error)
        else:
            if done is not None:
                self._answer(done, answer)
        finally:
            self._busy.remove(lane)

    def _answer(self, handle: Callable[[Any], None], answer: Any) -> None:
        self._events.append(lambda: handle(answer))

    # --- `Workers` ------------------------------------------------------------------------------------

    def submit(
        self,
        lane: Lane,
        work: Callable[[], Any],
        done: Callable[[Any], None] | None = None,
        failed: Callable[[BaseException], None] | None = None,
        *,
        attempt: TransactionAttempt | None = None,
    ) -> None:
        self._waiting[lane].append((work, done, failed))

    def now(self) -> float:
        return self._now

    def wall_clock(self) -> float:
        return self._driver.wall_clock()

    def post(self, event: Event) -> None:
        self._events.append(event)

    def after(self, seconds: float, event: Event, *, is_deadline: bool = False) -> None:
        if is_deadline:
            self._deadlines.append(event)
        else:
            heapq.heappush(self._timers, Timer(self._now + seconds, next(self._numbers), event, False))

    def next(self) -> Event:
        raise NotImplementedError("the simulation hands out events itself")

    def pause(self, seconds: float) -> bool:
        self._driver.pass_point("before a further try")
        return False

    def interrupt(self) -> None:
        """Do nothing: a simulated driver is not aborted, it crashes."""

    @property
    def is_interrupted(self) -> bool:
        return False

    def shut_down(self) -> None:
        """Do nothing: nothing runs by itself."""
