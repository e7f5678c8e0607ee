"""Which tables a swap has kept: a table of this room's own, in each database of a topology.

Invariant. The transaction that lets names change places writes the row too, so it always says which tables
there are under the names `table__before_NEW`, and as of which txid of the topology they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, delete, inspect, select

from txstream.core.transaction import Txid
from txstream.state.sql.framework_tables import TOPOLOGY_LENGTH, UUID_LENGTH, Document, Utc

OLD: Final = "old"
NEW: Final = "new"

kept = Table(
    "txstream_kept",
    MetaData(),
    Column("topology", String(TOPOLOGY_LENGTH), primary_key=True),
    Column("fork", String(TOPOLOGY_LENGTH), primary_key=True),
    Column("uuid", String(UUID_LENGTH), nullable=False),
    Column("which", String(8), nullable=False),
    Column("txid", BigInteger, nullable=False),
    Column("at", Utc, nullable=False),
    Column("metas", Document(), nullable=False),
    Column("tables", Document(), nullable=False),
    Column("names", Document(), nullable=False),
)


@dataclass(frozen=True, slots=True)
class Kept:
    """What one database has kept of a swap of `topology` with `fork`, as of the end of batch `txid`, whose
    places are `metas`. `which` says whether it is what was there before the swap, or what `swap --back` has
    put aside. `tables` is what they are kept as, and how they were declared, by the name that they had;
    `names` are all state tables that the topology had, in all databases."""

    topology: str
    fork: str
    uuid: str
    which: str
    txid: Txid
    metas: Mapping[str, Any]
    tables: Mapping[str, tuple[str, Mapping[str, Any]]]
    names: tuple[str, ...]


def read(connection: Connection, topology: str) -> dict[str, Kept]:
    """Return what a database has kept of a topology's swaps, by fork."""
    if not inspect(connection).has_table(kept.name):
        return {}
    rows = connection.execute(select(kept).where(kept.c.topology == topology)).mappings()
    return {
        row["fork"]: Kept(
            row["topology"],
            row["fork"],
            row["uuid"],
            row["which"],
            Txid(row["txid"]),
            json.loads(row["metas"]),
            {name: (stored, declared) for name, (stored, declared) in json.loads(row["tables"]).items()},
            tuple(json.loads(row["names"])),
        )
        for row in rows
    }


def write(connection: Connection, one: Kept) -> None:
    """Write what is kept now, in place of what was. The definitions are locked."""
    kept.create(connection, checkfirst=True)
    forget(connection, one.topology, one.fork)
    row = {name: getattr(one, name) for name in ("topology", "fork", "uuid", "which", "txid")}
    documents = {name: json.dumps(getattr(one, name)) for name in ("metas", "tables", "names")}
    connection.execute(kept.insert().values(**row, **documents, at=datetime.now(UTC)))


def forget(connection: Connection, topology: str, fork: str) -> None:
    connection.execute(delete(kept).where(kept.c.topology == topology, kept.c.fork == fork))
