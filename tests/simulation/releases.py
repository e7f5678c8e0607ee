"""The code of a topology as it changes: each release has all of the one before, and something more."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from support.inmemory import MemoryLog, MemorySource

from simulation.log import Held
from txstream.api.bolts import BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import CommitChoice, Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.commit.databases import StateTarget, state_targets
from txstream.semantics import Semantics

DEFAULT = 1000
"""What a row gets in the column that is added: no history adds up to it."""

FIRST, SECOND, THIRD = "one", "two", "three"

_SPOUTS: Mapping[Semantics, Any] = {
    Semantics.OPAQUE: OpaqueSpout,
    Semantics.TRANSACTIONAL: TransactionalSpout,
    Semantics.NON_TRANSACTIONAL: NonTransactionalSpout,
}
_source = MemorySource(MemoryLog({}), output="word string, x bigint")


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

    def deltas(self, held: Held) -> pa.Table:
        """A batch's deltas for this state."""
        columns = {"word": pa.array(list(held), pa.string())}
        columns["n"] = pa.array([n for n, _ in held.values()], pa.int64())
        if self.wide:
            columns["total"] = pa.array([total for _, total in held.values()], pa.int64())
        return pa.table(columns)


class Keeping(BatchBolt, Committer):
    """A committer with a state of its own; what it does in a batch, the simulation's tasks do."""

    output = "word string"

    def __init__(self, state: SqlState) -> None:
        self.states = {"kept": state}

    def execute(self, tup: Tuple) -> None:
        raise NotImplementedError("tuples go to the simulation's tasks")


@dataclass(frozen=True)
class Release:
    """One version of the code. `number` grows; every release can follow any one before it."""

    number: int
    tables: tuple[Declared, ...]

    def covers(self, known: Mapping[str, bool]) -> bool:
        """Does it declare these tables, and as wide as they are (by name)?"""
        mine = {declared.table: declared.wide for declared in self.tables}
        return all(name in mine and mine[name] >= wide for name, wide in known.items())

    def code(self, semantics: Semantics, states: Semantics, commit: CommitChoice, pending: int) -> Code:
        return _code(self, semantics, states, commit, pending)


class Code(NamedTuple):
    """What a driver runs; `targets` have no databases yet."""

    topology: Topology
    targets: list[StateTarget]


@dataclass
class _Unopened:
    url_for_people: str
    on_executors: bool = True


@functools.cache
def _code(
    release: Release, semantics: Semantics, states: Semantics, commit: CommitChoice, pending: int
) -> Code:
    """`auto` takes executors for more than one key, and never twice for one txid."""
    rows = 1 if commit == "auto" else None
    spout = _SPOUTS[semantics](_source)
    builder = TransactionalTopologyBuilder(
        "t", "rows", spout, commit=commit, driver_commit_rows=rows, max_spout_pending=pending
    )
    for declared in release.tables:
        state = declared.state(states)
        bolt: Any = Keeping(state)
        if not declared.by_bolt:
            bolt = SqlStateBolt(state, n=Count(), **({"total": Sum("x")} if declared.wide else {}))
        tasks = 2 if declared.by_bolt else 1
        builder.set_committer_bolt(declared.table, bolt, tasks).fields_grouping("rows", "word")
    topology = builder.build()
    unopened: Any = _Unopened
    return Code(topology, state_targets(topology, f"memory://{FIRST}", unopened))


def still(databases: int, by_bolt: Sequence[bool]) -> Release:
    """One that no other follows: a table in each of so many databases."""
    servers = (FIRST, SECOND)[:databases]
    return Release(1, tuple(Declared(s[0], s, by_bolt=b) for s, b in zip(servers, by_bolt, strict=False)))


def releases_of(random: random.Random, *, bolts: bool) -> list[Release]:
    """Two to five releases, each with a change or two. With `bolts` some states are filled by bolts."""

    def by_bolt() -> bool:
        return bolts and random.random() < 0.4

    tables = [Declared("a", FIRST, random.random() < 0.2, by_bolt())]
    if random.random() < 0.4:
        tables.append(Declared("b", random.choice([FIRST, SECOND]), False, by_bolt()))
    found = [Release(1, tuple(tables))]
    free = [name for name in "bcd" if name not in {declared.table for declared in tables}]
    for number in range(2, random.randint(2, 5) + 1):
        for _ in range(random.randint(1, 2)):
            narrow = [at for at, declared in enumerate(tables) if not declared.wide]
            if narrow and (not free or random.random() < 0.4):
                at = random.choice(narrow)
                tables[at] = replace(tables[at], wide=True)
            elif free:
                server = random.choice([FIRST, SECOND, SECOND, THIRD])
                tables.append(Declared(free.pop(0), server, random.random() < 0.3, by_bolt()))
        found.append(Release(number, tuple(tables)))
    return found
