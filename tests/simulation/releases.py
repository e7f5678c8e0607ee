"""The code of a topology as it changes: each release has everything of the one before, and something more."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from txstream.api.bolts import BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.program import Program
from txstream.spouts.memory import MemorySpout

DEFAULT = 1000
"""What a row gets in an added column: no history adds up to it."""

FIRST, SECOND, THIRD = "one", "two", "three"

KEYS = "abcd"
_random = random.Random(1)
# Each row is a key and a number; the numbers tell apart what different batches hold.
ROWS = {f"p{p}": [(_random.choice(KEYS), at) for at in range(1, 9)] for p in (1, 2, 3)}

_SPOUTS: Mapping[Semantics, Any] = {
    Semantics.OPAQUE: OpaqueSpout,
    Semantics.TRANSACTIONAL: TransactionalSpout,
    Semantics.NON_TRANSACTIONAL: NonTransactionalSpout,
}


@dataclass(frozen=True)
class Declared:
    """One state: `wide` with the column `total` beside `n`; filled through a `MapState` or by deltas."""

    table: str
    server: str
    wide: bool = False
    by_bolt: bool = False

    def state(self, semantics: Semantics) -> SqlState:
        return SqlState(
            self.table,
            key="word string",
            value="n bigint, total bigint" if self.wide else "n bigint",
            url=f"memory://{self.server}",
            semantics=semantics,
            cache_rows=2 if self.by_bolt and semantics is Semantics.OPAQUE else 0,
            defaults={"total": DEFAULT} if self.wide else {},
        )


class Keeping(BatchBolt, Committer):
    """A committer that counts in a state of its own."""

    output = "word string"

    def __init__(self, state: SqlState) -> None:
        self.states = {"kept": state}
        self.is_wide = len(state.value_names) > 1

    def prepare(self, context: Any, collector: Any, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.held: dict[str, tuple[int, int]] = {}

    def execute(self, tup: Tuple) -> None:
        n, total = self.held.get(tup["word"], (0, 0))
        self.held[tup["word"]] = n + 1, total + tup["x"]

    def finish_batch(self) -> None:
        for word, (n, total) in self.held.items():
            self.context.state("kept").update(word, functools.partial(self._plus, n, total))

    def _plus(self, n: int, total: int, old: Any) -> Any:
        if not self.is_wide:
            return n if old is None else old + n
        return (n, total) if old is None else (old[0] + n, old[1] + total)


@dataclass(frozen=True)
class Release:
    """One version of the code. `number` grows; a release can follow any earlier one."""

    number: int
    tables: tuple[Declared, ...]

    def covers(self, known: Mapping[str, bool]) -> bool:
        """Return whether it declares these tables, each at least as wide as given."""
        mine = {declared.table: declared.wide for declared in self.tables}
        return all(name in mine and mine[name] >= wide for name, wide in known.items())

    def program(self, semantics: Semantics, states: Semantics) -> Program:
        return _program(self, semantics, states)


@functools.cache
def _program(release: Release, semantics: Semantics, states: Semantics) -> Program:
    return Program(_topology(release, semantics, states), number=release.number)


def _topology(release: Release, semantics: Semantics, states: Semantics) -> Topology:
    spout = _SPOUTS[semantics](MemorySpout("word string, x bigint", ROWS))
    builder = TransactionalTopologyBuilder("t", "rows", spout)
    for declared in release.tables:
        state = declared.state(states)
        bolt: Any = Keeping(state)
        if not declared.by_bolt:
            bolt = SqlStateBolt(state, n=Count(), **({"total": Sum("x")} if declared.wide else {}))
        tasks = 2 if declared.by_bolt else 1
        builder.set_committer_bolt(declared.table, bolt, tasks).fields_grouping("rows", "word")
    return builder.build()


def still(databases: int, by_bolt: Sequence[bool]) -> Release:
    """Return a release that no other follows: a table in each of so many databases."""
    servers = (FIRST, SECOND)[:databases]
    return Release(1, tuple(Declared(s[0], s, by_bolt=b) for s, b in zip(servers, by_bolt, strict=False)))


def releases_of(chances: Any, *, bolts: bool) -> list[Release]:
    """Return two to five releases, each with a change or two. With `bolts`, bolts fill some of the states."""

    def by_bolt() -> bool:
        return bolts and chances.happens(0.4)

    tables = [Declared("a", FIRST, chances.happens(0.2), by_bolt())]
    if chances.happens(0.4):
        tables.append(Declared("b", chances.pick([FIRST, SECOND]), False, by_bolt()))
    found = [Release(1, tuple(tables))]
    free = [name for name in "bcd" if name not in {declared.table for declared in tables}]
    for number in range(2, chances.between(2, 5) + 1):
        for _ in range(chances.between(1, 2)):
            narrow = [at for at, declared in enumerate(tables) if not declared.wide]
            if narrow and (not free or chances.happens(0.4)):
                at = chances.pick(narrow)
                tables[at] = replace(tables[at], wide=True)
            elif free:
                server = chances.pick([FIRST, SECOND, SECOND, THIRD])
                tables.append(Declared(free.pop(0), server, chances.happens(0.3), by_bolt()))
        found.append(Release(number, tuple(tables)))
    return found
