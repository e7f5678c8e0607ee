"""`StoreBackend`: a `StateBackend` over any store that has transactions, in terms of `get`, `put` and `scan`.

Fence, ledger, value rules and ownership of tables are implemented here. A subclass provides transactions.

Invariants. A method writes in one transaction. One that writes for a topology holds the topology's lock: the
tasks of one attempt and its `end_commit` share it, all others hold it exclusively. The fence is read first,
after the lock is granted. A transaction's changes appear at its end, all at once.

Over 500 lines: every method of the port, each in one transaction.
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.reducers import Reducer
from txstream.api.retention import limit_of
from txstream.api.schema import format_type
from txstream.core.batch_metas import to_json
from txstream.core.dead_letters import DeadLetter, LetterKey
from txstream.core.errors import (
    CorruptStateError,
    SchemaRevisionError,
    StaleAttemptError,
    StateTableError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.plugins.proof.stores import layout, store_letters
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.merging import RowRules, can_keep, grower, keys_of, rows_of, to_table
from txstream.plugins.proof.stores.store_reading import StoreReading
from txstream.state import declarations, fence_rules
from txstream.state.backend import StateBackend
from txstream.state.changes import added_values, committed_in_part
from txstream.state.commit_protocol import StateTransaction
from txstream.state.declarations import Owner, declared_spec, refuse_other_declaration
from txstream.state.reading import StateReading
from txstream.state.records import COMMITTED, BatchRecord, BatchStatus, FenceRow, TableSpec, TopologyLife
from txstream.state.stored_letters import StoredDeadLetter
from txstream.state.values import check_key_values, prepare

FORMAT = 1
"""The format that this version writes. A store of another format is refused."""

_DEFINITIONS = "definitions"


class StoreBackend(StateBackend):
    """A subclass implements `transaction`, and `check` and `close` where there is something to do.

    `label` names this kind of store in errors.
    """

    label: ClassVar[str]
    keeps_dead_letters: ClassVar[bool] = True
    keeps_changes: ClassVar[bool] = True

    def __init__(self, display_url: str) -> None:
        self.display_url = display_url

    def check_values(self, table: str, name: str, column: pa.ChunkedArray, reducer: Reducer | None) -> None:
        """Raise StateValueError for a value that its type allows but this store cannot keep, for example a
        key that is too long. A key has no reducer."""

    @abstractmethod
    def transaction(
        self,
        *,
        exclusive: Sequence[str] = (),
        shared: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> AbstractContextManager[Transaction]:
        """Begin one transaction; commit it at the end of the `with` block, undo it when the block raises.

        It holds the named locks from before its first read until after its commit: an exclusive lock alone, a
        shared one together with others that share it. A store may use coarser locks than the named ones. Two
        transactions that share a lock change different keys (or, when a Spark task runs twice, the same keys
        in the same way), and neither may undo the other's changes. A transaction without locks only reads,
        waits for no lock, and sees whole transactions only.

        Raises FenceLockedError when a lock is not granted within `timeout_seconds` (by default a limit of the
        store's own) or ServiceUnavailableError when the store cannot be reached, both with nothing written;
        AnswerLostError when it is unknown whether the commit happened.
        """

    # --- at start -----------------------------------------------------------------------------------

    def check(self) -> None:
        with self.transaction() as here:
            here.get("format", ())

    def ensure_framework_tables(self) -> None:
        with self.transaction() as here:
            found = here.get("format", ())
        if found is None:
            with self.transaction(exclusive=[_DEFINITIONS]) as here:
                found = here.get("format", ())
                if found is None:
                    here.put("format", (), FORMAT)
                    return
        if found != FORMAT:
            raise SchemaRevisionError(
                f"{self.display_url} was written by another txstream: its format is {found!r}, this one "
                f"writes {FORMAT}; run the txstream that wrote it, or use another store"
            )

    def join(self, life: TopologyLife, *, first_run: bool, identity: Mapping[str, Any] | None = None) -> None:
        topology, uuid = life.topology, life.uuid
        for spec in life.tables:
            _check_table(spec, self.label)
        kept = None if identity is None else json.loads(to_json(identity))
        with self.transaction(exclusive=[_DEFINITIONS, layout.lock_of(topology)]) as here:
            fence = here.get("fence", (topology,))
            if fence is None and not first_run:
                raise fence_rules.unknown_here(life, self.display_url)
            row = FenceRow(topology, uuid, AttemptId(0)) if fence is None else layout.read_fence(fence)
            fence_rules.own_fence(row, self.display_url, life)
            if fence is None or (kept is not None and fence_rules.joining_keeps(row)):
                kept = row.identity if kept is None else kept
                layout.put_fence(here, FenceRow(topology, uuid, row.attempt, kept))
            for spec in life.tables:
                self._join_table(here, life, spec, first_run=first_run)

    def _join_table(self, here: Transaction, life: TopologyLife, spec: TableSpec, *, first_run: bool) -> None:
        name, declared = spec.state.table, spec.state.declaration(spec.semantics)
        owner = layout.read_owner(here, name)
        if owner is not None:
            declarations.refuse_other_owner(owner, life.topology, life.uuid)
            declarations.refuse_other_declaration(owner, spec)
            return
        if not first_run:
            raise declarations.not_here(life.topology, name)
        layout.put_owner(here, Owner(name, life.topology, life.uuid, declared))

    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        with self.transaction(exclusive=[_DEFINITIONS, layout.lock_of(life.topology)]) as here:
            self._hold(here, life, attempt)
            return _grow_tables(here, life.tables, unfinished)

    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
            self._hold(here, life, attempt)
            _begin_ledger(here, life.topology, last)

    def keep_identity(self, life: TopologyLife, attempt: AttemptId, identity: Mapping[str, Any]) -> None:
        kept = json.loads(to_json(identity))
        with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
            self._hold(here, life, attempt)
            layout.put_fence(here, FenceRow(life.topology, life.uuid, attempt, kept))

    # --- the fence ----------------------------------------------------------------------------------

    def read_fence(self, topology: str) -> FenceRow | None:
        with self.transaction() as here:
            found = here.get("fence", (topology,))
        return None if found is None else layout.read_fence(found)

    def topologies(self) -> list[FenceRow]:
        with self.transaction() as here:
            found = [layout.read_fence(value) for _, value in here.scan("fence")]
        return sorted(found, key=lambda row: row.topology)

    def _raise(
        self, here: Transaction, life: TopologyLife, attempt: AttemptId, *, may_be_equal: bool
    ) -> None:
        row = self._own_fence(here, life)
        if fence_rules.must_rise(row, life.topology, attempt, may_be_equal=may_be_equal):
            layout.put_fence(here, FenceRow(life.topology, life.uuid, attempt, row.identity))

    def _hold(self, here: Transaction, life: TopologyLife, attempt: AttemptId) -> None:
        row = self._own_fence(here, life)
        fence_rules.must_be_equal(row, self.display_url, life.topology, attempt)

    def _own_fence(self, here: Transaction, life: TopologyLife) -> FenceRow:
        found = here.get("fence", (life.topology,))
        row = None if found is None else layout.read_fence(found)
        return fence_rules.own_fence(row, self.display_url, life)

    # --- the ledger ---------------------------------------------------------------------------------

    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        with self.transaction() as here:
            found = here.get(layout.ledger_space(topology), (txid,))
        return None if found is None else layout.read_record(found)

    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        with self.transaction() as here:
            found = sorted(here.scan(layout.ledger_space(topology)), key=lambda item: item[0])
        if before is not None:
            found = [item for item in found if item[0][0] < before]
        if limit is not None:
            found = found[-limit:] if limit else []
        return [layout.read_record(value) for _, value in found]

    def prune(
        self, topology: str, *, committed_before: datetime | None, newest: int | None, rows: int
    ) -> int:
        with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
            return _prune_ledger(here, topology, committed_before, newest, rows)

    # --- dead letters -------------------------------------------------------------------------------

    def dead_letters(
        self, topology: str, *, whole: bool = True, key: LetterKey | None = None
    ) -> list[StoredDeadLetter]:
        with self.transaction() as here:
            return store_letters.read(here, topology, key)

    def dead_letter_counts(self, topology: str) -> dict[tuple[Txid, str], int]:
        with self.transaction() as here:
            return store_letters.counts(here, topology)

    def drop_dead_letters(self, topology: str, keys: Sequence[LetterKey]) -> int:
        with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
            return store_letters.drop(here, topology, lambda _, key: key in keys)

    # --- the commit ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def begin(
        self,
        life: TopologyLife,
        doing: str,
        *,
        alone: bool = True,
        lock_timeout_seconds: float | None = None,
    ) -> Iterator[StateTransaction]:
        lock = [layout.lock_of(life.topology)]
        exclusive, shared = (lock, []) if alone else ([], lock)
        with self.transaction(
            exclusive=exclusive, shared=shared, timeout_seconds=lock_timeout_seconds
        ) as here:
            yield _Adapter(self, life, here)

    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        return prepare(spec, deltas, self)

    def _restore(self, here: Transaction, txid: Txid, spec: TableSpec) -> None:
        rules, rows = self._rules(spec), self._rows(here, spec)
        for key, stored in list(here.scan(rows)):
            if stored[2] == txid:
                here.put(rows, key, rules.restored(stored, txid))

    def _write(
        self, here: Transaction, attempt: TransactionAttempt, spec: TableSpec, deltas: pa.Table
    ) -> None:
        rules, rows = self._rules(spec), self._rows(here, spec)
        for key, delta in rows_of(spec, deltas):
            here.put(rows, key, rules.written(here.get(rows, key), delta, attempt, key))

    def _mark(self, here: Transaction, txid: Txid, spec: TableSpec, until: datetime) -> None:
        assert spec.state.marks is not None
        rules, rows = self._rules(spec), self._rows(here, spec)
        flag, time = map(spec.state.value_names.index, spec.state.marks)
        for key, stored in list(here.scan(rows)):
            if not stored[0][flag] and stored[0][time] <= until:
                here.put(rows, key, rules.marked(stored, flag, txid))

    def _keep_changes(self, here: Transaction, txid: Txid, spec: TableSpec) -> None:
        assert spec.state.changes is not None
        rules, kept = self._rules(spec), layout.rows_space(spec.state.changes.table)
        shown = len(spec.state.shown_names)
        for key, stored in list(here.scan(self._rows(here, spec))):
            if stored[2] != txid:
                continue
            if spec.state.keeps_versions:
                before = rules.was_there(stored[1])
                values = (*((None,) * shown if before is None else before[:shown]), before is None)
                here.put(kept, (*key, txid), (values, None, txid))
            else:
                values = (*stored[0][:shown], rules.is_gone(stored))
                here.put(kept, (txid, *key), (values, None, txid))

    def _remove_expired(self, here: Transaction, spec: TableSpec, horizon: int) -> None:
        state, rows = spec.state, self._rows(here, spec)
        assert state.keep_on is not None
        columns = [*state.key_schema, *state.value_schema]
        place = [field.name for field in columns].index(state.keep_on)
        limit = limit_of(columns[place].type, horizon)
        for key, stored in list(here.scan(rows)):
            time = (*key, *stored[0])[place]
            if time is not None and time < limit:
                here.put(rows, key, None)

    def _forget_removed(self, here: Transaction, spec: TableSpec, txid: Txid) -> None:
        rules, rows = self._rules(spec), self._rows(here, spec)
        for key, stored in list(here.scan(rows)):
            if (left := rules.forgotten(stored, txid)) != stored:
                here.put(rows, key, left)

    def _rules(self, spec: TableSpec) -> RowRules:
        return RowRules(spec)

    def _rows(self, here: Transaction, spec: TableSpec) -> str:
        """Return the space of a table's rows. Raises CorruptStateError for a table that was dropped."""
        name = spec.state.table
        if layout.read_owner(here, name) is None:
            raise CorruptStateError(
                f"{self.display_url}: state table {name!r} is no longer there; somebody dropped it while "
                f"it was in use: restore it, or start afresh with `txstream delete ID --drop-state`"
            )
        return layout.rows_space(name)

    def _refuse_grown(self, here: Transaction, spec: TableSpec) -> None:
        """Raise StaleAttemptError when the table has other columns: a newer leader has added some."""
        owner = layout.read_owner(here, spec.state.table)
        if owner is not None and owner.declaration != spec.state.declaration(spec.semantics):
            raise StaleAttemptError(
                f"state table {spec.state.table!r} has grown since this attempt began: another driver has "
                f"taken over"
            )

    # --- reading ------------------------------------------------------------------------------------

    def read(self, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
        check_key_values(spec, keys, self)
        rules, found = self._rules(spec), {}
        with self.transaction() as here:
            rows = self._rows(here, spec)
            self._refuse_grown(here, spec)
            for key in keys_of(spec, keys):
                stored = here.get(rows, key)
                values = None if stored is None else rules.before(stored, before)
                if values is not None:
                    found[key] = values
        return to_table(spec, found)

    @contextlib.contextmanager
    def read_state(self, topology: str) -> Iterator[StateReading]:
        """Raises StateTableError when nothing of txstream is in this store."""
        with self.transaction() as here:
            if here.get("format", ()) is None:
                raise StateTableError(
                    f"{self.display_url} has no state tables; no topology has been run on it"
                )
            yield StoreReading(here, self.display_url, topology)

    def top(self, table: str, *, topology: str, n: int = 10) -> list[dict[str, Any]]:
        """Return the `n` rows of a state table with the greatest first value, as they are stored now.

        Each is column -> value in table order. Raises StateTableError when the table is not this topology's.
        """
        with self.read_state(topology) as state:
            assert isinstance(state, StoreReading)
            return state.columns(table, n)

    def delete(
        self, topology: str, *, drop_state: bool, uuid: str | None = None, attempt: AttemptId | None = None
    ) -> list[str]:
        dropped = []
        with self.transaction(exclusive=[_DEFINITIONS, layout.lock_of(topology)]) as here:
            fence = here.get("fence", (topology,))
            if fence is not None and attempt is not None:
                fence_rules.must_rise(layout.read_fence(fence), topology, attempt, may_be_equal=True)
            if fence is not None and uuid in (None, layout.read_fence(fence).uuid):
                here.put("fence", (topology,), None)
            for key, row in list(here.scan(layout.ledger_space(topology))):
                if uuid in (None, row["uuid"]):
                    here.put(layout.ledger_space(topology), key, None)
            store_letters.drop(here, topology, lambda owner, _: uuid in (None, owner))
            if drop_state:
                for _, value in list(here.scan("table")):
                    owner = Owner(*value)
                    if owner.topology == topology and uuid in (None, owner.uuid):
                        here.put("table", (owner.table,), None)
                        for key, _ in list(here.scan(layout.rows_space(owner.table))):
                            here.put(layout.rows_space(owner.table), key, None)
                        dropped.append(owner.table)
        return sorted(dropped)

    def close(self) -> None:
        return


class _Adapter(StateTransaction):
    """Adapts a transaction of get and put to the commit protocol."""

    def __init__(self, store: StoreBackend, life: TopologyLife, here: Transaction) -> None:
        self._store = store
        self._life = life
        self._here = here

    def raise_fence(self, attempt: AttemptId, *, may_be_equal: bool) -> None:
        self._store._raise(self._here, self._life, attempt, may_be_equal=may_be_equal)

    def hold_fence(self, attempt: AttemptId) -> None:
        self._store._hold(self._here, self._life, attempt)

    def entries(self, first: Txid, last: Txid) -> Mapping[Txid, tuple[BatchStatus, AttemptId]]:
        ledger = layout.ledger_space(self._life.topology)
        rows = {Txid(txid): self._here.get(ledger, (txid,)) for txid in range(first, last + 1)}
        return {txid: (row["status"], row["attempt"]) for txid, row in rows.items() if row is not None}

    def write_batch(self, row: BatchRecord) -> None:
        self._here.put(layout.ledger_space(row.topology), (row.txid,), layout.record_value(row))

    def restore(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        self._store._restore(self._here, attempt.txid, spec)

    def write(self, attempt: TransactionAttempt, spec: TableSpec, deltas: pa.Table) -> None:
        self._store._write(self._here, attempt, spec, deltas)

    def mark(self, attempt: TransactionAttempt, spec: TableSpec, until: datetime) -> None:
        self._store._mark(self._here, attempt.txid, spec, until)

    def keep_changes(self, attempt: TransactionAttempt, spec: TableSpec) -> None:
        self._store._keep_changes(self._here, attempt.txid, spec)

    def remove_expired(self, spec: TableSpec, horizon: int, most: int) -> None:
        self._store._remove_expired(self._here, spec, horizon)

    def forget_removed(self, spec: TableSpec, txid: Txid) -> None:
        self._store._forget_removed(self._here, spec, txid)

    def write_dead_letters(
        self, attempt: TransactionAttempt, letters: Sequence[DeadLetter], when: datetime
    ) -> None:
        store_letters.write(self._here, self._life, attempt, letters, when)

    def undo_dead_letters(self, txid: Txid) -> None:
        store_letters.undo(self._here, self._life, txid)

    def mark_retried(self, keys: Sequence[LetterKey], txid: Txid) -> None:
        store_letters.mark_retried(self._here, self._life, keys, txid)


def _grow_tables(here: Transaction, tables: Sequence[TableSpec], unfinished: Txid | None) -> list[str]:
    """Add the value columns that declarations have gained, with their defaults. Returns a sentence for each.

    Raises StateTableError for a transactional table while txid `unfinished` is committed in part, and for a
    declaration that a table cannot be migrated to.
    """
    done = []
    for spec in tables:
        name = spec.state.table
        owner = layout.read_owner(here, name)
        if owner is not None:
            # Since `join` looked, another driver that declares more columns may have been leader.
            refuse_other_declaration(owner, spec)
        added = () if owner is None else added_values(owner.declaration, spec)
        if owner is None or not added:
            continue
        if unfinished is not None and spec.semantics is Semantics.TRANSACTIONAL:
            raise committed_in_part(name, added, unfinished)
        grown = grower(declared_spec(owner), spec)
        for key, row in list(here.scan(layout.rows_space(name))):
            here.put(layout.rows_space(name), key, grown(row))
        layout.put_owner(here, replace(owner, declaration=spec.state.declaration(spec.semantics)))
        defaults = spec.state.defaults
        done += [f"{name}: column {new!r} added, with default {defaults[new]!r}" for new in added]
    return done


def _begin_ledger(here: Transaction, topology: str, last: BatchRecord) -> None:
    """Make `last` the only row of the topology's ledger."""
    ledger = layout.ledger_space(topology)
    for key, _ in list(here.scan(ledger)):
        here.put(ledger, key, None)
    here.put(ledger, (last.txid,), layout.record_value(last))


def _prune_ledger(
    here: Transaction, topology: str, committed_before: datetime | None, newest: int | None, rows: int
) -> int:
    """Delete at most `rows` rows that may go, from the oldest on and without a gap. Returns how many.

    The last two committed rows stay (see `StateBackend.prune`).
    """
    ledger = layout.ledger_space(topology)
    kept = sorted((layout.read_record(value) for _, value in here.scan(ledger)), key=lambda row: row.txid)
    last = max((row.txid for row in kept if row.status == COMMITTED), default=0)
    pruned = 0
    for row in kept:
        old = committed_before is not None and _committed_before(row, committed_before)
        surplus = newest is not None and row.txid <= last - newest
        may_go = row.txid < last - 1 and (old or surplus)
        if not may_go or pruned == rows:
            break
        here.put(ledger, (row.txid,), None)
        pruned += 1
    return pruned


def _committed_before(row: BatchRecord, time: datetime) -> bool:
    return row.committed_at is not None and row.committed_at < time


def _check_table(spec: TableSpec, label: str) -> None:
    """Raise StateTableError for a declaration that this kind of store cannot keep."""
    state = spec.state
    declarations.check_length(state)
    declarations.check_types(state)
    if state.storage:
        declarations.refuse_storage(state, label)
    for field in (*state.key_schema, *state.value_schema):
        if not can_keep(field.type):
            raise StateTableError(
                f"state table {state.table!r}: {label} cannot keep column {field.name!r} of type "
                f"{format_type(field.type)} exactly; use another type or another database"
            )
    declarations.check_defaults(state, spec.semantics)
    if not spec.is_keyed:
        raise StateTableError(
            f"state table {state.table!r}: a non-transactional table with on_conflict='fail' has rows that "
            f"come twice, and {label} finds rows by their key; use a SQL database, or on_conflict='ignore' "
            f"or 'replace'"
        )
