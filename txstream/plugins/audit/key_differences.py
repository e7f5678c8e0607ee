"""By how much other code would have changed each key, over a range of batches.

What a batch added to a row is gone once a later batch has changed the row. Production's own code brings it
back: its replay of the batch is taken for what was written if, and only if, it has the digest that the ledger
keeps of that. Otherwise the rows that tables still tell are compared, and the others are counted as untold.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from txstream.api.state import REMOVED
from txstream.core.digests import digest_of
from txstream.core.transaction import Txid

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.api.reducers import Reducer
    from txstream.plugins.audit.dry_runs import DryBatch, DryRuns, ReplayedTable

Row = Mapping[str, Any] | None
Number = int | float | Decimal


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key for which the replay of `txids` would not do what these batches did. `by` has each value column
    that differs: replayed minus written, added up over the batches for a sum, the largest of them for any
    other reducer; None if the values are no numbers. `only` says which of the two touches the key at all, if
    it is one of them."""

    table: str
    key: Mapping[str, Any]
    by: Mapping[str, Number | None]
    only: Literal["written", "replayed"] | None
    txids: tuple[Txid, ...]

    @property
    def size(self) -> float:
        """The greatest difference in any column; 0 if none is of numbers."""
        return max((abs(float(one)) for one in self.by.values() if one is not None), default=0.0)


@dataclass
class _Found:
    by: dict[str, Number | None] = field(default_factory=dict)
    sides: set[str] = field(default_factory=set)
    txids: list[Txid] = field(default_factory=list)


class KeyDifferences:
    """Gathers the differences of all batches."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, tuple[Any, ...]], _Found] = {}
        self._names: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._found)

    def add(
        self, table: ReplayedTable, txid: Txid, rows: Iterable[tuple[tuple[Any, ...], Row, Row, Row]]
    ) -> None:
        """Add rows of one batch: key, what it had before (None: nothing, or not known), written, replayed."""
        reducers = table.bolt.reducers
        self._names[table.name] = list(table.bolt.state.key_names)
        for key, before, written, replayed in rows:
            found = self._found.setdefault((table.name, key), _Found())
            found.txids.append(txid)
            found.sides.add("both" if written and replayed else "written" if written else "replayed")
            old, new = written or before or {}, replayed or before or {}
            for name, reducer in reducers.items():
                if not _alike(old.get(name), new.get(name)):
                    by = _difference(old.get(name), new.get(name))
                    found.by[name] = _together(reducer, found.by[name], by) if name in found.by else by

    def largest(self, most: int) -> tuple[KeyDifference, ...]:
        """Return the largest differences first, then those of values that are no numbers."""
        every = (
            KeyDifference(
                table,
                dict(zip(self._names[table], key, strict=True)),
                found.by,
                next(iter(found.sides)) if found.sides in ({"written"}, {"replayed"}) else None,  # type: ignore[arg-type]
                tuple(found.txids),
            )
            for (table, key), found in self._found.items()
        )
        return tuple(heapq.nlargest(most, every, key=lambda one: one.size))


def of_both(
    production: DryRuns, table: ReplayedTable, batch: DryBatch, deltas: pa.Table
) -> Iterator[tuple[tuple[Any, ...], Row, Row, Row]] | None:
    """Return the rows that `deltas` and production's code would add differently, or None if that code does
    not add what the batch added: it is not the code that ran then."""
    written = table.written_in(batch)
    theirs = next((one for one in production.tables() if one.name == table.name), None)
    if written is None or theirs is None:
        return None
    again = theirs.deltas(production.run(batch))
    if written.differences(digest_of(again, theirs.bolt.state.key_names)):
        return None
    keys = table.bolt.state.key_names
    return _unlike(_by_key(again, keys), _by_key(deltas, keys), table.bolt.reducers)


def _by_key(deltas: pa.Table, keys: Iterable[str]) -> dict[tuple[Any, ...], dict[str, Any]]:
    names = list(keys)
    return {tuple(row[name] for name in names): row for row in deltas.to_pylist()}


def _unlike(
    written: Mapping[tuple[Any, ...], dict[str, Any]],
    replayed: Mapping[tuple[Any, ...], dict[str, Any]],
    reducers: Mapping[str, Reducer],
) -> Iterator[tuple[tuple[Any, ...], Row, Row, Row]]:
    for key in dict.fromkeys((*written, *replayed)):
        old, new = written.get(key), replayed.get(key)
        if (
            old is None
            or new is None
            or not all(_alike(old.get(n), new.get(n)) for n in (*reducers, REMOVED))
        ):
            yield key, None, old, new


def _alike(old: Any, new: Any) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-9) or (math.isnan(old) and math.isnan(new))
    return bool(old == new)


def _difference(old: Any, new: Any) -> Number | None:
    old, new = (0 if one is None else one for one in (old, new))
    numbers = all(isinstance(one, Number) and not isinstance(one, bool) for one in (old, new))
    return new - old if numbers else None


def _together(reducer: Reducer, one: Number | None, other: Number | None) -> Number | None:
    if one is None or other is None:
        return other if one is None else one
    if reducer.merge == "sum":
        return one + other  # type: ignore[operator]  # a column has numbers of one type
    return max(one, other, key=abs)
