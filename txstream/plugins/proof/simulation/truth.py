"""What the tables of a simulated topology must hold: a plain fold of its rows, or what the caller expects.

Invariant: the product's engine and stores have no part in it. Where tables depend on how batches are cut, the
truth is the fold of the batches that the history's ledger holds. What was folded once is not folded again: a
batch is added to the known tables of the batches before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.api.topology import Topology
from txstream.core.errors import UsageError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.plain_fold import (
    Batch,
    PlainFold,
    Tables,
    difference,
    equal,
    plain_fold,
)
from txstream.plugins.proof.simulation.source import Rows

Ranges = Mapping[str, Sequence[tuple[int, int]]]
"""The rows of a batch: from and to of each range, by partition. A record that is left out divides a range."""

_Cut = tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
"""A batch's ranges, as a key."""

_MOST_BATCHES = 40
_MOST_KEPT = 5_000


class Truth:
    """The truth of one program. `depends` says of which table it depends on how batches are cut, if on any.

    With `dead`, the partition and number of records of which only the batches tell whether they count, all
    tables are the fold of the batches.

    Raises UsageError when tables that `expected` leaves out depend on what no fold can decide.
    """

    def __init__(
        self,
        topology: Topology,
        rows: Rows,
        expected: Mapping[str, Any] | None = None,
        *,
        dead: Collection[tuple[str, int]] = (),
    ) -> None:
        self._topology = topology
        self._rows = rows
        self._dead = frozenset(dead)
        self._given = _given(topology, expected or {})
        self._known: dict[tuple[_Cut, ...], Tables] = {}
        self._by_batches: set[str] = set()
        self.depends: str | None = None
        self._fixed: Tables = self._given
        names = {use.state.table for use in topology.map_states}
        names |= {bolt.state.table for bolt, _ in topology.states}
        if names - self._given.keys():
            self._fixed = {**self._fold(), **self._given}

    def tables(self, batches: Callable[[], Sequence[Ranges]]) -> Tables:
        """Return what the tables must hold once these batches are committed."""
        if not self._by_batches:
            return self._fixed
        told = self._folded(batches())
        return {**self._fixed, **{name: told[name] for name in self._by_batches}}

    def wrong_so_far(
        self, found: Tables, ends: Mapping[str, int], batches: Callable[[], Sequence[Ranges]]
    ) -> str | None:
        """Say how these tables, of one database, differ from what its committed `batches` leave; None if they
        do not. `ends` is how far the batches have come. Nothing is said of what the caller expects: that is
        known of the end alone."""
        open_tables = [name for name in found if name not in self._given]
        if not self._by_batches:
            whole = self._folded([{name: [(0, end)] for name, end in ends.items()}])
            open_tables = [name for name in open_tables if not equal(found[name], whole[name])]
        if not open_tables:
            return None
        # A table may depend on how batches are cut on the way, though not at the end.
        cut = batches()
        expected = self._folded(cut)
        wrong = [name for name in expected if name in open_tables and not equal(found[name], expected[name])]
        if wrong:
            alone = plain_fold(self._topology, map(self._batch, cut), evenly=False)
            wrong = [name for name in wrong if equal(alone[name], expected[name])]
        if not wrong:
            return None
        return f"table {wrong[0]!r} is not {self.whose(wrong[0])}: " + difference(
            expected[wrong[0]], found[wrong[0]]
        )

    def _folded(self, batches: Sequence[Ranges]) -> Tables:
        """Return the fold of these batches."""
        key = tuple(
            tuple((name, tuple(ranges)) for name, ranges in sorted(batch.items())) for batch in batches
        )
        if key in self._known:
            return self._known[key]
        if len(self._known) > _MOST_KEPT:
            self._known.clear()
        done = next((done for done in range(len(key) - 1, 0, -1) if key[:done] in self._known), 0)
        fold = PlainFold(self._topology)
        try:
            if done:
                fold.go_on_from(self._known[key[:done]], done)
            for at in range(done, len(key)):
                fold.add(self._batch(batches[at]))
                self._known[key[: at + 1]] = fold.tables()
        finally:
            fold.close()
        return self._known[key] if key else fold.tables()

    @property
    def note(self) -> str | None:
        """What people must know of it, if anything."""
        if self.depends is None:
            return None
        return f"{self.depends}: each schedule is compared with a plain fold of the batches that it committed"

    @property
    def is_empty(self) -> bool:
        """Whether no table holds a row."""
        return not any(self._fixed.values())

    def whose(self, table: str) -> str:
        """Say for a message who says what this table must hold."""
        return "what is expected" if table in self._given else "what a plain fold of the rows leaves"

    def _fold(self) -> Tables:
        """Return the fold of all rows, once it is known what decides it."""
        most = max(batch.num_rows for batch in self._rows.values())
        small = -(-most // _MOST_BATCHES)
        whole, cut = (plain_fold(self._topology, self._batches(size)) for size in (most, small))
        alone = plain_fold(self._topology, self._batches(small), evenly=False)
        open_tables = [name for name in cut if name not in self._given]
        for name in open_tables:
            if not equal(cut[name], alone[name]):
                raise UsageError(
                    f"no truth is known for table {name!r}: it depends on which task of a bolt gets a "
                    f"tuple ({difference(cut[name], alone[name])}), and a shuffle may choose any; give "
                    f"expected=, or group by fields"
                )
        self._by_batches = {name for name in open_tables if self._dead or not equal(whole[name], cut[name])}
        if self._dead:
            return whole
        if not self._by_batches:
            return whole
        name = min(self._by_batches)
        told = (
            f"table {name!r} depends on how batches are cut (with all rows in one batch and not with "
            f"{small} of each partition in a batch, {difference(cut[name], whole[name])})"
        )
        if self._topology.semantics is Semantics.NON_TRANSACTIONAL:
            raise UsageError(f"no truth is known: {told}, and no ledger keeps the batches; give expected=")
        self.depends = told
        return whole

    def _batches(self, size: int) -> Iterator[Batch]:
        most = max(batch.num_rows for batch in self._rows.values())
        for at in range(0, most, size):
            yield self._batch({name: self._alive(name, at, at + size) for name in self._rows})

    def _alive(self, partition: str, start: int, end: int) -> list[tuple[int, int]]:
        """Return a range without the records that may be dead."""
        cuts = [number for name, number in sorted(self._dead) if name == partition and start <= number < end]
        return list(zip([start, *(number + 1 for number in cuts)], [*cuts, end], strict=True))

    def _batch(self, ranges: Ranges) -> Batch:
        return {
            name: pa.concat_batches([self._rows[name].slice(start, end - start) for start, end in some])
            for name, some in ranges.items()
        }


def _given(topology: Topology, expected: Mapping[str, Any]) -> Tables:
    """Return what the caller expects as tables. Keys and values of one column need no tuple."""
    states = [*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states)]
    known = {state.table for state in states}
    for name in expected:
        if name not in known:
            raise UsageError(
                f"expected has a table {name!r}, which the topology does not fill; it fills "
                f"{', '.join(sorted(known))}"
            )
    return {
        name: {_tuple(key): _tuple(value) for key, value in rows.items()} for name, rows in expected.items()
    }


def _tuple(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, tuple | list) else (given,)
