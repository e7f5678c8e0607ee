"""Shows as a wait what a source says is held back: records that it has and that cannot be read yet.

Invariant: nothing is decided here. A run that has an end to reach waits for such records because they lie
before that end, whether or not the source tells of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from txstream.api.spouts import HeldBack
from txstream.core.waiting import Waiting
from txstream.core.wording import counted
from txstream.engine.loop.workers import Workers

_KEY = "records that are held back"
_REASON = "they are in the log and cannot be read yet"
_LONG_SECONDS = 3.0
"""What is held back for less is on its way, as far as people are concerned."""
_RECOUNT_SECONDS = 10.0
_MOST_SHOWN = 3


class HeldBackRecords:
    """Its method is called on the loop's thread."""

    def __init__(self, waiting: Waiting, workers: Workers) -> None:
        self._waiting = waiting
        self._workers = workers
        self._shown: Mapping[str, str] = {}
        self._next_count = 0.0

    def tell(self, found: Mapping[str, HeldBack]) -> None:
        """Begin, go on with or end the wait for these records. What has only grown is told now and then."""
        if not found and not self._shown:
            return
        wall_clock = self._workers.wall_clock()
        long = {
            name: one for name, one in found.items() if wall_clock - one.since.timestamp() >= _LONG_SECONDS
        }
        shown = {name: one.behind for name, one in long.items()}
        now = self._workers.now()
        if shown == self._shown and now < self._next_count:
            return
        self._shown, self._next_count = shown, now + _RECOUNT_SECONDS
        if not long:
            self._waiting.end(_KEY)
            return
        names = sorted(long, key=lambda name: (-long[name].records, name))
        rest = len(names) - _MOST_SHOWN
        others = [f"{counted(rest, 'other partition')}"] if rest > 0 else []
        first = names[:_MOST_SHOWN]
        self._waiting.begin(
            _KEY,
            f"records of {' and '.join([', '.join(first), *others])}",
            _REASON,
            "; ".join(f"{long[name].records:,} behind {long[name].behind}" for name in first),
            min(one.since for one in long.values()),
        )
