"""What a run waits for, and the waiting itself: outages of databases, partitions, the source.

Several may be waited for at once. Each is logged when its wait begins and when it ends, not at every try.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from txstream.api.errors import ServiceUnavailableError, TxstreamError
from txstream.engine.driver.retries import BACKOFF_FIRST_SECONDS, BACKOFF_LONGEST_SECONDS

log = logging.getLogger(__name__)

T = TypeVar("T")


class RunAbortedError(TxstreamError):
    """The run was told to end now; whatever waits gives up. The next run recovers."""


class Waiting:
    """May be used from several threads. `pause` blocks before a further try, and is True when the run is to
    end."""

    def __init__(self, pause: Callable[[float], bool]) -> None:
        self._pause = pause
        # What is waited for since when, and why.
        self._waits: dict[str, tuple[str, str]] = {}

    @property
    def shown(self) -> str | None:
        """All waits in one line, "partition lines/3 since 12:00:01"; None when there is none."""
        return "; ".join([shown for shown, _ in list(self._waits.values())]) or None

    @property
    def reasons(self) -> list[str]:
        """Each wait with the reason that it began with."""
        return [f"{shown} ({reason})" for shown, reason in list(self._waits.values())]

    def until(
        self, what: str, ask: Callable[[], T], away: type[TxstreamError] = ServiceUnavailableError
    ) -> T:
        """What `ask` answers once it no longer raises `away`; blocks, and asks less and less often.

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

    def begin(self, key: str, what: str, reason: object) -> None:
        """Say that `what` is waited for, unless there is a wait under this key already."""
        if key not in self._waits:
            shown = f"{what} since {datetime.now(UTC).astimezone():%H:%M:%S}"
            self._waits[key] = (shown, str(reason))
            log.warning("waiting for %s: %s", shown, reason)

    def end(self, key: str) -> None:
        """What was waited for under this key, if anything, is back."""
        found = self._waits.pop(key, None)
        if found is not None:
            log.warning("no longer waiting for %s", found[0])

    def drop(self, key: str) -> None:
        """Nobody waits under this key any more, whether it is back or not."""
        self._waits.pop(key, None)
