"""One topology with one state table in a database, committed to batch by batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from support.tables import read_rows
from txstream.api.reducers import Reducer, Sum
from txstream.api.state import SqlState
from txstream.core.fault_points import Reached
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid, attempt_id
from txstream.state import BatchRecord, Commit, FenceRow, TableSpec, TopologyStates
from txstream.state.commit_protocol import nobody

PLANNED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PROCESSED = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)


class CrashError(Exception):
    """The driver dies here."""


def word_table(
    table: str = "word_count",
    semantics: Semantics = Semantics.OPAQUE,
    *,
    key: str | pa.Schema = "word string",
    value: str | pa.Schema = "n bigint",
    reducers: Mapping[str, Reducer] | None = None,
    index_txid: bool = False,
    storage: Mapping[str, float] | None = None,
) -> TableSpec:
    state = SqlState(table, key=key, value=value, index_txid=index_txid, storage=storage or {})
    return TableSpec(state, semantics, reducers or {name: Sum(name) for name in state.value_names})


def attempt(txid: int, sequence: int, epoch: int = 1) -> TransactionAttempt:
    return TransactionAttempt(Txid(txid), attempt_id(epoch, sequence))


@dataclass
class Rig:
    """As a driver would, `commit` uses a new attempt each time, unless one is given."""

    database: Any  # a StateBackend; tests of one kind of store look inside it
    url: str
    spec: TableSpec = field(default_factory=word_table)
    topology: str = "words"
    uuid: str = "uuid-1"
    epoch: int = 1
    sequence: int = 0

    @property
    def states(self) -> TopologyStates:
        """The topology, bound to its database."""
        states: TopologyStates = self.database.of(self.topology, self.uuid, self.spec.semantics, [self.spec])
        return states

    def join(self, *, first_run: bool = True) -> Rig:
        self.database.ensure_framework_tables()
        self.states.join(first_run=first_run)
        return self

    def next(self, txid: int) -> TransactionAttempt:
        self.sequence += 1
        return attempt(txid, self.sequence, self.epoch)

    def table_of(self, deltas: Mapping[Any, Any] | pa.Table) -> pa.Table:
        """Make a table of {"a": 1}, or of tuples for several keys or values; a table stays as it is."""
        if isinstance(deltas, pa.Table):
            return deltas
        state = self.spec.state
        schema = pa.schema([*state.key_schema, *state.value_schema])
        rows = [
            (*(key if isinstance(key, tuple) else (key,)), *(value if isinstance(value, tuple) else (value,)))
            for key, value in deltas.items()
        ]
        arrays = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
        return pa.Table.from_arrays(arrays, schema=schema)

    def commit(
        self,
        txid: int,
        deltas: Mapping[Any, Any] | pa.Table | None,
        *,
        under: TransactionAttempt | None = None,
        reached: Reached = nobody,
        metas: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> TransactionAttempt:
        under = self.next(txid) if under is None else under
        self.states.commit(self.whole(under, deltas, metas=metas, error=error), reached=reached)
        return under

    def whole(
        self,
        under: TransactionAttempt,
        deltas: Mapping[Any, Any] | pa.Table | None = None,
        *,
        metas: dict[str, Any] | None = None,
        error: str | None = None,
    ) -> Commit:
        """Return the commit of an attempt with these deltas."""
        tables: dict[str, pa.Table] = {}
        if deltas is not None:
            tables[self.spec.state.table] = self.table_of(deltas)
        return Commit(
            attempt=under,
            metas=metas or {"partitions": {"lines/0": {"start": under.txid, "end": under.txid + 1}}},
            deltas=tables,
            tuples=7,
            planned_at=PLANNED,
            processed_at=PROCESSED,
            error=error,
        )

    def begin(self, txid: int) -> TransactionAttempt:
        """Begin a commit by executors."""
        under = self.next(txid)
        self.states.begin_commit(self.whole(under))
        return under

    def write(self, under: TransactionAttempt, deltas: Mapping[Any, Any] | pa.Table) -> int:
        """Write one task's share of such a commit."""
        writes = [(self.spec, self.table_of(deltas))]
        written: int = self.states.write(under, writes)
        return written

    def end(self, under: TransactionAttempt, keys: int = 0) -> None:
        """End such a commit."""
        self.states.end_commit(self.whole(under), keys=keys)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the table's rows in column order, sorted by key."""
        return sorted(tuple(row.values()) for row in read_rows(self.url, self.spec.state.table))

    def values(self) -> dict[Any, Any]:
        """Return what people read: key -> value, without the framework's columns."""
        state = self.spec.state
        found = {}
        for row in read_rows(self.url, state.table):
            key = tuple(row[name] for name in state.key_names)
            value = tuple(row[name] for name in state.value_names)
            found[key if len(key) > 1 else key[0]] = value if len(value) > 1 else value[0]
        return found

    def last(self) -> BatchRecord:
        row: BatchRecord | None = self.database.last_batch(self.topology)
        assert row is not None
        return row

    def fence(self) -> AttemptId:
        row: FenceRow | None = self.database.read_fence(self.topology)
        assert row is not None
        return row.attempt


def name_databases(rig: Rig, urls: list[str]) -> None:
    """Have the fence name these databases, as a run with states in all of them does."""
    fence = rig.database.read_fence(rig.topology)
    assert fence is not None
    identity = {"identity": {}, "databases": urls}
    rig.states.keep_identity(fence.attempt, identity)
