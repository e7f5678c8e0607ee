"""What a run of tracked tuples reports: a snapshot for `txstream status`, and a report at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from txstream.core.wording import counted
from txstream.engine.loop.report import RunReport

if TYPE_CHECKING:
    from txstream.plugins.tracked.loop import TrackedLoop

# A tree counts under the first of these ages that it is not older than, or under "older".
AGES_SECONDS = (1, 5, 10, 30, 60)


@dataclass(frozen=True, slots=True)
class TrackedReport(RunReport):
    """What one run of tracked tuples did. `batches` counts micro-batches, `records` the tuples that spouts
    emitted; the fields below count trees."""

    acked: int = 0
    failed: int = 0
    timed_out: int = 0
    open_trees: int = 0

    def in_words(self) -> str:
        """Return the run in one line."""
        return (
            f"{self.topology}: {counted(self.records, 'tuple')} in "
            f"{counted(self.batches, 'micro-batch', 'micro-batches')}, "
            f"{counted(self.acked, 'tree')} acked, {self.failed:,} failed, {self.timed_out:,} timed out, "
            f"{self.open_trees:,} still open, in {self.seconds:.1f} s "
            f"({self.records_per_second:,.0f} tuples/s)"
        )


class Meter:
    """Takes snapshots of a loop. The rates in a snapshot are those since the one before."""

    def __init__(self, loop: TrackedLoop, now: float) -> None:
        self._loop = loop
        self._at = now
        self._before: Mapping[str, int] = {}

    def document(self, now: float) -> dict[str, Any]:
        """Return a snapshot as JSON values, without words of the user's code, which may be data."""
        loop, counts = self._loop, self._loop.counts
        emitted: dict[str, int] = {}
        components: dict[str, dict[str, Any]] = {}
        pending: dict[str, dict[str, int]] = {}
        for spout in loop.spouts:
            name = spout.spec.id
            emitted[name] = emitted.get(name, 0) + spout.emitted
            row = components.setdefault(name, {"kind": "spout", "acked": 0, "failed": 0, "timed_out": 0})
            row["acked"] += spout.acked
            row["failed"] += spout.failed
            row["timed_out"] += spout.timed_out
            ages = pending.setdefault(name, dict.fromkeys((*map(str, AGES_SECONDS), "older"), 0))
            places = np.searchsorted(AGES_SECONDS, spout.ages())
            for age, found in zip(ages, np.bincount(places, minlength=len(ages)).tolist(), strict=True):
                ages[age] += found
        for bolt in loop.topology.bolts:
            emitted[bolt.id] = counts.received[bolt.id]
            components[bolt.id] = {
                "kind": "bolt",
                "acked": counts.acked[bolt.id],
                "failed": counts.failed[bolt.id],
                "timed_out": counts.timed_out[bolt.id],
            }
        seconds = max(now - self._at, 1e-9)
        slots = loop.slots()
        for name, row in components.items():
            row["slots"] = slots[name]
            row["messages"] = emitted[name]
            row["messages_per_second"] = round((emitted[name] - self._before.get(name, 0)) / seconds, 1)
        self._at, self._before = now, emitted
        return {
            "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "micro_batches": counts.micro_batches,
            "failed_micro_batches": counts.failed_micro_batches,
            "open_trees": loop.open_trees,
            "pending": pending,
            "components": components,
            "stuck": loop.stuck,
        }
