"""The attempts of a run in the order in which they began, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from txstream.core.coordinator import EmitBatch
from txstream.core.fault_points import CrashError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.loop.open_batches import Watcher
from txstream.plugins.notebook.attempt_chart import Fate, Range


@dataclass
class Made:
    """One attempt: what it was to read, when it began and ended, what became of it, and why it failed."""

    attempt: TransactionAttempt
    ranges: Mapping[str, Range]
    began: float
    ended: float | None = None
    fate: Fate = Fate.OPEN
    reason: str = ""

    @property
    def txid(self) -> int:
        return int(self.attempt.txid)

    @property
    def records(self) -> int:
        return sum(end - start for start, end in self.ranges.values())


class Timeline(Watcher):
    """Records every attempt of a run, over all its drivers. Called on the loop's thread."""

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.commits: list[tuple[int, float]] = []  # txids and when each was committed and noted

    def emitting(self, emit: EmitBatch[Any]) -> None:
        ranges = {
            partition: (meta.start, meta.end)
            for partition, meta in emit.metas.partitions.items()
            if hasattr(meta, "start") and hasattr(meta, "end")
        }
        self.made.append(Made(emit.attempt, ranges, time.monotonic()))

    def committed(self, attempt: TransactionAttempt) -> None:
        self._end(attempt, Fate.COMMITTED)
        self.commits.append((attempt.txid, time.monotonic()))

    def dropped(self, attempt: TransactionAttempt) -> None:
        self._end(attempt, Fate.DROPPED)

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        if isinstance(error, CrashError):
            self._end(attempt, Fate.WRITTEN)
            raise error  # the driver is dead and decides nothing more
        self._end(attempt, Fate.FAILED, str(error))

    def driver_died(self) -> None:
        """Drop all open attempts: they die with the driver."""
        for made in self.made:
            if made.fate is Fate.OPEN:
                self._end(made.attempt, Fate.DROPPED)

    def settled(self) -> list[Made]:
        """Return all attempts, once the run is over. An attempt that was written and not processed again
        counts as committed: the next driver found it in the ledger."""
        again = {made.txid for made in self.made if made.fate is Fate.COMMITTED}
        for made in self.made:
            if made.fate is Fate.WRITTEN and made.txid not in again:
                made.fate = Fate.COMMITTED
        return self.made

    def _end(self, attempt: TransactionAttempt, fate: Fate, reason: str = "") -> None:
        for made in reversed(self.made):
            if made.attempt == attempt:
                if made.fate is Fate.OPEN:  # the first report says why the attempt ended
                    made.fate, made.ended, made.reason = fate, time.monotonic(), reason
                return
