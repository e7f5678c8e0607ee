"""What a run waits for, so that a person can be told: outages of databases, partitions, the source.

Several may be waited for at once. Each is logged when its wait begins and when it ends, not at every try.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime

log = logging.getLogger(__name__)


class Waiting:
    """May be used from several threads."""

    def __init__(self) -> None:
        self._waits: dict[str, str] = {}

    @property
    def shown(self) -> str | None:
        """All waits in one line, "partition lines/3 since 12:00:01"; None when there is none."""
        return "; ".join([*self._waits.values()]) or None

    def begin(self, key: str, what: str, reason: object) -> None:
        """Say that `what` is waited for, unless there is a wait under this key already."""
        if key not in self._waits:
            self._waits[key] = f"{what} since {datetime.now(UTC).astimezone():%H:%M:%S}"
            log.warning("waiting for %s: %s", self._waits[key], reason)

    def end(self, key: str) -> None:
        """What was waited for under this key, if anything, is back."""
        shown = self._waits.pop(key, None)
        if shown is not None:
            log.warning("no longer waiting for %s", shown)

    def drop(self, key: str) -> None:
        """Nobody waits under this key any more, whether it is back or not."""
        self._waits.pop(key, None)
