"""Batches of a ledger as a chart: what the ledger has of attempts, outages and drivers, and what the leader
has noted of the batch that fails and is in no ledger.

The ledger does not say when an attempt began that failed: it is drawn from the end of the one before it, or
from its plan. A committed one begins with its plan, or when the attempt before it had failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from txstream.core.transaction import epoch_of
from txstream.inspect.health import is_search
from txstream.inspect.ledgers import (
    COMMITTED,
    attempts_in,
    failed_attempts,
    part_of,
    range_of,
    ranges_in,
    time_of,
)
from txstream.inspect.phases import FAILED, WAIT, phases
from txstream.plugins.notebook.attempt_chart import Chart, Fate, Range, Run, charts

if TYPE_CHECKING:
    from datetime import datetime

    from txstream.core.failing_batch import FailingBatch, Wait
    from txstream.inspect.records import Batch, FailedAttempt, PartitionRange

STEPS_OF = {
    "plan": "plan",
    "persist": "plan",
    FAILED: "failed attempts",
    "search": "search",
    "job": "process",
    "merge": "process",
    WAIT: "wait",
    "commit_bolts": "commit",
    "commit": "commit",
    "advance": "commit",
}
STEPS = tuple(dict.fromkeys(STEPS_OF.values()))
_CUT_ABOVE = 6
_USUAL_GAPS = 8  # a pause is drawn if it is so much longer than most gaps between two attempts


@dataclass(frozen=True)
class Attempt:
    txid: int
    ranges: Mapping[str, Range]
    began: float
    ended: float | None
    fate: Fate


@dataclass
class Outage:
    partition: str
    began: float
    ended: float | None = None


@dataclass(frozen=True)
class Bars:
    """Seconds of one txid by step, in the column of its committed attempt."""

    txid: int
    x: float
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Drawn:
    chart: Chart
    bars: tuple[Bars, ...]

    @property
    def longest(self) -> float:
        return max((sum(one.seconds.values()) for one in self.bars), default=0.0)

    @property
    def full(self) -> float:
        """The seconds of a bar of full height: the longest, unless few are so long that no other would be
        seen. Longer ones are cut."""
        totals = sorted(sum(one.seconds.values()) for one in self.bars)
        usual = totals[len(totals) * 3 // 4] if totals else 0.0
        return self.longest if self.longest <= _CUT_ABOVE * usual else 2 * usual


def drawn(
    batches: Sequence[Batch],
    earlier: Batch | None = None,
    failing: FailingBatch | None = None,
    ended_before: int | None = None,
    waiting: Sequence[Wait] = (),
    now: datetime | None = None,
) -> Drawn | None:
    """Return the chart of consecutive batches, oldest first, and of the one after them that keeps `failing`;
    None without any. `earlier` is the one before them: a takeover may lie between. `ended_before` is the
    epoch of the last driver that ended well, `waiting` are the waits that have not ended `now`."""
    attempts: list[Attempt] = []
    outages: list[Outage] = []
    open_outages: dict[str, Outage] = {}
    deaths: list[tuple[float, str]] = []
    handovers: list[tuple[float, str]] = []
    waits: list[tuple[float, float, str]] = []
    epoch = None if earlier is None else epoch_of(earlier.first.attempt)

    def changed(at: float, leader: int, ended: object) -> None:
        if epoch is not None and ended == epoch != leader:
            handovers.append((at, f"handed to epoch {leader}"))
        elif epoch not in (None, leader):
            deaths.append((at, f"epoch {leader} leads"))

    for batch in batches:
        made = _attempts(batch)
        attempts += made
        began = made[-1].began
        leader = epoch_of(batch.first.attempt)
        changed(made[0].began, leader, batch.first.details.get("ended_before"))
        epoch = leader
        waits += _waits(batch)
        away = part_of(batch.first.metas, "unavailable")
        for name in [name for name in open_outages if name not in away]:
            open_outages.pop(name).ended = began
        for name in away:
            if name not in open_outages:
                open_outages[name] = Outage(name, made[0].began)
                outages.append(open_outages[name])
    if failing is not None and (tried := _failed(failing)):
        attempts += tried
        changed(tried[0].began, epoch_of(failing.attempt), ended_before)
    if not attempts:
        return None
    attempts.sort(key=lambda one: one.began)
    gaps = [later.began - earlier.began for earlier, later in pairwise(attempts)]
    pause_seconds = max(1.0, _USUAL_GAPS * median(gaps)) if gaps else 1.0
    until = 0.0
    if waiting and now is not None:
        until = now.timestamp()
        waits += [
            (one.since.timestamp(), until, f"{'looks' if is_search(one.what) else 'waits'} for {one.what}")
            for one in waiting
        ]
    run = Run(attempts, outages, deaths, handovers, waits, until)
    (chart,) = charts([run], pause_seconds=pause_seconds)
    places = {
        one.txid: mark.x
        for one, mark in zip(attempts, chart.columns, strict=True)
        if one.fate is Fate.COMMITTED
    }
    bars = tuple(
        Bars(batch.txid, places[batch.txid], seconds_of(batch)) for batch in batches if batch.txid in places
    )
    return Drawn(chart, bars)


def seconds_of(batch: Batch) -> dict[str, float]:
    """Return the seconds of a committed batch by step, as `STEPS` has them."""
    found: dict[str, float] = {}
    for phase, seconds in phases(batch).items():
        found[STEPS_OF[phase]] = found.get(STEPS_OF[phase], 0.0) + seconds
    return found


def _attempts(batch: Batch) -> list[Attempt]:
    row = batch.first
    committed = _ranges(range_of(name, meta) for name, meta in part_of(row.metas, "partitions").items())
    planned = row.planned_at.timestamp()
    made = _before(batch.txid, max(map(failed_attempts, batch.entries), key=len), planned, committed)
    before = made[-1].ended if made else None
    began = planned if before is None else max(planned, before)
    ended = max(began, (row.committed_at or row.processed_at).timestamp())
    fate = Fate.COMMITTED if batch.status == COMMITTED else Fate.OPEN
    made.append(Attempt(batch.txid, committed, began, ended, fate))
    return made


def _waits(batch: Batch) -> list[tuple[float, float, str]]:
    stored = batch.first.details.get("waits")
    found = []
    for one in stored if isinstance(stored, list) else ():
        since, until = (time_of(one.get(name)) for name in ("since", "until"))
        if since is not None and until is not None:
            what = str(one.get("what"))
            verb = "looked" if is_search(what) else "waited"
            found.append((since.timestamp(), until.timestamp(), f"{verb} for {what}"))
    return found


def _failed(batch: FailingBatch) -> list[Attempt]:
    failed = attempts_in(batch.attempts, batch.metas)
    return _before(batch.txid, failed, batch.at.timestamp(), _ranges(ranges_in(batch.metas)))


def _before(
    txid: int, failed: Sequence[FailedAttempt], planned: float, ranges: Mapping[str, Range]
) -> list[Attempt]:
    """Return the failed attempts of a txid. Of one that does not say what it held, that is `ranges`."""
    made: list[Attempt] = []
    for one in failed:
        ended = planned if one.failed_at is None else one.failed_at.timestamp()
        began = (made[-1].ended or ended) if made else min(planned, ended)
        held = ranges if one.ranges is None else _ranges(one.ranges)
        made.append(Attempt(txid, held, began, ended, Fate.FAILED))
    return made


def _ranges(ranges: Iterable[PartitionRange]) -> dict[str, Range]:
    return {
        one.partition: (one.start, one.end) for one in ranges if one.start is not None and one.end is not None
    }
