"""What a `StoreBackend` keeps in its store: spaces, keys and values, written and read back.

| space | key | value |
|---|---|---|
| `format` | `()` | the version of this layout |
| `fence` | topology | topology, uuid, attempt, identity |
| `batch/TOPOLOGY` | txid | the ledger's row, by column |
| `dead/TOPOLOGY` | uuid, txid, place | the dead letter, by column |
| `table` | table | table, topology, uuid, declaration |
| `rows/TABLE` | the key columns | values, values before txid (or None), txid (or None) |

`Overlay` is a transaction over dictionaries, for stores that hold everything in memory and write the changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

from txstream.core.batch_metas import to_json
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId
from txstream.plugins.proof.stores.merging import Key
from txstream.state.declarations import Owner
from txstream.state.records import BatchRecord, FenceRow


class Transaction(Protocol):
    """What one transaction of a store can do.

    It sees what was committed before its locks were granted, and its own changes. Values are trees of dicts,
    lists, tuples and scalars, and nobody modifies them; None means no value. Keys are tuples of scalars.
    Scalars have the Python types of the declared types: str, bytes, bool, int, float, Decimal, date,
    datetime; in values also None.
    """

    def get(self, space: str, key: Key) -> Any:
        """Return the value of a key; None when it has none."""

    def put(self, space: str, key: Key, value: Any) -> None:
        """Set the value of a key; None removes it."""

    def scan(self, space: str) -> Iterable[tuple[Key, Any]]:
        """Return all keys of a space and their values, in any order. The space may be changed meanwhile."""


def lock_of(topology: str) -> str:
    return f"topology/{topology}"


def ledger_space(topology: str) -> str:
    return f"batch/{topology}"


def dead_space(topology: str) -> str:
    return f"dead/{topology}"


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
    """Return a row of the ledger as it is kept, with copies of its documents."""
    documents = {name: json.loads(to_json(getattr(row, name))) for name in ("metas", "details")}
    return {**vars(row), **documents, "semantics": str(row.semantics)}


Spaces = dict[str, dict[Key, Any]]


class Overlay:
    """One transaction's view: its own changes over `below`, the committed data. Only `apply` changes that."""

    def __init__(self, below: Spaces) -> None:
        self._below = below
        self._changed: Spaces = {}

    def get(self, space: str, key: Key) -> Any:
        changed = self._changed.get(space)
        if changed is not None and key in changed:
            return changed[key]
        return self._below.get(space, {}).get(key)

    def put(self, space: str, key: Key, value: Any) -> None:
        self._changed.setdefault(space, {})[key] = value

    def scan(self, space: str) -> Iterable[tuple[Key, Any]]:
        changed = self._changed.get(space, {})
        # Copied in one step, which no other thread can interrupt.
        below = list(self._below.get(space, {}).items())
        found = [item for item in below if item[0] not in changed]
        return found + [item for item in changed.items() if item[1] is not None]

    def changes(self) -> Iterator[tuple[str, Key, Any]]:
        """Yield what was put: space, key and value. The value is None for a removed key."""
        for space, changed in self._changed.items():
            for key, value in changed.items():
                yield space, key, value

    def apply(self) -> None:
        """Put the changes into the committed data."""
        for space, key, value in self.changes():
            apply_to(self._below, space, key, value)


def apply_to(spaces: Spaces, space: str, key: Key, value: Any) -> None:
    """Make one change to the committed data."""
    if value is None:
        spaces.get(space, {}).pop(key, None)
    else:
        spaces.setdefault(space, {})[key] = value
