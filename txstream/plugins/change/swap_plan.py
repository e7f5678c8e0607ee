"""What a swap would do: which tables change places, and what is in the way of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, func, select

from txstream.api.state import REMOVED
from txstream.core.errors import StateTableError, UsageError
from txstream.core.transaction import AttemptId, Txid
from txstream.core.wording import counted
from txstream.inspect.ledgers import part_of, range_of
from txstream.plugins.change import kept, renaming
from txstream.plugins.change.forks import shadow
from txstream.plugins.change.renaming import Pair
from txstream.plugins.change.rewinding import REWIND
from txstream.state import BatchRecord, StateDatabase
from txstream.state.declarations import declared_spec
from txstream.state.sql import tables as state_tables
from txstream.state.sql.framework_tables import dead_letter
from txstream.state.stored_letters import DEAD

SWAP: Final = "swap"
"""The kind of a ledger row, in its details: as `path`, and with what was swapped under this name."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What the ledger row of a swap says: what every database is to do. `names` are the state tables that the
    topology has from then on, `old` those that it had before, `metas` and `old_metas` its places."""

    fork: str
    fork_uuid: str
    fork_attempt: AttemptId
    back: bool
    last: Txid
    to: Txid
    names: tuple[str, ...]
    old: tuple[str, ...]
    metas: Mapping[str, Any]
    old_metas: Mapping[str, Any]

    def details(self) -> dict[str, Any]:
        told = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "metas"}
        told |= {"names": list(self.names), "old": list(self.old)}
        return {"path": SWAP, REWIND: {"to": self.to, "savepoint": None, "last": self.last}, SWAP: told}

    @classmethod
    def of(cls, row: BatchRecord | None) -> Swap | None:
        """Return what a ledger row has swapped; None if it is no swap."""
        if row is None or not isinstance(told := row.details.get(SWAP), Mapping):
            return None
        names, old = tuple(told["names"]), tuple(told["old"])
        return cls(**{**told, "names": names, "old": old, "metas": row.metas})


def live_name(table: str, fork: str) -> str:
    """Return the name that a fork's table gets by a swap."""
    return table.removesuffix(shadow("", fork))


def refuse_behind(topology: str, fork: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise UsageError unless the fork has read all that the topology has."""
    mine, theirs = ({**part_of(metas, "carried"), **part_of(metas, "partitions")} for metas in (old, new))
    behind = []
    for partition, meta in sorted(mine.items()):
        place = range_of(partition, meta).end
        there = None if partition not in theirs else range_of(partition, theirs[partition]).end
        if partition in theirs and theirs[partition] == meta:
            continue
        if place is None or there is None:
            behind.append(f"{partition} (its places cannot be compared)" if place is None else partition)
        elif there < place:
            behind.append(f"{partition} by {counted(place - there, 'record')}")
    if behind:
        raise UsageError(
            f"{fork!r} is behind {topology!r} in {', '.join(behind)}; let `txstream run` bring it up to it "
            f"(--until caught-up) while {topology!r} stands still"
        )


# --- what is in the way -------------------------------------------------------------------------------------


def pairs_of(database: StateDatabase, topology_id: str, planned: Swap) -> list[Pair]:
    with database.sessions.reading("its tables") as connection:
        return pairs_in(connection, topology_id, planned)


def pairs_in(connection: Connection, topology_id: str, planned: Swap) -> list[Pair]:
    """Return which tables of a database change places, by what is recorded there."""
    fork = planned.fork
    live = {owner.table for owner in state_tables.owned_by(connection, topology_id)}
    incoming: dict[str, tuple[str, Mapping[str, Any]]] = {}
    if planned.back:
        row = kept.read(connection, topology_id).get(fork)
        incoming = {} if row is None else dict(row.tables)
    else:
        for owner in state_tables.owned_by(connection, fork):
            incoming[live_name(owner.table, fork)] = (owner.table, owner.declaration)
    return [
        Pair(
            name,
            incoming[name][0] if name in incoming else None,
            f"{name}__before_{fork}" if name in live else None,
        )
        for name in sorted(live | incoming.keys())
    ]


def refuse(
    topology: str,
    fork: str,
    databases: Sequence[StateDatabase],
    pairs: Mapping[str, Sequence[Pair]],
    planned: Swap,
) -> None:
    refused: list[str] = []
    for database in databases:
        some, dialect = pairs[database.display_url], database.sessions.dialect
        if dialect.name not in renaming.PLACES:
            refused.append(f"{dialect.label} commits each renaming by itself")
            continue
        with database.sessions.reading("its tables") as connection:
            ids = (topology, fork)
            for owner in (owner for one in ids for owner in state_tables.owned_by(connection, one)):
                spec = declared_spec(owner)
                if spec.state.transient:
                    refused.append(f"rows of {owner.table} leave for a topic, which cannot be swapped")
                if spec.state.removed_by is not None or REMOVED in spec.state.value_names:
                    refused.append(f"{owner.table} is a view of rows that can be removed")
            for pair in some:
                if pair.kept is not None:
                    try:
                        dialect.check_name(pair.name, "table", pair.kept)
                    except StateTableError as error:
                        refused.append(str(error))
            refused += renaming.hindrances(connection, dialect, some)
            dead = select(dead_letter.c.topology, func.count()).group_by(dead_letter.c.topology)
            dead = dead.where(dead_letter.c.topology.in_(ids), dead_letter.c.status == DEAD)
            for one, number in connection.execute(dead):
                refused.append(f"{one} has {counted(number, 'dead letter')}: retry or drop them first")
    incoming = {pair.name for some in pairs.values() for pair in some if pair.incoming is not None}
    if lacking := sorted({*planned.names} - incoming):
        refused.append(f"{', '.join(lacking)} of {fork} is in none of the databases of {topology}")
    if refused:
        raise UsageError(
            f"{topology!r} cannot be swapped with {fork!r}: {'; '.join(dict.fromkeys(refused))}; "
            f"nothing was changed"
        )
