"""The result of a comparison: figures of each run against the truth. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from txstream.compare.run import Outcome, Rows
from txstream.compare.timeline import Fate, Made, Range

_LEAST_BATCHES = 2
_LEAST_STALL_SECONDS = 0.05  # a shorter stall is not worth mentioning

Tables = Mapping[str, Rows]
"""Rows by the name that the topology gives the table."""


@dataclass(frozen=True)
class Difference:
    """How far tables are from the truth: by how much their numbers are too small in total (`lost`) and too
    great (`doubled`), and how many rows differ."""

    lost: float
    doubled: float
    wrong_rows: int


def difference(truth: Tables, tables: Tables) -> Difference:
    """Compare tables with the truth. A missing row counts as zeros. Values that are not numbers only make a
    row wrong."""
    lost: float = 0
    doubled: float = 0
    wrong = 0
    for name in truth.keys() | tables.keys():
        there, here = truth.get(name, {}), tables.get(name, {})
        for key in there.keys() | here.keys():
            pairs = list(_paired(there.get(key), here.get(key)))
            wrong += any(not _equal(one, other) for one, other in pairs)
            for one, other in pairs:
                if _is_number(one) and _is_number(other) and not _equal(one, other):
                    lost += max(0, one - other)
                    doubled += max(0, other - one)
    return Difference(lost, doubled, wrong)


def _paired(there: tuple[Any, ...] | None, here: tuple[Any, ...] | None) -> Iterable[tuple[Any, Any]]:
    there = there if there is not None else tuple(0 if _is_number(value) else None for value in here or ())
    here = here if here is not None else tuple(0 if _is_number(value) else None for value in there)
    return zip(there, here, strict=True)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _equal(one: Any, other: Any) -> bool:
    """Compare floats with a tolerance: a sum depends on the order in which its numbers came."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-12)
    return bool(one == other)


def moved_records(made: Sequence[Made]) -> int:
    """Return how many records were in an attempt of one txid and were committed in another."""
    homes: dict[str, list[tuple[int, int, int]]] = {}
    for one in made:
        if one.fate is Fate.COMMITTED:
            for partition, (start, end) in one.ranges.items():
                homes.setdefault(partition, []).append((start, end, one.txid))
    moved: dict[str, list[Range]] = {}
    for one in made:
        for partition, (start, end) in one.ranges.items():
            for first, last, txid in homes.get(partition, []):
                if txid != one.txid and max(start, first) < min(end, last):
                    moved.setdefault(partition, []).append((max(start, first), min(end, last)))
    return sum(_length(ranges) for ranges in moved.values())


def _length(ranges: Iterable[Range]) -> int:
    """Return the total length of ranges that may overlap."""
    total, reached = 0, 0
    for start, end in sorted(ranges):
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total


def stalls(outcome: Outcome) -> list[tuple[float, float]]:
    """Return the times from each fault to the next commit of its txid or a later one, overlaps joined."""
    found: list[tuple[float, float]] = []
    for fault, at in outcome.injector.happened:
        later = [when for txid, when in outcome.timeline.commits if when > at and txid >= fault.txid]
        until = min(later, default=at)
        if found and at <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], until))
        else:
            found.append((at, until))
    return found


def _is_committed(made: Made) -> bool:
    return made.fate is Fate.COMMITTED


def figures(outcome: Outcome, truth: Tables) -> dict[str, Any]:
    """Return the figures of a run as one JSON object."""
    made = outcome.timeline.settled()
    committed = [one for one in made if _is_committed(one)]
    apart = difference(truth, outcome.tables)
    began, ended = made[0].began, max(one.ended or one.began for one in made)
    records = sum(one.records for one in committed)
    return {
        "exact": not apart.wrong_rows,
        "lost": apart.lost,
        "doubled": apart.doubled,
        "wrong_rows": apart.wrong_rows,
        "total": total(outcome.tables),
        "rows": sum(len(rows) for rows in outcome.tables.values()),
        "state_bytes": outcome.size,
        "batches": len(committed),
        "attempts": len(made),
        "failed_attempts": sum(one.fate is Fate.FAILED for one in made),
        "drivers": outcome.drivers,
        "stalled_seconds": round(sum(end - start for start, end in stalls(outcome)), 3),
        "moved_tuples": moved_records(made),
        "seconds": round(ended - began, 3),
        "records": records,
        "records_per_second": round(records / (ended - began), 1) if ended > began else 0.0,
        "round_trips": outcome.round_trips,
        "faults_that_never_came": [fault.to_document() for fault in outcome.injector.never],
    }


def total(tables: Tables) -> float:
    """Return the sum of all numbers in all tables."""
    found: float = 0
    for rows in tables.values():
        found += sum(value for values in rows.values() for value in values if _is_number(value))
    return found


ROWS = (
    ("exact", "exact"),
    ("total", "total"),
    ("lost", "lost"),
    ("doubled", "doubled"),
    ("wrong_rows", "rows that differ"),
    ("batches", "batches"),
    ("attempts", "attempts"),
    ("stalled_seconds", "seconds stalled"),
    ("moved_tuples", "tuples in another txid"),
    ("records_per_second", "records/s"),
    ("rows", "rows of state"),
    ("state_bytes", "bytes of state"),
    ("round_trips", "requests to ZooKeeper"),
)
"""The figures that people compare, with their labels."""


def in_a_sentence(found: Mapping[str, Any]) -> str:
    """Return the result of a run in words."""
    if found["exact"]:
        told = ["exact"]
    else:
        told = [f"{found[name]:,} {name}" for name in ("lost", "doubled") if found[name]]
        told = told or [f"{found['wrong_rows']:,} rows differ"]
    if found["stalled_seconds"] >= _LEAST_STALL_SECONDS:
        told.append(f"{found['stalled_seconds']:.1f} s without a commit after faults")
    if found["moved_tuples"]:
        told.append(f"{found['moved_tuples']:,} tuples came in another txid than was first planned")
    return "; ".join(told)


def nothing_shown(truth: Tables, outcomes: Mapping[str, Outcome]) -> str | None:
    """Say why a comparison that passes shows nothing, if that is so."""
    if not any(truth.values()):
        return "no record reaches a table, so all tables stay empty"
    for semantics, outcome in outcomes.items():
        if sum(map(_is_committed, outcome.timeline.settled())) < _LEAST_BATCHES:
            return f"the {semantics} run committed fewer than {_LEAST_BATCHES} batches"
        if not outcome.injector.happened:
            return f"no fault struck the {semantics} run"
    return None
