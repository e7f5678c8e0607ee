"""What a `StoreBackend` keeps in its store: spaces, keys and values, and how they are read back.

| space | key | value |
|---|---|---|
| `format` | `()` | the version of this layout |
| `fence` | topology | topology, uuid, attempt, identity |
| `batch/TOPOLOGY` | txid | the ledger's row, by column |
| `table` | table | table, topology, uuid, declaration |
| `rows/TABLE` | the key columns | values, values before txid (or None), txid (or None) |
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from txstream.metas import to_json
from txstream.semantics import Semantics
from txstream.state.declarations import Owner
from txstream.state.records import BatchRecord, FenceRow
from txstream.state.store.merging import Key
from txstream.transaction import AttemptId


class Transaction(Protocol):
    """What one transaction of a store can do.

    It sees what was committed before its locks were granted, and its own changes. Values are trees of dicts,
    lists, tuples and scalars that nobody changes; None is no value. Keys are tuples of scalars. Scalars are
    what declared types give back: str, bytes, bool, int, float, Decimal, date, datetime, and None in values.
    """

    def get(self, space: str, key: Key) -> Any:
        """The value of a key; None where there is none."""

    def put(self, space: str, key: Key, value: Any) -> None:
        """Set the value of a key; None removes it."""

    def scan(self, space: str) -> Iterable[tuple[Key, Any]]:
        """All keys of a space and their values, in any order. The space may be changed meanwhile."""


def lock_of(topology: str) -> str:
    return f"topology/{topology}"


def ledger_space(topology: str) -> str:
    return f"batch/{topology}"


def rows_space(table: str) -> str:
    return f"rows/{table}"


def read_fence(value: Any) -> FenceRow:
    topology, uuid, attempt, identity = value
    return FenceRow(topology, uuid, AttemptId(attempt), identity)


def put_fence(here: Transaction, row: FenceRow) -> None:
    here.put("fence", (row.topology,), (row.topology, row.uuid, row.attempt, row.identity))


def read_owner(here: Transaction, table: str) -> Owner | None:
    found = here.get("table", (table,))
    return None if found is None else Owner(*found)


def put_owner(here: Transaction, owner: Owner) -> None:
    here.put("table", (owner.table,), (owner.table, owner.topology, owner.uuid, owner.declaration))


def read_record(value: Mapping[str, Any]) -> BatchRecord:
    return BatchRecord(**{**value, "semantics": Semantics(value["semantics"])})


def record_value(row: BatchRecord) -> dict[str, Any]:
    """A row of the ledger as it is kept; its documents are copies."""
    documents = {name: json.loads(to_json(getattr(row, name))) for name in ("metas", "details")}
    kept = {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}
    return {**kept, **documents, "semantics": str(row.semantics)}
