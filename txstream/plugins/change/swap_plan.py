"""What a swap would do: which tables change places, and what is in the way of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from txstream.state.changes import declared_values
from txstream.state.declarations import Owner, declared_spec
from txstream.state.sql import tables as state_tables
from txstream.state.sql.framework_tables import dead_letter
from txstream.state.stored_letters import DEAD

SWAP: Final = "swap"
"""The kind of a ledger row, in its details: as `path`, and with what was swapped under this name."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What the ledger row of a swap says: what every database is to do. `names` are the state tables that the
    topology has from then on, `old` those that it had before, `metas` and `old_metas` its places, `learned`
    what its windows know, `by` who has asked for it (a row of an older version does not say)."""

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
    learned: Mapping[str, Any]
    by: str = ""

    def details(self) -> dict[str, Any]:
        told = {n: getattr(self, n) for n in self.__dataclass_fields__ if n not in ("metas", "learned")}
        told |= {"names": list(self.names), "old": list(self.old)}
        to = {"to": self.to, "savepoint": None, "last": self.last}
        return {"path": SWAP, REWIND: to, SWAP: told, "learned": dict(self.learned)}

    @classmethod
    def of(cls, row: BatchRecord | None) -> Swap | None:
        """Return what a ledger row has swapped; None if it is no swap."""
        if row is None or not isinstance(told := row.details.get(SWAP), Mapping):
            return None
        names, old = tuple(told["names"]), tuple(told["old"])
        return cls(
            **{
                **told,
                "names": names,
                "old": old,
                "metas": row.metas,
                "learned": row.details.get("learned", {}),
            }
        )


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
    live = {
        owner.table: owner.declaration
        for owner in state_tables.owned_by(connection, topology_id)
        if copied_by(owner) not in planned.names
    }
    incoming: dict[str, tuple[str, Mapping[str, Any]]] = {}
    if planned.back:
        incoming = dict(_kept_tables(connection, topology_id, planned))
    else:
        for owner in state_tables.owned_by(connection, fork):
            incoming[live_name(owner.table, fork)] = (owner.table, owner.declaration)
    return [
        Pair(
            name,
            incoming[name][0] if name in incoming else None,
            f"{name}__before_{fork}" if name in live else None,
            shown_by(live[name] if name in live else incoming[name][1]),
        )
        for name in sorted(live.keys() | incoming.keys())
    ]


def shown_by(declaration: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the declaration of a table with `removed_by`; None for another one."""
    values = declared_values(declaration)
    return declaration if values is not None and REMOVED in values.names else None


def copied_by(owner: Owner) -> str | None:
    """Return the table whose changed rows a table keeps until they have left: it stays with that name."""
    return owner.declaration.get("copies")


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
                if declared_spec(owner).state.transient and copied_by(owner) not in planned.names:
                    refused.append(f"rows of {owner.table} leave for a topic, which cannot be swapped")
            refused += _declared_otherwise(connection, ids, some, planned)
            for pair in some:
                if pair.kept is not None:
                    try:
                        dialect.check_name(pair.name, "table", str(pair.stored.kept))
                    except StateTableError as error:
                        refused.append(str(error))
            refused += renaming.hindrances(connection, dialect, some)
            dead = select(dead_letter.c.topology, func.count()).group_by(dead_letter.c.topology)
            dead = dead.where(dead_letter.c.topology.in_(ids), dead_letter.c.status == DEAD)
            for one, number in connection.execute(dead):
                refused.append(f"{one} has {counted(number, 'dead letter')}: retry or drop them first")
    incoming = {pair.name for some in pairs.values() for pair in some if pair.incoming is not None}
    if lacking := sorted({*planned.names} - incoming - {*staying(databases, topology, planned.names)}):
        refused.append(f"{', '.join(lacking)} of {fork} is in none of the databases of {topology}")
    if refused:
        raise UsageError(
            f"{topology!r} cannot be swapped with {fork!r}: {'; '.join(dict.fromkeys(refused))}; "
            f"nothing was changed"
        )


def staying(databases: Sequence[StateDatabase], topology: str, names: Collection[str]) -> list[str]:
    """Return the tables of changed rows that stay, since the tables that they copy are among `names`."""
    found = []
    for database in databases:
        with database.sessions.reading("its tables") as connection:
            owners = state_tables.owned_by(connection, topology)
        found += [owner.table for owner in owners if copied_by(owner) in names]
    return found


def _declared_otherwise(
    connection: Connection, ids: tuple[str, str], pairs: Sequence[Pair], planned: Swap
) -> list[str]:
    """Return of which tables the columns must be the same as before, and are not."""
    owners = {one.table: one for topology in ids for one in state_tables.owned_by(connection, topology)}
    declared: dict[str, Mapping[str, Any]] = {name: one.declaration for name, one in owners.items()}
    for stored, declaration in _kept_tables(connection, ids[0], planned).values():
        declared.setdefault(stored, declaration)
    copied = {copied_by(one) for one in owners.values()}
    refused = []
    for pair in pairs:
        if pair.kept is None or pair.incoming is None:
            continue
        old, new = declared[pair.name], declared[pair.incoming]
        if old == new:
            continue
        if shown_by(old) or shown_by(new):
            refused.append(f"{pair.name} has removed_by, and is declared otherwise in {planned.fork}")
        elif pair.name in copied and any(old[one] != new[one] for one in ("key", "value")):
            refused.append(f"{pair.name} has changes_to, and other columns in {planned.fork}")
    return refused


def _kept_tables(
    connection: Connection, topology: str, planned: Swap
) -> Mapping[str, tuple[str, Mapping[str, Any]]]:
    row = kept.read(connection, topology).get(planned.fork) if planned.back else None
    return {} if row is None else row.tables
