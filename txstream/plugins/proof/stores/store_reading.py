"""`StateReading` over one transaction of a `StoreBackend`.

Invariant: it only reads, and everything that it returns comes from that transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from txstream.core.errors import StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.merging import Key, RowRules, RowValues, read_key
from txstream.state.declarations import Owner, declared_spec
from txstream.state.reading import StateReading, StoredRow, StoredTable
from txstream.state.records import COMMITTED, BatchRecord


class StoreReading(StateReading):
    """Reads from `here`, which has begun. `database` is its store's URL without the password."""

    def __init__(self, here: Transaction, database: str, topology: str) -> None:
        self._here = here
        self._database = database
        self._topology = topology
        rows = [layout.read_record(value) for _, value in here.scan(layout.ledger_space(topology))]
        self._last = max(rows, key=lambda row: row.txid, default=None)
        self._as_of = max((row.txid for row in rows if row.status == COMMITTED), default=Txid(0))
        owners = [Owner(*value) for _, value in here.scan("table")]
        mine = sorted(
            (owner for owner in owners if owner.topology == topology), key=lambda owner: owner.table
        )
        self._owners = {owner.table: owner for owner in mine}

    @property
    def last(self) -> BatchRecord | None:
        return self._last

    @property
    def as_of(self) -> Txid:
        return self._as_of

    def tables(self) -> list[StoredTable]:
        return [_stored(owner) for owner in self._owners.values()]

    def count(self, table: str) -> int:
        return sum(1 for _ in self._committed(table))

    def find(self, table: str, key: Sequence[Any]) -> StoredRow | None:
        rules = self._rules(table)
        state = rules.spec.state
        if len(key) != len(state.key_names):
            raise StateTableError(
                f"state table {table!r} has {counted(len(state.key_names), 'key column')} "
                f"({', '.join(state.key_names)}), got {counted(len(key), 'value')}"
            )
        typed = read_key(rules.spec, key)
        row = self._here.get(layout.rows_space(table), typed)
        found = None if row is None else self._as_committed(rules, typed, row)
        return None if found is None or found.removed else found

    def top(self, table: str, n: int) -> list[StoredRow]:
        rows = sorted(self._committed(table), key=lambda row: tuple(row.key.values()))
        first = self._rules(table).spec.state.value_names[0]
        known = [row for row in rows if row.value[first] is not None]
        known.sort(key=lambda row: row.value[first], reverse=True)
        return (known + [row for row in rows if row.value[first] is None])[:n]

    def written_by(self, table: str, txid: int, limit: int | None = None) -> list[StoredRow]:
        rules = self._rules(table)
        self._require_txid(rules)
        rows = [item for item in self._here.scan(layout.rows_space(table)) if item[1][2] == txid]
        rows.sort(key=lambda item: item[0])
        return [rules.shown_row(key, row, unfinished=txid > self._as_of) for key, row in rows[:limit]]

    def marked(self, table: str, flag: str, time: str, after: Any, until: datetime) -> Iterator[StoredRow]:
        rules = self._rules(table)
        for key, stored in self._here.scan(layout.rows_space(table)):
            row = rules.shown_row(key, stored, unfinished=False)
            if row.value[flag] and row.value[time] <= until and (after is None or row.value[time] > after):
                yield row

    def count_written_by(self, table: str, txid: int) -> int:
        self._require_txid(self._rules(table))
        return sum(row[2] == txid for _, row in self._here.scan(layout.rows_space(table)))

    def columns(self, table: str, n: int) -> list[dict[str, Any]]:
        """Return the rows of `top`, but as stored, committed or not, as column -> value in table order."""
        rules = self._rules(table)
        there = (one for one in self._here.scan(layout.rows_space(table)) if not rules.is_gone(one[1]))
        rows = sorted(there, key=lambda item: item[0])
        known = [item for item in rows if item[1][0][0] is not None]
        known.sort(key=lambda item: item[1][0][0], reverse=True)
        unknown = [item for item in rows if item[1][0][0] is None]
        return [rules.columns(key, row) for key, row in (known + unknown)[:n]]

    # --- inside -------------------------------------------------------------------------------------

    def _rules(self, table: str) -> RowRules:
        owner = self._owners.get(table)
        if owner is None:
            raise StateTableError(
                f"topology {self._topology!r} has no state table {table!r} in {self._database}; it has "
                f"{', '.join(self._owners) or 'none'}"
            )
        return RowRules(declared_spec(owner))

    def _require_txid(self, rules: RowRules) -> None:
        if rules.spec.semantics is Semantics.NON_TRANSACTIONAL:
            raise StateTableError(
                f"state table {rules.spec.state.table!r} is non-transactional: its rows do not remember "
                f"which batch changed them"
            )

    def _committed(self, table: str) -> Iterator[StoredRow]:
        rules = self._rules(table)
        for key, row in self._here.scan(layout.rows_space(table)):
            found = self._as_committed(rules, key, row)
            if found is not None and not found.removed:
                yield found

    def _as_committed(self, rules: RowRules, key: Key, row: RowValues) -> StoredRow | None:
        """Return a row as of the last committed batch, as far as it knows; None if it did not exist."""
        unfinished = row[2] is not None and row[2] > self._as_of
        if not unfinished or not _stored(self._owners[rules.spec.state.table]).tells_before:
            return rules.shown_row(key, row, unfinished=unfinished)
        before = None if row[1] is None else row[1][: len(row[0])]
        return None if before is None else rules.shown_row(key, (before, None, None), unfinished=True)


def _stored(owner: Owner) -> StoredTable:
    return StoredTable.of(declared_spec(owner), owner.uuid)
