"""The result of a comparison: figures of each run against the truth. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from txstream.api.state import SqlTable
from txstream.core.wording import counted, shown
from txstream.plugins.compare.attempts import Made
from txstream.plugins.compare.run import Outcome, Rows
from txstream.plugins.notebook.attempt_chart import Fate, Range

if TYPE_CHECKING:
    from txstream.api.topology import Topology

_LEAST_BATCHES = 2
_LEAST_STALL_SECONDS = 0.05  # a shorter stall is not worth mentioning
_FLOAT_DIGITS = 12
_MISSING = object()

Tables = Mapping[str, Rows]
"""Rows by the name that the topology gives the table."""


@dataclass(frozen=True)
class Column:
    """A value column. Only what is `added_up` over tuples has a total, and is lost or doubled by so much; a
    maximum or a text is right or wrong. `place` is where it is in a row's values.

    Without a place it stands for the rows themselves, of a table that has records as they are: each counts
    one. The value columns of such a table are compared in rows that must be there and are (`where_both`)."""

    table: str
    name: str
    place: int | None
    added_up: bool
    where_both: bool = False

    def __str__(self) -> str:
        return f"{self.table} (rows)" if self.place is None else f"{self.table}.{self.name}"

    def of(self, values: Sequence[Any]) -> Any:
        return 1 if self.place is None else values[self.place]


def columns_of(topology: Topology) -> list[Column]:
    """Return the value columns of a topology's tables, and the rows of a `SqlTable`. What a `MapState` holds
    is the bolt's own affair, so nothing in it is added up."""
    found: list[Column] = []
    for bolt, _ in topology.states:
        table, is_appended = bolt.state.table, isinstance(bolt.state, SqlTable)
        found += [Column(table, "", None, added_up=True)] if is_appended else []
        found += [
            Column(table, name, place, bolt.reducers[name].merge == "sum", where_both=is_appended)
            for place, name in enumerate(bolt.state.shown_names)
        ]
    return found + [
        Column(use.state.table, name, place, added_up=False)
        for use in topology.map_states
        for place, name in enumerate(use.state.value_names)
    ]


@dataclass(frozen=True)
class Difference:
    """How far a column is from the truth: by how much its numbers are too small in total (`lost`) and too
    great (`doubled`), and how many rows differ in it."""

    lost: float
    doubled: float
    wrong_rows: int


def difference(truth: Tables, tables: Tables, column: Column) -> Difference:
    """Compare a column with the truth. A missing row counts as zeros. Values that are not numbers only make a
    row wrong."""
    lost: list[Any] = []
    doubled: list[Any] = []
    wrong: set[Any] = set()
    for key, one, other in _differing(truth, tables, column):
        wrong.add(key)
        one, other = (0 if value is _MISSING else value for value in (one, other))
        if column.added_up and _is_number(one) and _is_number(other):
            (lost if one > other else doubled).append(abs(one - other))
    return Difference(_sum(lost), _sum(doubled), len(wrong))


def wrong_rows(truth: Tables, tables: Tables, columns: Iterable[Column]) -> int:
    """Return how many rows differ from the truth in any column."""
    return len({(one.table, key) for one in columns for key, *_ in _differing(truth, tables, one)})


def _differing(truth: Tables, tables: Tables, column: Column) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the keys of rows that differ in a column, with its true value and what is there."""
    there, here = truth.get(column.table, {}), tables.get(column.table, {})
    for key in there.keys() & here.keys() if column.where_both else there.keys() | here.keys():
        one = column.of(there[key]) if key in there else _MISSING
        other = column.of(here[key]) if key in here else _MISSING
        if not _equal(one, other):
            yield key, one, other


def total(tables: Tables, column: Column) -> Any:
    """Return the sum of a column over all rows."""
    found = map(column.of, tables.get(column.table, {}).values())
    return _sum(filter(_is_number, found))


def _sum(numbers: Iterable[Any]) -> Any:
    """Return the sum; that of floats is rounded, since it depends on the order in which its numbers came."""
    found = list(numbers)
    if any(isinstance(number, float) for number in found):
        return float(f"{math.fsum(found):.{_FLOAT_DIGITS}g}")
    return sum(found)


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


def _waited_for_outages(outcome: Outcome) -> float:
    """Return the seconds without a commit while a partition was away: the schedule chose their length."""
    return sum(
        max(0.0, min(end, outage.ended if outage.ended is not None else end) - max(start, outage.began))
        for start, end in stalls(outcome)
        for outage in outcome.injector.outages
    )


def figures(
    outcome: Outcome, truth: Tables, columns: Sequence[Column], dead: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the figures of a run by name; those of each value column under `columns`. `dead` are the places
    of the records that must be dead letters."""
    made = outcome.timeline.settled()
    committed = [one for one in made if _is_committed(one)]
    wrong = wrong_rows(truth, outcome.tables, columns)
    must, are = Counter(dead), Counter(outcome.dead)
    wrong_letters = ((must - are) + (are - must)).total()
    began, ended = made[0].began, max(one.ended or one.began for one in made)
    records = sum(one.records for one in committed)
    outages = _waited_for_outages(outcome)
    working = ended - began - outages
    return {
        "exact": not wrong and not wrong_letters,
        "wrong_rows": wrong,
        "dead_letters": are.total(),
        "wrong_dead_letters": wrong_letters,
        "columns": {str(column): _column_figures(column, truth, outcome.tables) for column in columns},
        "rows": sum(len(rows) for rows in outcome.tables.values()),
        "state_bytes": outcome.size,
        "batches": len(committed),
        "attempts": len(made),
        "failed_attempts": sum(one.fate is Fate.FAILED for one in made),
        "drivers": outcome.drivers,
        "stalled_seconds": round(sum(end - start for start, end in stalls(outcome)), 3),
        "outage_seconds": round(outages, 3),
        "moved_tuples": moved_records(made),
        "seconds": round(ended - began, 3),
        "records": records,
        "records_per_second": round(records / working, 1) if working > 0 else 0.0,
        "round_trips": outcome.round_trips,
        "faults_that_never_came": [fault.to_document() for fault in outcome.injector.never],
    }


def _column_figures(column: Column, truth: Tables, tables: Tables) -> dict[str, Any]:
    apart = difference(truth, tables, column)
    if not column.added_up:
        return {"wrong_rows": apart.wrong_rows}
    return {
        "total": total(tables, column),
        "lost": apart.lost,
        "doubled": apart.doubled,
        "wrong_rows": apart.wrong_rows,
    }


_ROWS = (
    ("batches", "batches"),
    ("attempts", "attempts"),
    ("stalled_seconds", "seconds stalled"),
    ("moved_tuples", "tuples in another txid"),
    ("records_per_second", "records/s"),
    ("rows", "rows of state"),
    ("state_bytes", "bytes of state"),
    ("round_trips", "requests to ZooKeeper"),
)
_LETTERS = (("dead_letters", "dead letters"), ("wrong_dead_letters", "dead letters that differ"))
_SUMS = (("total", "{}"), ("lost", "{}, lost"), ("doubled", "{}, doubled"))


def side_by_side(runs: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return the figures that people compare: a label, and a value for each run."""
    every = list(runs.values())
    found = [("exact", [one["exact"] for one in every])]
    for name, figures_of in every[0]["columns"].items():
        labels = _SUMS if "total" in figures_of else (("wrong_rows", "{}, rows that differ"),)
        found += [
            (words.format(name), [one["columns"][name][figure] for one in every]) for figure, words in labels
        ]
    found.append(("rows that differ", [one["wrong_rows"] for one in every]))
    for figure, words in _LETTERS:
        if any(one[figure] for one in every):
            found.append((words, [one[figure] for one in every]))
    return found + [(words, [one[figure] for one in every]) for figure, words in _ROWS]


def true_totals(truth: Tables, columns: Iterable[Column]) -> dict[str, Any]:
    """Return the true total of each column that is added up."""
    return {str(column): total(truth, column) for column in columns if column.added_up}


def in_a_sentence(found: Mapping[str, Any]) -> str:
    """Return the result of a run in words."""
    if found["exact"]:
        parts = ["exact"]
    else:
        parts = [
            f"{shown(one[figure])} {figure} in {name}"
            for name, one in found["columns"].items()
            for figure in ("lost", "doubled")
            if one.get(figure)
        ]
        if found["wrong_dead_letters"]:
            parts.append(
                f"{counted(found['wrong_dead_letters'], 'dead letter differs', 'dead letters differ')}"
            )
        parts = parts or [f"{counted(found['wrong_rows'], 'row differs', 'rows differ')}"]
    if found["stalled_seconds"] >= _LEAST_STALL_SECONDS:
        parts.append(f"{found['stalled_seconds']:.1f} s without a commit after faults")
    if found["moved_tuples"]:
        moved = counted(found["moved_tuples"], "tuple")
        parts.append(f"{moved} came in another txid than was first planned")
    return "; ".join(parts)


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
