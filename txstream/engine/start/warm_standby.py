"""What a warm standby keeps ready for the moment of its election."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping

from txstream.core.waiting import RunAbortedError, Waiting

TURN_SECONDS = 20.0  # Spark ends Python workers that have been idle for a minute
AWAY_SECONDS = 5.0  # not sooner: a step may start Java
_POLL_SECONDS = 0.1
_END_SECONDS = 10.0


class Readiness:
    """Takes the steps one by one, on a thread of its own, until `end`.

    It takes all of them again every 20 s, and after 5 s as long as one of them fails.
    A step makes something ready, or checks that it still is. The last one, which is dear, is first taken once
    no other fails: a start that would be refused must not cost a Spark. A failure is logged once, and the
    step is taken again in the next turn: an outage does not end a standby. What is not ready at the election
    is made ready then, as on a cold standby, and its errors are raised then. `pause` returns True when the
    run is to end. `report_ready` is called each time everything has become ready.
    """

    def __init__(
        self,
        steps: Mapping[str, Callable[[], object]],
        pause: Callable[[float], bool],
        report_ready: Callable[[], None],
    ) -> None:
        self.is_ready = False
        self._steps = steps
        self._has_begun = False
        self._pause = pause
        self._report_ready = report_ready
        self._ended = threading.Event()
        self._waiting = Waiting(pause)
        self._thread = threading.Thread(target=self._main, name="txstream-ready", daemon=True)
        if steps:
            self._thread.start()

    def end(self) -> None:
        """Take no further step. Blocks while one is being taken; for at most 10 s if the run is to end."""
        self._ended.set()
        while self._thread.is_alive() and not self._pause(0):
            self._thread.join(_POLL_SECONDS)
        if self._thread.is_alive():
            self._thread.join(_END_SECONDS)

    def _main(self) -> None:
        with contextlib.suppress(RunAbortedError):
            while not self._ended.is_set():
                self._take_steps()
                self._ended.wait(TURN_SECONDS if self.is_ready else AWAY_SECONDS)

    def _take_steps(self) -> None:
        dear = [*self._steps][-1]
        for what, step in self._steps.items():
            if self._ended.is_set():
                return
            if what == dear and not self._has_begun:
                if self._waiting.waits:
                    break
                self._has_begun = True
            try:
                step()
            except RunAbortedError:
                raise
            except Exception as error:  # noqa: BLE001 - a leader's start raises it again
                self._waiting.begin(what, what, error)
            else:
                self._waiting.end(what)
        was_ready, self.is_ready = self.is_ready, not self._waiting.waits
        if self.is_ready and not was_ready:
            self._report_ready()
