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
