"""Reading state: what a table holds as of the last committed batch.

Invariant: everything that one `StateReading` returns is as of one moment. While a batch is being committed
on the executor path, the rows that it has written are shown as they were before it, if the table is opaque or
its rows are never changed; other tables do not keep the earlier values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from txstream.api.state import PREV_PREFIX, TXID_COLUMN, OnConflict
from txstream.core.errors import UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.state.records import BatchRecord, TableSpec


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A state table as it was declared. `owner` is the uuid of the topology life that it was created for."""

    name: str
    key: pa.Schema
    value: pa.Schema
    semantics: Semantics
    owner: str
    on_conflict: OnConflict | None = None
    removes: bool = False
    """Whether its rows may be removed; `value` does not have the column that says so."""
    sequence_by: str | None = None
    transient: bool = False
    """Whether rows of older batches may be gone, because they were used."""
    copies: str | None = None
    """The table whose changes it holds; the ledger does not count them."""

    @classmethod
    def of(cls, spec: TableSpec, owner: str) -> StoredTable:
        state = spec.state
        rules = state.on_conflict, state.removed_by is not None, state.sequence_by
        used = state.transient, state.copies
        return cls(state.table, state.key_schema, state.shown_schema, spec.semantics, owner, *rules, *used)

    @property
    def keeps_older(self) -> bool:
        """Whether a row that a batch has for it may be left out for one that is there."""
        return self.on_conflict == "ignore" or self.sequence_by is not None

    @property
    def has_txid(self) -> bool:
        return self.semantics is not Semantics.NON_TRANSACTIONAL

    @property
    def has_prev(self) -> bool:
        return self.semantics is Semantics.OPAQUE and self.on_conflict in (None, "replace")

    @property
    def tells_before(self) -> bool:
        """Whether a row tells what its key held before its txid: in `prev`, or because its rows are never
        changed, so that each was created by its txid."""
        return self.has_prev or (self.has_txid and self.on_conflict in ("fail", "ignore"))

    def columns(self, row: StoredRow) -> dict[str, Any]:
        """Return a row as SQL shows it: keys, each value followed by its `prev_` (opaque), then `txid`."""
        found = dict(row.key)
        for name, value in row.value.items():
            found[name] = value
            if self.has_prev:
                found[f"{PREV_PREFIX}{name}"] = None if row.prev is None else row.prev[name]
        if self.has_txid:
            found[TXID_COLUMN] = row.txid
        return found


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row by column, with Python values. `prev` has the values before `txid` (opaque), or is None when that
    txid created the row; `txid` is None where the table has none. With `removed`, which only `written_by`
    returns, `txid` has removed the row.

    `unfinished` is true when a batch that is still being committed has written the row. In an opaque table
    the row is then as it was before that batch, and its `prev` and `txid` are unknown. Without `knows_before`
    nobody knows what the key held before `txid`: an undone batch had replaced the row, and has given it back.
    """

    key: Mapping[str, Any]
    value: Mapping[str, Any]
    prev: Mapping[str, Any] | None
    txid: Txid | None
    unfinished: bool = False
    removed: bool = False
    knows_before: bool = True


class StateReading(ABC):
    """One topology's state in one store, at one moment. Not thread-safe; valid inside its `with` block.

    Methods that take a table raise StateTableError for one that is not the topology's.
    """

    @property
    @abstractmethod
    def last(self) -> BatchRecord | None:
        """The ledger's last row."""

    @property
    @abstractmethod
    def as_of(self) -> Txid:
        """The last committed txid; 0 before the first commit."""

    @property
    def unfinished(self) -> Txid | None:
        """The txid that executors are committing, or were committing when the driver died; else None."""
        last = self.last
        return last.txid if last is not None and last.txid > self.as_of else None

    @abstractmethod
    def tables(self) -> list[StoredTable]:
        """Return the topology's state tables in this store, sorted by name."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Return how many rows a table has as of the last committed batch."""

    @abstractmethod
    def find(self, table: str, key: Sequence[Any]) -> StoredRow | None:
        """Return the row of a key, or None. The key is given as one value per key column."""

    @abstractmethod
    def top(self, table: str, n: int) -> list[StoredRow]:
        """Return the `n` rows with the greatest first value, greatest first; equal ones by key."""

    def whole(self, table: str) -> Iterable[pa.Table]:
        """Yield all rows as of the last committed batch in parts, each with every column of the table, the
        framework's and those of removed rows among them. Of a row that an unfinished batch has written, only
        key and values are known: the others are null. Optional: a store that does not know raises."""
        raise UsageError(f"{type(self).__name__} cannot read a whole table; look at it with its own tools")

    @abstractmethod
    def written_by(self, table: str, txid: int, limit: int | None = None) -> list[StoredRow]:
        """Return the rows that carry `txid` as they are stored, sorted by key. Reads the whole table, unless
        txid is indexed."""

    @abstractmethod
    def count_written_by(self, table: str, txid: int) -> int:
        """Return how many rows carry `txid`."""

    def written_since(self, table: str, txid: int) -> Iterable[StoredRow]:
        """Return the rows that carry this txid or a later one that is committed, those of a txid together."""
        for one in range(txid, self.as_of + 1):
            yield from self.written_by(table, one)

    def marked(self, table: str, flag: str, time: str, after: Any, until: datetime) -> Iterable[StoredRow]:
        """Return the rows, as they are stored, that have this flag (`SqlState.marks`) and a time after one
        and not after the other. Optional: a store that does not know raises."""
        raise UsageError(f"{type(self).__name__} cannot read marked rows; look at them with its own tools")

    # --- for fsck: the defaults report nothing, for a store that does not know ------------------------

    def differences(self, table: str) -> list[str] | None:
        """Return one sentence per difference between a table and its declaration; None when it is gone."""
        return []

    def newest_row(self, table: str) -> tuple[int, Mapping[str, Any] | None]:
        """Return the greatest txid that any row carries and the key of such a row; (0, None) without rows."""
        return 0, None

    def rows_before_the_first(self, table: str) -> int:
        """Return how many rows carry a txid that no batch can have (below the first)."""
        return 0

    def rows_half_created(self, table: str) -> int:
        """Return how many rows of an opaque table have one `prev` that is null and another that is not. All
        of a row's are written together, so no row should."""
        return 0
