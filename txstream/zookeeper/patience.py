"""Waiting for a service that does not answer: whom to tell, when to give up."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from txstream.api.errors import ServiceUnavailableError

_TELL_AFTER_SECONDS = 1.0


class WaitStoppedError(ServiceUnavailableError):
    """`should_stop` ended a wait. Whether a write was applied may be unknown; what is read after the next
    start decides."""


class Patience:
    """Invariant: an outage is reported at most once, and begins with the first `unanswered` after an
    `answered`.

    `waiting` is called with a sentence once an outage has lasted a second. `should_stop` is asked at every
    turn of a wait, and never while the service answers. With `deadline_seconds` None, a wait has no limit.
    """

    def __init__(
        self,
        service: str,
        *,
        waiting: Callable[[str], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        deadline_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._service = service
        self._waiting = waiting
        self._should_stop = should_stop
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._since: float | None = None
        self._message = ""
        self._told = False

    def answered(self) -> None:
        """The outage, if there was one, is over."""
        self._since = None
        self._told = False

    def unanswered(self) -> None:
        """Call at every turn of a wait. Raises WaitStoppedError or, past the deadline,
        ServiceUnavailableError."""
        now = self._clock()
        if self._since is None:
            self._since = now
            # Wall time, to compare with other logs; nothing is computed from it.
            self._message = f"waiting for {self._service} since {datetime.now().astimezone():%H:%M:%S}"
        self.stop_if_asked()
        waited_seconds = now - self._since
        if self._deadline_seconds is not None and waited_seconds >= self._deadline_seconds:
            raise ServiceUnavailableError(
                f"{self._service} has not answered for {waited_seconds:.0f} s; "
                "check that it runs and can be reached, and try again"
            )
        if waited_seconds >= _TELL_AFTER_SECONDS and not self._told and self._waiting is not None:
            self._told = True
            self._waiting(self._message)

    def stop_if_asked(self) -> None:
        """Raise WaitStoppedError if `should_stop` returns True."""
        if self._should_stop is not None and self._should_stop():
            raise WaitStoppedError(f"stopped while waiting for {self._service}")
