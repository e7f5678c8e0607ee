"""Waiting for what does not answer: databases, partitions, the source, ZooKeeper.

Invariant: a wait is reported once, however often it is tried again, and begins with the first failure after
an answer.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import ClassVar, TypeVar

from txstream.core.backoff import Backoff
from txstream.core.errors import ServiceUnavailableError, TxstreamError
from txstream.core.failing_batch import Wait
from txstream.core.wording import storable

log = logging.getLogger(__name__)

T = TypeVar("T")

BACKOFF = Backoff(first_seconds=0.05, longest_seconds=5.0)
"""What a run leaves between the tries of a wait, and between the attempts of a batch."""
_LONGEST_REASON = 1_000
_LONG_SECONDS = 1.0
_MOST_ENDED = 10


class RunAbortedError(TxstreamError):
    """The run was asked to end now, so every wait gives up. The next run recovers."""

    shows_story: ClassVar[bool] = True


class WaitStoppedError(ServiceUnavailableError):
    """A wait for ZooKeeper was asked to end. Whether a write was applied may be unknown; what is read after
    the next start decides."""


class Waiting:
    """The waits of a run, or those of a session with a service; several threads may use it.

    `pause` blocks before a further try and returns True if the wait is to end, which raises `stopped`. A wait
    that ends within `quiet_seconds` is not reported. One that lasts `deadline_seconds` raises
    ServiceUnavailableError; with None it has no limit. `report` gets a sentence; without it the log gets one.
    `changed` is called whenever a wait begins or ends, on the thread that waits.
    """

    def __init__(
        self,
        pause: Callable[[float], bool],
        *,
        stopped: type[TxstreamError] = RunAbortedError,
        report: Callable[[str], None] | None = None,
        quiet_seconds: float = 0.0,
        deadline_seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._pause = pause
        self._stopped = stopped
        self._report = report
        self._quiet_seconds = quiet_seconds
        self._deadline_seconds = deadline_seconds
        self._clock = clock
        self._waits: dict[str, Wait] = {}
        self._began: dict[str, float] = {}
        self._unreported: set[str] = set()
        self._ended: deque[tuple[Wait, datetime]] = deque(maxlen=_MOST_ENDED)

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits that are under way."""
        return tuple(self._waits.values())

    @property
    def shown(self) -> str | None:
        """All waits in one line, "partition lines/3 since 12:00:01"; None when there is none."""
        return "; ".join([str(wait) for wait in self.waits]) or None

    @property
    def reasons(self) -> list[str]:
        """Each wait with the reason that it began with."""
        return [f"{wait} ({wait.reason})" for wait in self.waits]

    def until(
        self, what: str, ask: Callable[[], T], away: type[TxstreamError] = ServiceUnavailableError
    ) -> T:
        """Call `ask`, less and less often, until it no longer raises `away`. Return its answer."""
        failures = 0
        while True:
            try:
                answer = ask()
            except away as error:
                failures += 1
                self.turn(what, BACKOFF.after(failures), error)
            else:
                self.end(what)
                return answer

    def turn(self, what: str, seconds: float = 0.0, reason: Exception | None = None) -> None:
        """Wait so long for `what`, which does not answer. Raises `stopped` or ServiceUnavailableError."""
        self.begin(what, what, reason or "it does not answer")
        now = self._clock()
        waited_seconds = now - self._began.get(what, now)  # another thread may have ended the wait
        if self._deadline_seconds is not None:
            if waited_seconds >= self._deadline_seconds:
                raise ServiceUnavailableError(
                    f"{what} has not answered for {waited_seconds:.0f} s; "
                    "check that it runs and can be reached, and try again"
                ) from reason
            seconds = min(seconds, self._deadline_seconds - waited_seconds)
        if self._pause(seconds):
            raise self._stopped(f"stopped while waiting for {what}") from reason

    def is_waiting(self, key: str) -> bool:
        """Whether the wait under this key is under way."""
        return key in self._waits

    def begin(
        self, key: str, what: str, reason: object, because: str = "", since: datetime | None = None
    ) -> None:
        """Begin to wait for `what`. A wait that has begun under this key goes on, even if it was for
        something else, or because of something else. `since` is given if it is not now."""
        before = wait = self._waits.get(key)
        if wait is None or (wait.what, wait.because) != (what, because):
            since = (since or datetime.now(UTC)) if wait is None else wait.since
            wait = Wait(what, since, because, storable(str(reason), _LONGEST_REASON))
            self._began.setdefault(key, self._clock())
            self._waits[key] = wait
            self._unreported.add(key)
            self.changed()
        now = self._clock()
        if key in self._unreported and now - self._began.get(key, now) >= self._quiet_seconds:
            self._unreported.discard(key)
            if self._report is not None:
                self._report(wait.told)
            else:
                level = logging.WARNING if before is None else logging.INFO
                log.log(level, "%s: %s", wait.told, storable(str(reason)))

    def end(self, key: str) -> None:
        """End the wait under this key, if there is one: what it was for is back."""
        found = self.drop(key)
        if found is not None and self._report is None:
            log.warning("no longer waiting for %s", found)

    def drop(self, key: str) -> Wait | None:
        """Forget the wait under this key, whether or not what it was for is back. Return it, or None."""
        found = self._waits.pop(key, None)
        if found is not None:
            self._began.pop(key, None)
            self._unreported.discard(key)
            if (now := datetime.now(UTC)) - found.since >= timedelta(seconds=_LONG_SECONDS):
                self._ended.append((found, now))
            self.changed()
        return found

    def take_ended(self) -> list[tuple[Wait, datetime]]:
        """Return the latest waits that were not short and have ended since the last call, and when."""
        found = []
        while self._ended:
            found.append(self._ended.popleft())
        return found
