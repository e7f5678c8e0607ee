"""The Delta table as of a txid, for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.plugins.delta.place import Place, require_deltalake

if TYPE_CHECKING:
    from deltalake import DeltaTable


def version_of(
    uri: str | Path, topology: str, txid: int, *, storage_options: Mapping[str, str] | None = None
) -> int:
    """Return the version of a Delta table that has all rows of a topology's batches up to this txid, and of
    none behind it: `DeltaTable(uri, version=version_of(uri, "orders", 42))`, or Spark's `versionAsOf`.

    Txids without rows have no version of their own: it is that of the last one that has. What others have
    written before is in it. Raises UsageError if the table is not that topology's, is not as far yet, or if
    its log no longer goes back to it, and ServiceUnavailableError.
    """
    require_deltalake()
    from txstream.plugins.delta.lake import OWNER

    place = Place.of(uri, storage_options)
    head = place.read()
    if head is None:
        raise UsageError(f"there is no {place}")
    owner: dict[str, Any] = json.loads(head.metadata().configuration.get(OWNER) or "{}")
    app = owner.get("app", "")
    if app.rpartition("/")[0] != topology:
        raise UsageError(f"{place} does not belong to topology {topology!r}; its {OWNER} is {owner or None}")
    last = head.transaction_version(app)
    if last is None or not FIRST_TXID - 1 <= txid <= last:
        raise UsageError(
            f"{place} is as of txid {last}; txid {txid} is not in it: it has not come there yet, or it and "
            f"all between them have no rows (`txstream status {topology}` says whether the table is behind)"
        )
    there = last_not_after(place, app, Txid(txid), head.version(), head)
    if there is None:
        raise UsageError(f"the log of {place} no longer goes back to txid {txid}")
    return there


def last_not_after(place: Place, app: str, txid: Txid, newest: int, head: DeltaTable) -> int | None:
    """Return the first version with the last transaction that is not after `txid`. Transactions never fall
    from version to version, and versions before the oldest one that can be read have none."""
    found: dict[int, int | None] = {newest: head.transaction_version(app)}

    def at(version: int) -> int | None:
        if version not in found:
            found[version] = _transaction(place, app, version)
        return found[version]

    def first(reached: int) -> int:
        """Return the first version with this transaction or a later one."""
        low, high = 0, newest
        while low < high:
            middle = (low + high) // 2
            value = at(middle)
            low, high = (low, middle) if value is not None and value >= reached else (middle + 1, high)
        return low

    after = newest + 1 if (at(newest) or 0) <= txid else first(txid + 1)
    if after == 0:
        return None
    reached = at(after - 1)
    return None if reached is None else first(reached)


def _transaction(place: Place, app: str, version: int) -> int | None:
    try:
        table = place.read(version)
    except ServiceUnavailableError:  # it is before what the log still has
        return None
    return None if table is None else table.transaction_version(app)
