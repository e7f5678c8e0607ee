"""Writing a `SqlTable`: rows that are not merged, as SQL.

Invariants. A row that carries the batch's txid is written once: its second write changes nothing, because it
is the same row. `restore` removes what an earlier attempt of an opaque batch wrote: such a row is deleted,
or, if it replaced another, gives that row back with its txid. So after it no row carries the batch's txid.
Older rows are kept, replaced or refused, as `on_conflict` says; newer ones end the transaction, as in every
table. With `sequence_by`, a row of a greater sequence stays as it is, and so does its txid.

A removal is a row like others, whose `REMOVED` is true: it replaces what is there. To undo it gives back the
row with its `prev_` columns, which it has kept in columns of their own.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, and_, case, delete, false, not_, or_, update

from txstream.api.state import KEPT_PREFIX, PREV_PREFIX, PREV_TXID_COLUMN, REMOVED, TXID_COLUMN
from txstream.core.errors import StateValueError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.state.records import TableSpec
from txstream.state.sql.dialect import StateDialect, Touch
from txstream.state.sql.writer import TableWriter
from txstream.state.values import chunks, shown_key, shown_values


class AppendWriter(TableWriter):
    """The prepared statements of one table of rows as they come."""

    def __init__(self, spec: TableSpec, dialect: StateDialect) -> None:
        super().__init__(spec, dialect)
        columns = self._table.c
        # Where keys are expected to be there already, the upsert finds out at once.
        is_new = spec.state.on_conflict == "fail" and not self._copies_written
        self._bulk = dialect.bulk_insert(self._table) if is_new else None
        if spec.semantics is not Semantics.NON_TRANSACTIONAL:
            self._undo = [delete(self._table)]
        if spec.keeps_prev:
            created = columns[PREV_TXID_COLUMN].is_(None)
            before = {columns[name]: columns[f"{PREV_PREFIX}{name}"] for name in spec.state.value_names}
            before[columns[TXID_COLUMN]] = columns[PREV_TXID_COLUMN]
            self._undo = [delete(self._table).where(created), update(self._table).values(before)]
            if spec.state.removed_by is not None:
                self._undo.insert(1, self._bring_back())

    def _bring_back(self) -> Any:
        """Return the update of rows that were there and are removed."""
        columns, pairs = self._table.c, []
        for name in (TXID_COLUMN, *self.spec.state.shown_names):  # MySQL assigns from left to right
            prev, kept = self._prev(name), columns[f"{KEPT_PREFIX}{name}"]
            pairs += [(columns[name], prev), (prev, kept)]
        was_there = case((columns[f"{KEPT_PREFIX}{TXID_COLUMN}"].is_not(None), false()))
        pairs += [(self._prev(REMOVED), was_there), (columns[REMOVED], false())]
        pairs += [(column, None) for column in columns if "kept" in column.info]
        gone = and_(columns[REMOVED], not_(self._prev(REMOVED)))
        return update(self._table).ordered_values(*pairs).where(gone)

    def write(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, answered: Touch
    ) -> None:
        """Write prepared rows. Raises StateValueError for a key that an earlier batch has written, if that is
        to fail, and TxidRegressionError."""
        if self._bulk is not None and deltas.num_rows >= self._bulk.least_rows:
            for chunk in chunks(deltas, self._bulk.chunk_rows):
                written = self._bulk.execute(connection, chunk, attempt.txid)
                answered()
                if written is None:
                    self._upserted(connection, attempt, chunk, answered)
                else:
                    self._prove(connection, attempt, chunk, written)
            return
        self._upserted(connection, attempt, deltas, answered)

    def explain(
        self, connection: Connection, attempt: TransactionAttempt, deltas: pa.Table, refused: TxstreamError
    ) -> StateValueError | None:
        return self._explained_key(deltas, refused)

    def _update(self, excluded: Any) -> tuple[dict[str, Any], Any]:
        spec, columns = self.spec, self._table.c
        values, replaces = spec.state.value_names, spec.state.on_conflict == "replace"
        sequence = spec.state.sequence_by
        newer = []
        if sequence is not None:
            order = self._dialect.ordering
            newer = [order(columns[sequence]) > order(excluded[sequence])]
        if spec.semantics is Semantics.NON_TRANSACTIONAL:
            new = excluded if replaces else columns
            older = {name: [(one, columns[name]) for one in newer] for name in values}
            return {n: case(*older[n], else_=new[n]) if newer else new[n] for n in values}, None
        stored, txid = columns[TXID_COLUMN], excluded[TXID_COLUMN]
        if not replaces:
            allowed = stored == txid if spec.state.on_conflict == "fail" else stored <= txid
            return {column.name: column for column in columns if "key" not in column.info}, allowed
        stays = or_(stored == txid, *newer)
        changes: dict[str, Any] = {TXID_COLUMN: case((stays, stored), else_=txid) if newer else txid}
        for name in values:
            changes[name] = case((stays, columns[name]), else_=excluded[name])
        for name in (*values, TXID_COLUMN) if spec.keeps_prev else ():
            prev, kept = self._prev(name), columns.get(f"{KEPT_PREFIX}{name}")
            changes[prev.name] = case((stays, prev), else_=columns[name])
            if kept is not None:
                # Of a row that followed a removed one, nothing is known before.
                gone = and_(excluded[REMOVED], not_(columns[REMOVED]), not_(self._prev(REMOVED)))
                changes[kept.name] = case((stays, kept), (gone, prev))
        return changes, stored <= txid

    def _refused(
        self, connection: Connection, attempt: TransactionAttempt, chunk: pa.Table, missing: int
    ) -> TxstreamError:
        if self.spec.state.on_conflict == "fail":
            for row, stored in self._stored_rows(connection, attempt.txid, chunk):
                if stored[TXID_COLUMN] < attempt.txid:
                    return StateValueError(
                        f"table {self.spec.state.table!r}: key {shown_key(self.spec, chunk, row)} is there "
                        f"since txid {stored[TXID_COLUMN]}, and {attempt} has another row of this key: "
                        f"{shown_values(self.spec, chunk, row)}; give each row a key of its own, or "
                        f"choose on_conflict='ignore' or 'replace'"
                    )
        return super()._refused(connection, attempt, chunk, missing)
