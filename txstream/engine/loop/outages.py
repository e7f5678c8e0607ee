"""What a run waits for, and the waiting itself: outages of databases, partitions, the source.

A run may wait for several at once. Each wait is logged when it begins and when it ends, not at every try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import ClassVar, TypeVar

from txstream.api.errors import ServiceUnavailableError, TxstreamError
from txstream.engine.loop.retry_policy import BACKOFF_FIRST_SECONDS, BACKOFF_LONGEST_SECONDS, shortened
from txstream.failing_batch import Wait
from txstream.wording import storable

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunAbortedError(TxstreamError):
    """The run was told to end now, so every wait gives up. The next run recovers."""

    shows_story: ClassVar[bool] = True


class Waiting:
    """A run's waits; several threads may use it. `pause` blocks before a further try and returns True if the
    run is to end. `changed` is called whenever a wait begins or ends, on the thread that waits."""

    def __init__(self, pause: Callable[[float], bool]) -> None:
        self.changed: Callable[[], None] = lambda: None
        self._pause = pause
        self._waits: dict[str, Wait] = {}

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
        """Call `ask`, less and less often, until it no longer raises `away`. Return its answer.

        Raises RunAbortedError when the run is told to end.
        """
        delay = BACKOFF_FIRST_SECONDS
        while True:
            try:
                answer = ask()
            except away as error:
                self.begin(what, what, error)
                if self._pause(delay):
                    raise RunAbortedError(f"the run ended while it waited for {what}") from error
                delay = min(2 * delay, BACKOFF_LONGEST_SECONDS)
            else:
                self.end(what)
                return answer

    def is_waiting(self, key: str) -> bool:
        """Whether the wait under this key is under way."""
        return key in self._waits

    def begin(self, key: str, what: str, reason: object, because: str = "") -> None:
        """Begin to wait for `what`. A wait that has begun under this key goes on, even if it was for
        something else."""
        before = self._waits.get(key)
        if before is not None and before.what == what:
            return
        since = datetime.now(UTC) if before is None else before.since
        wait = self._waits[key] = Wait(what, since, because, shortened(str(reason)))
        level = logging.WARNING if before is None else logging.INFO
        log.log(level, "waiting for %s: %s", wait, storable(str(reason)))
        self.changed()

    def end(self, key: str) -> None:
        """End the wait under this key, if there is one: what it was for is back."""
        found = self.drop(key)
        if found is not None:
            log.warning("no longer waiting for %s", found)

    def drop(self, key: str) -> Wait | None:
        """Forget the wait under this key, whether or not what it was for is back. Return it, or None."""
        found = self._waits.pop(key, None)
        if found is not None:
            self.changed()
        return found
