"""One life of a topology in a store that is tried: what is done to it, and what is stored of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.reducers import Reducer, Sum
from txstream.api.state import SqlState
from txstream.semantics import Semantics
from txstream.state import BatchRecord, Commit, FenceRow, StateBackend, TableSpec, TopologyStates
from txstream.state.protocol import nobody
from txstream.transaction import AttemptId, TransactionAttempt, Txid, attempt_id

if TYPE_CHECKING:
    from txstream.testing.state_trial import StateTrial

PLANNED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PROCESSED = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
LATER = Txid(2**62)
"""Later than every batch of a check: `read` before it gives what is stored now."""

Deltas = Mapping[Any, Any]


@dataclass
class Life:
    """One life of a topology with one table, through one opening of the store. Keys are those that it has
    written so far."""

    trial: StateTrial
    store: StateBackend
    topology: str
    semantics: Semantics
    spec: TableSpec
    uuid: str = "uuid-1"
    epoch: int = 1
    keys: dict[Any, None] = field(default_factory=dict)
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def at(self, store: StateBackend) -> Life:
        """The same life through another opening."""
        return Life(
            self.trial,
            store,
            self.topology,
            self.semantics,
            self.spec,
            self.uuid,
            self.epoch,
            self.keys,
            self.sequence,
        )

    def next(self, txid: int) -> TransactionAttempt:
        """A new attempt."""
        return TransactionAttempt(Txid(txid), attempt_id(self.epoch, next(self.sequence)))

    def whole(self, attempt: TransactionAttempt, deltas: Deltas | None = None, **options: Any) -> Commit:
        """The commit of an attempt, with deltas for the table."""
        tables = {} if deltas is None else {self.spec.state.table: self.table_of(deltas)}
        return Commit(
            attempt=attempt,
            metas=options.pop("metas", {"partitions": {"p": {"start": attempt.txid}}}),
            deltas={**tables, **options.pop("more", {})},
            tuples=options.pop("tuples", 7),
            planned_at=PLANNED,
            processed_at=PROCESSED,
            **options,
        )

    def table_of(self, deltas: Deltas) -> pa.Table:
        """{"a": 1} for one key and one value; tuples for several."""
        self.keys.update(dict.fromkeys(deltas))
        return to_table(self.spec, deltas)

    # --- calls, unguarded: for `refused`, `outcome` and `beside` ------------------------------------------

    def states(self, tables: Sequence[TableSpec] = ()) -> TopologyStates:
        """The life, bound to its store; by default with its one table."""
        return self.store.of(self.topology, self.uuid, self.semantics, tables or [self.spec])

    def joining(self, *, first_run: bool = True, tables: Sequence[TableSpec] = (), **options: Any) -> None:
        self.states(tables).join(first_run=first_run, **options)

    def committing(self, attempt: TransactionAttempt, deltas: Deltas | None, **options: Any) -> None:
        reached = options.pop("reached", nobody)
        states = self.states(options.pop("tables", ()))
        states.commit(self.whole(attempt, deltas, **options), reached=reached)

    def beginning(self, attempt: TransactionAttempt, deltas: Deltas | None = None, **options: Any) -> None:
        reached = options.pop("reached", nobody)
        self.states().begin_commit(self.whole(attempt, deltas, **options), reached=reached)

    def writing(self, attempt: TransactionAttempt, deltas: Deltas) -> int:
        return self.states().write(attempt, [(self.spec, self.table_of(deltas))])

    def ending(
        self, attempt: TransactionAttempt, deltas: Deltas | None = None, *, keys: int = 0, **options: Any
    ) -> None:
        reached = options.pop("reached", nobody)
        self.states().end_commit(self.whole(attempt, deltas, **options), keys=keys, reached=reached)

    def raising(self, attempt: AttemptId, **options: Any) -> None:
        self.states().raise_fence(attempt, **options)

    # --- calls that must be answered ----------------------------------------------------------------------

    def join(self, **options: Any) -> Life:
        self.trial.ask("a topology joins", self.joining, **options)
        return self

    def commit(self, txid: int, deltas: Deltas | None, **options: Any) -> TransactionAttempt:
        """Driver path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} is committed", self.committing, attempt, deltas, **options)
        return attempt

    def begin(self, txid: int, deltas: Deltas | None = None) -> TransactionAttempt:
        """Executor path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} begins", self.beginning, attempt, deltas)
        return attempt

    def write(self, attempt: TransactionAttempt, deltas: Deltas) -> int:
        return self.trial.ask(f"a task of {attempt} writes", self.writing, attempt, deltas)

    def end(self, attempt: TransactionAttempt, deltas: Deltas | None = None, *, keys: int = 0) -> None:
        self.trial.ask(f"{attempt} ends", self.ending, attempt, deltas, keys=keys)

    def raise_fence(self, epoch: int, sequence: int = 0) -> AttemptId:
        attempt = attempt_id(epoch, sequence)
        self.trial.ask("the fence is raised", self.raising, attempt)
        return attempt

    # --- what is stored -----------------------------------------------------------------------------------

    def values(self, before: int = LATER) -> dict[Any, Any]:
        """key -> value of all keys that were written so far; tuples for several columns."""
        return self.read(list(self.keys), before)

    def read(self, keys: Sequence[Any], before: int = LATER, spec: TableSpec | None = None) -> dict[Any, Any]:
        spec = spec or self.spec
        found = self.trial.ask(
            "keys are read", self.store.read, spec, keys_table(spec, keys), before=Txid(before)
        )
        state = spec.state
        schema = pa.schema([*state.key_schema, *state.value_schema])
        if not isinstance(found, pa.Table) or not found.schema.remove_metadata().equals(schema):
            other = getattr(found, "schema", None)
            shown = f"{found!r:.200}" if other is None else f"{other.to_string()!r:.300}"
            self.trial.fail(f"a table of {schema.to_string()!r}", shown)
        return by_key(spec, found)

    def fence(self) -> FenceRow:
        found = self.trial.ask("the fence is read", self.store.read_fence, self.topology)
        if found is None:
            self.trial.fail(f"a fence of {self.topology}, which has joined", "None")
        return found

    def batch(self, txid: int) -> BatchRecord:
        found = self.trial.ask("a batch is looked up", self.store.batch, self.topology, txid)
        if found is None:
            self.trial.fail(f"a row of the ledger for txid {txid}", "None")
        return found

    def everything(self) -> tuple[Any, ...]:
        """All that is stored, to be compared with what is stored later."""
        ledger = self.trial.ask("the ledger is read", self.store.batches, self.topology)
        fence = self.trial.ask("the fence is read", self.store.read_fence, self.topology)
        return self.values(), ledger, fence

    @contextlib.contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """What happens inside leaves nothing behind."""
        before = self.everything()
        yield
        names = ("the values", "the ledger", "the fence")
        for name, one, other in zip(names, before, self.everything(), strict=True):
            self.trial.require(f"{name}, unchanged by {what}", one, other)


def table(
    name: str,
    semantics: Semantics = Semantics.OPAQUE,
    *,
    key: str = "word string",
    value: str = "n bigint",
    reducers: Mapping[str, Reducer] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> TableSpec:
    """A state table, by default a word count."""
    state = SqlState(name, key=key, value=value, defaults=defaults or {})
    return TableSpec(state, semantics, reducers or {column: Sum(column) for column in state.value_names})


def to_table(spec: TableSpec, deltas: Deltas) -> pa.Table:
    """Key and value columns of {key: value}."""
    schema = pa.schema([*spec.state.key_schema, *spec.state.value_schema])
    rows = [(*_tuple(key), *_tuple(value)) for key, value in deltas.items()]
    columns = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def keys_table(spec: TableSpec, keys: Sequence[Any]) -> pa.Table:
    """The key columns of these keys."""
    rows = [_tuple(key) for key in keys]
    schema = spec.state.key_schema
    columns = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def by_key(spec: TableSpec, rows: pa.Table) -> dict[Any, Any]:
    """{key: value} of key and value columns."""
    found = {}
    for row in rows.to_pylist():
        key = tuple(row[name] for name in spec.state.key_names)
        value = tuple(row[name] for name in spec.state.value_names)
        found[key if len(key) > 1 else key[0]] = value if len(value) > 1 else value[0]
    return found


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
