"""One life of a topology in the store under test: the calls on it, and what is stored of it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from txstream.api.reducers import Reducer, Sum
from txstream.api.state import SqlState
from txstream.core.errors import TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid, attempt_id
from txstream.state import BatchRecord, Commit, FenceRow, StateBackend, TableSpec, TopologyStates
from txstream.state.commit_protocol import nobody

if TYPE_CHECKING:
    from txstream.plugins.proof.state_suite.trial import StateTrial

PLANNED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PROCESSED = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
LATER = Txid(2**62)
"""Later than every batch of a check: `read` before it gives what is stored now."""

Deltas: TypeAlias = "Mapping[Any, Any] | pa.Table | None"
"""{"a": 1} for one key and one value; tuples for several; None where the batch has nothing for the table."""


@dataclass
class Life:
    """One life of a topology with some tables, through one opening of the store. Deltas are passed in the
    order of the tables. `keys` are the keys written so far."""

    trial: StateTrial
    store: StateBackend
    topology: str
    semantics: Semantics
    tables: tuple[TableSpec, ...]
    uuid: str = "uuid-1"
    epoch: int = 1
    keys: dict[Any, None] = field(default_factory=dict)
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def spec(self) -> TableSpec:
        return self.tables[0]

    @property
    def states(self) -> TopologyStates:
        """This life, bound to its store."""
        return self.store.of(self.topology, self.uuid, self.semantics, self.tables)

    def at(self, store: StateBackend) -> Life:
        """Return the same life through another opening of the store."""
        return replace(self, store=store)

    def next(self, txid: int) -> TransactionAttempt:
        """Return a new attempt."""
        return TransactionAttempt(Txid(txid), attempt_id(self.epoch, next(self.sequence)))

    def whole(self, attempt: TransactionAttempt, *deltas: Deltas, **options: Any) -> Commit:
        """Return the commit of an attempt."""
        return Commit(
            attempt=attempt,
            metas=options.pop("metas", {"partitions": {"p": {"start": attempt.txid}}}),
            deltas={spec.state.table: rows for spec, rows in self._writes(deltas)},
            tuples=7,
            planned_at=PLANNED,
            processed_at=PROCESSED,
            **options,
        )

    def _writes(self, deltas: Sequence[Deltas]) -> list[tuple[TableSpec, pa.Table]]:
        for rows in deltas:
            self.keys.update(dict.fromkeys(rows) if isinstance(rows, Mapping) else {})
        given = zip(self.tables, deltas, strict=False)
        return [(spec, to_table(spec, rows)) for spec, rows in given if rows is not None]

    # --- calls, unguarded: for `refused`, `refuses`, `outcome` and `beside` -------------------------------

    def joining(self, *, first_run: bool = True, **options: Any) -> None:
        self.states.join(first_run=first_run, **options)

    def committing(self, attempt: TransactionAttempt, *deltas: Deltas, **options: Any) -> None:
        reached = options.pop("reached", nobody)
        self.states.commit(self.whole(attempt, *deltas, **options), reached=reached)

    def beginning(self, attempt: TransactionAttempt, *deltas: Deltas, **options: Any) -> None:
        reached = options.pop("reached", nobody)
        self.states.begin_commit(self.whole(attempt, *deltas, **options), reached=reached)

    def writing(self, attempt: TransactionAttempt, *deltas: Deltas) -> int:
        return self.states.write(attempt, self._writes(deltas))

    def ending(self, attempt: TransactionAttempt, *deltas: Deltas, **options: Any) -> None:
        self.states.end_commit(self.whole(attempt, *deltas), **options)

    def raising(self, attempt: AttemptId, **options: Any) -> None:
        self.states.raise_fence(attempt, **options)

    # --- calls that must be answered ----------------------------------------------------------------------

    def join(self, **options: Any) -> Life:
        self.trial.ask("framework tables are ensured", self.store.ensure_framework_tables)
        self.trial.ask("a topology joins", self.joining, **options)
        return self

    def commit(self, txid: int, *deltas: Deltas, **options: Any) -> TransactionAttempt:
        """Commit on the driver path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} is committed", self.committing, attempt, *deltas, **options)
        return attempt

    def begin(self, txid: int, *deltas: Deltas) -> TransactionAttempt:
        """Begin a commit on the executor path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} begins", self.beginning, attempt, *deltas)
        return attempt

    def write(self, attempt: TransactionAttempt, *deltas: Deltas) -> int:
        return self.trial.ask(f"a task of {attempt} writes", self.writing, attempt, *deltas)

    def end(self, attempt: TransactionAttempt, *deltas: Deltas, **options: Any) -> None:
        self.trial.ask(f"{attempt} ends", self.ending, attempt, *deltas, **options)

    def raise_fence(self, epoch: int, sequence: int = 0) -> AttemptId:
        attempt = attempt_id(epoch, sequence)
        self.trial.ask("the fence is raised", self.raising, attempt)
        return attempt

    # --- what is stored -----------------------------------------------------------------------------------

    def values(self, before: int = LATER) -> dict[Any, Any]:
        """Return key -> value for all keys written so far. Several columns make a tuple."""
        return self.read(list(self.keys), before)

    def read(self, keys: Sequence[Any], before: int = LATER, table: int = 0) -> dict[Any, Any]:
        spec = self.tables[table]
        state = spec.state
        asked = to_table(spec, dict.fromkeys(keys, ())).select(state.key_names)
        found = self.trial.ask("keys are read", self.store.read, spec, asked, before=Txid(before))
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

    def ledger(self, **options: Any) -> list[BatchRecord]:
        return self.trial.ask("the ledger is read", self.store.batches, self.topology, **options)

    def batch(self, txid: int) -> BatchRecord:
        found = self.trial.ask("a batch is looked up", self.store.batch, self.topology, txid)
        if found is None:
            self.trial.fail(f"a row of the ledger for txid {txid}", "None")
        return found

    def everything(self) -> tuple[Any, ...]:
        """Return all that is stored, to compare it with what is stored later."""
        fence = self.trial.ask("the fence is read", self.store.read_fence, self.topology)
        values = [self.read(list(self.keys), table=number) for number in range(len(self.tables))]
        return values if len(values) > 1 else values[0], self.ledger(), fence

    # --- what must be -------------------------------------------------------------------------------------

    def holds(self, expected: Mapping[Any, Any], when: str = "in the end", table: int = 0) -> None:
        """Fail unless these are the values of the keys written so far."""
        self.trial.require(f"the values {when}", expected, self.read(list(self.keys), table=table))

    @contextlib.contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """Fail unless the block leaves nothing behind."""
        keys = dict(self.keys)
        before = self.everything()
        yield
        names = ("the values", "the ledger", "the fence")
        for name, one, other in zip(names, before, self.everything(), strict=True):
            self.trial.require(f"{name}, unchanged by {what}", one, other)
        self.keys = keys

    def refuses(
        self, what: str, kind: type[TxstreamError], call: Callable[..., Any], *arguments: Any, **options: Any
    ) -> None:
        """Fail unless a call raises an error of this kind and leaves nothing behind."""
        with self.unchanged(what):
            self.trial.refused(what, kind, call, *arguments, **options)

    def is_unknown(self, when: str) -> None:
        """Fail if the store holds a fence or a ledger row of this topology."""
        trial, store, name = self.trial, self.store, self.topology
        trial.require(f"the fence {when}", None, trial.ask("a fence is read", store.read_fence, name))
        trial.require(f"the ledger {when}", [], self.ledger())


def table(
    name: str,
    semantics: Semantics = Semantics.OPAQUE,
    *,
    key: str | pa.Schema = "word string",
    value: str | pa.Schema = "n bigint",
    reducers: Mapping[str, Reducer] | None = None,
    defaults: Mapping[str, Any] | None = None,
    keep: str | None = None,
) -> TableSpec:
    """Return a state table, by default a word count."""
    state = SqlState(name, key=key, value=value, defaults=defaults or {}, keep=keep)
    return TableSpec(state, semantics, reducers or {column: Sum(column) for column in state.value_names})


def to_table(spec: TableSpec, deltas: Mapping[Any, Any] | pa.Table) -> pa.Table:
    """Return {key: value} as a table of key and value columns; a table is returned as it is."""
    if isinstance(deltas, pa.Table):
        return deltas
    schema = pa.schema([*spec.state.key_schema, *spec.state.value_schema])
    rows = [(*_tuple(key), *(_tuple(value) or (None,) * len(schema))) for key, value in deltas.items()]
    columns = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def by_key(spec: TableSpec, rows: pa.Table) -> dict[Any, Any]:
    """Return key and value columns as {key: value}."""
    keys, values = (
        rows.select(names).to_pylist() for names in (spec.state.key_names, spec.state.value_names)
    )
    return {
        _alone(tuple(key.values())): _alone(tuple(value.values()))
        for key, value in zip(keys, values, strict=True)
    }


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _alone(row: tuple[Any, ...]) -> Any:
    return row if len(row) > 1 else row[0]
