"""What the views of states show, as plain values: rows, what a batch changed in them, which records made
them, and whether a batch would give the same today. As `views`, all of it is read through a `Site`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from txstream import inspect
from txstream.core.errors import TxstreamError
from txstream.inspect.json_documents import document, flat_row

if TYPE_CHECKING:
    from txstream.inspect.databases import Databases
    from txstream.inspect.records import MissingDatabase
    from txstream.plugins.web.site import Site

_RECENT = 20
_MOST_ROWS = 50
_LOOKED_BACK = 250  # batches, for the records of a value


def state(site: Site, topology_id: str) -> dict[str, Any]:
    """Return the state tables."""

    def read() -> dict[str, Any]:
        missing: list[MissingDatabase] = []
        found = inspect.states(topology_id, site.settings, missing=missing)
        told = [str(one) for one in missing]
        return {"topology": topology_id, "tables": document(found), "missing": told}

    return site.memo(("states", topology_id), read, 2.0)


def table(
    site: Site,
    topology_id: str,
    name: str,
    key: Sequence[str] = (),
    place: str | None = None,
    txid: int | None = None,
) -> dict[str, Any]:
    """Return the rows with the greatest values of a table, or the row of a key, by its columns; with `txid`,
    also what that batch changed in it."""
    if key:
        rows = inspect.get(topology_id, name, key, site.settings, database=place, parse=True)
    else:
        rows = site.memo(
            ("top", topology_id, name, place),
            lambda: inspect.top(topology_id, name, _RECENT, site.settings, database=place),
            2.0,
        )
    known: dict[str, Any] = next(
        (one for one in state(site, topology_id)["tables"] if one["table"] == name), {}
    )
    keys, columns = known.get("key", ""), f"{known.get('key', '')}, {known.get('value', '')}"
    decimals = re.findall(r"(\w+) decimal\b", columns)
    return {
        "topology": topology_id,
        "table": name,
        "database": rows.database,
        "as_of": rows.as_of,
        "key_columns": [part.split()[0] for part in keys.split(", ") if part],
        "key": list(key),
        "decimals": [one for name in decimals for one in (name, f"prev_{name}")],
        "rows": [flat_row(row, rows.semantics, has_prev=rows.has_prev) for row in rows.rows],
        "notes": list(rows.notes),
        "diff": None
        if txid is None
        else document(inspect.diff(topology_id, name, txid, site.settings, database=place, limit=_MOST_ROWS)),
    }


def changes(site: Site, topology_id: str, txid: int, tables: Sequence[str]) -> list[dict[str, Any]]:
    """Return what a batch changed in each table, some rows of each. A table that cannot say so says why."""

    def changed(table: str, opened: Databases) -> dict[str, Any]:
        try:
            found: dict[str, Any] = document(inspect.diff(topology_id, table, txid, opened, limit=_MOST_ROWS))
        except TxstreamError as error:
            found = {"table": table, "error": str(error)}
        return found

    try:
        with inspect.opened(topology_id, site.settings) as opened:
            return [changed(table, opened) for table in tables]
    except TxstreamError as error:
        return [{"table": table, "error": str(error)} for table in tables]


def why(site: Site, topology_id: str, name: str, key: Sequence[str]) -> dict[str, Any]:
    """Return which records made a value: batches run again, in a process of their own."""
    made = site.code_of(topology_id)
    found: dict[str, Any] = document(
        inspect.why(made, name, list(key), site.settings, limit=_RECENT, within=_LOOKED_BACK, parse=True)
    )
    return found


def again(site: Site, topology_id: str, txid: int) -> dict[str, Any]:
    """Return whether a batch would be the same today."""
    found = inspect.replay(site.code_of(topology_id), txid, site.settings)
    return {"topology": topology_id, "txid": txid, "same": found.same, "shown": found.shown} | {
        "tables": document(found.tables)
    }
