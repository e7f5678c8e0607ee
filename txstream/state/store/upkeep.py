"""What a leader does in a `StoreBackend` besides committing: growing tables, beginning and pruning ledgers.

Invariant: each function is part of one transaction that holds the topology's lock alone. The caller has
checked the fence where that is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from txstream.semantics import Semantics
from txstream.state.changes import added_values, committed_in_part
from txstream.state.declarations import declared_spec, refuse_other_declaration
from txstream.state.records import COMMITTED, BatchRecord, TableSpec
from txstream.state.store import layout
from txstream.state.store.layout import Transaction
from txstream.state.store.merging import grower
from txstream.transaction import Txid


def grow_tables(here: Transaction, tables: Sequence[TableSpec], unfinished: Txid | None) -> list[str]:
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


def begin_ledger(here: Transaction, topology: str, last: BatchRecord) -> None:
    """Make `last` the only row of the topology's ledger."""
    ledger = layout.ledger_space(topology)
    for key, _ in list(here.scan(ledger)):
        here.put(ledger, key, None)
    here.put(ledger, (last.txid,), layout.record_value(last))


def prune_ledger(
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
