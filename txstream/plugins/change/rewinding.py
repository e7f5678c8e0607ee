"""Rewind: all states of a topology put back to an earlier txid, under a txid of its own.

Steps. 1. Be elected, claim an epoch, raise every fence; settle what was left by a crash. 2. Drop the plans
that nothing has committed; if there were some, claim another epoch. 3. In each database one transaction puts
the rows back, undoes the dead letters of the batches since, and writes the ledger row. 4. Progress advances
as after any batch.

Invariants. The rewind is the batch of the txid that would commit next: that txid is never used again, no
attempt of an undone batch comes back under it, and its metas are the places of the txid that is gone back to.
The first transaction decides. Killed before it, nothing has begun; killed after it, its ledger row says what
every other database is to do, and the next leader does it again, everywhere, before it reads where the
topology is (`settle`). Until then nobody commits, since every leader raises the fences first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, Table, delete, insert, select, update

from txstream.api.state import TXID_COLUMN
from txstream.core.errors import FencedError, ProgressMismatchError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.start.recovery import prove_distinct, recover, take_over
from txstream.engine.start.takeover import Unsettled
from txstream.inspect.databases import nowhere, open_databases, open_zookeeper
from txstream.inspect.ledgers import part_of, rewound_to
from txstream.inspect.plain_metas import codec_of
from txstream.plugins.audit.rebuilt_progress import rebuild
from txstream.plugins.audit.recover_from_ledgers import elected
from txstream.plugins.change import folders, registry
from txstream.plugins.change.registry import MADE, SavedPart
from txstream.plugins.change.savepoints import (
    copy_of,
    driver_rows,
    learned_at,
    learned_by,
    no_savepoint,
    saved,
    saved_in,
    sql_database,
    sql_databases,
)
from txstream.plugins.change.swap_command import settle as settle_swap
from txstream.plugins.change.told import leaves, telling
from txstream.settings import Settings
from txstream.state import BatchRecord, StateDatabase, TopologyLife, TopologyStates
from txstream.state.declarations import Owner, declared_spec
from txstream.state.records import COMMITTED
from txstream.state.sql import tables as state_tables
from txstream.state.sql.database import PreparedStatements, SqlTransaction
from txstream.state.sql.framework_tables import dead_letter
from txstream.state.stored_letters import DEAD
from txstream.zookeeper import Identity, Progress, ProgressStore

if TYPE_CHECKING:
    from txstream.core.batch_metas import MetaCodec

REWIND: Final = "rewind"
"""The kind of a ledger row, in its details: as `path`, and with what was gone back to under this name."""


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewind has done: the states are as of txid `to` again, by the batch `txid`. `undone` are the
    first and the last batch whose effects are gone."""

    topology: str
    to: Txid
    savepoint: str | None
    txid: Txid
    undone: tuple[Txid, Txid]
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Target:
    """What is gone back to: a savepoint, or what the tables themselves remember. `last` is the last batch
    before the rewind; `learned` is what windows knew at the end of `to`."""

    to: Txid
    savepoint: str | None
    last: Txid
    metas: Mapping[str, Any]
    learned: Mapping[str, Any]

    def details(self) -> dict[str, Any]:
        told = {"to": self.to, "savepoint": self.savepoint, "last": self.last}
        return {"path": REWIND, REWIND: told, "learned": dict(self.learned)}

    @classmethod
    def of(cls, row: BatchRecord) -> Target | None:
        """Return what a ledger row has gone back to; None if it is no rewind."""
        to = rewound_to(row)
        if to is None or row.details.get("path") != REWIND:
            return None
        told, learned = row.details[REWIND], row.details.get("learned", {})
        return cls(to, told["savepoint"], Txid(told["last"]), row.metas, learned)


def rewind(
    topology_id: str,
    to: str,
    settings: Settings | None = None,
    *,
    confirm: Callable[[str], None] = lambda _: None,
) -> Rewound:
    """Put all states back to a savepoint, or to a txid, by its number. Nothing may run the topology.

    `confirm` is called with what is about to happen, and raises to leave everything as it is. Returns only
    once all of it is done. Raises LeaderExistsError, UnknownTopologyError, ServiceUnavailableError if a
    database is away, and UsageError with what would work where it cannot be.
    """
    settings = (settings or Settings()).resolve()
    settings.require_zookeeper()
    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id, for_writing=True) as found,
    ):
        if not found.opened:
            raise nowhere(settings, topology_id)
        databases = sql_databases(found)
        with elected(zookeeper, topology_id):
            identity = zookeeper.identity(topology_id)
            if identity is None:
                raise ProgressMismatchError(
                    f"topology {topology_id!r} is not in ZooKeeper; `txstream fsck {topology_id}` says why"
                )
            codec = codec_of(identity, None)
            store = zookeeper.progress(topology_id, codec)
            return rewind_in(topology_id, to, identity, store, databases, codec, confirm)


def rewind_in(
    topology_id: str,
    to: str,
    identity: Identity,
    store: ProgressStore,
    databases: Sequence[StateDatabase],
    codec: MetaCodec[Any],
    confirm: Callable[[str], None] = lambda _: None,
) -> Rewound:
    """Do what `rewind` does, over services that are open. Nobody else may lead the topology meanwhile."""
    semantics = identity.semantics
    if semantics is Semantics.NON_TRANSACTIONAL:
        raise UsageError(f"topology {topology_id!r} is non-transactional: it has no txid to go back to")
    # Step 1
    states = [one.of(topology_id, identity.uuid, semantics) for one in databases]
    fence = prove_distinct(topology_id, states, take_over(store, states))
    unsettled = Unsettled(identity, store, states, fence)
    settle(unsettled)
    settle_swap(unsettled)
    progress = _settled(topology_id, semantics, store, states, codec)
    target = _target(topology_id, to, databases, progress)
    _check(topology_id, target, databases, semantics)
    first, last = Txid(target.to + 1), target.last
    confirm(
        f"Put {topology_id} back to txid {target.to}, as batch {progress.current}? The effects of txid "
        f"{first} to {last} go, and their records are read again."
    )
    # Step 2
    kept = {txid: one for txid, one in progress.batches.items() if txid < progress.current}
    if len(kept) < len(progress.batches):
        without = Progress(progress.current, progress.committed_by, kept)
        store.replace(partial(rebuild, codec, identity, without))
        # A late copy of that write would drop what step 4 stores: not under another claim.
        fence = prove_distinct(topology_id, states, take_over(store, states))
        refuse_overtaken(topology_id, without, _settled(topology_id, semantics, store, states, codec))
    _reached("plans dropped")
    # Step 3
    _put_back_everywhere(states, target, progress.current, fence)
    # Step 4
    recover(topology_id, semantics, store, states, codec)
    tables = tuple(sorted(identity.tables))
    return Rewound(topology_id, target.to, target.savepoint, progress.current, (first, last), tables)


def settle(unsettled: Unsettled) -> None:
    """Finish a rewind that was broken off: every start calls this before it reads where the topology is."""
    rows = [one.last_batch() for one in unsettled.states]
    newest = max((row for row in rows if row is not None), key=lambda row: row.txid, default=None)
    target = None if newest is None else Target.of(newest)
    if newest is None or target is None or unsettled.store.load().current != newest.txid:
        return
    if len({row and (row.txid, row.attempt, row.status) for row in rows}) > 1:
        _put_back_everywhere(unsettled.states, target, newest.txid, unsettled.fence)


def refuse_overtaken(topology_id: str, before: Progress, now: Progress) -> None:
    """Raise FencedError if another driver has led between two claims of this process."""
    if now != before:
        raise FencedError(
            f"another driver has led topology {topology_id!r} meanwhile; nothing was changed, try again"
        )


def _settled(
    topology_id: str,
    semantics: Semantics,
    store: ProgressStore,
    states: Sequence[TopologyStates],
    codec: MetaCodec[Any],
) -> Progress:
    resume = recover(topology_id, semantics, store, states, codec)
    if resume.replays:
        (txid,) = resume.replays
        raise UsageError(
            f"topology {topology_id!r}: txid {txid} is committed in part; let `txstream run` finish it "
            f"(--until-txid {txid} ends it there), then rewind"
        )
    return resume.progress


def _target(topology_id: str, to: str, databases: Sequence[StateDatabase], progress: Progress) -> Target:
    """Return what a name or a number stands for. Raises UsageError for neither."""
    last = Txid(progress.current - 1)
    whole = [one for one in saved(topology_id, databases) if one.is_whole]
    named = [one for one in whole if one.name == to or (to.isdecimal() and one.txid == int(to))]
    if not named and not to.isdecimal():
        raise no_savepoint(topology_id, to, databases)
    txid = named[0].txid if named else Txid(int(to))
    if txid >= last:
        raise UsageError(
            f"topology {topology_id!r} is at txid {last}: it can go back to an earlier one, not to {txid}"
        )
    row = next((row for one in databases if (row := one.batch(topology_id, txid)) is not None), None)
    for one in named:
        part = next(iter(one.parts.values()))
        if row is None or row.attempt == part.attempt:
            learned = learned_at(topology_id, one, databases)
            return Target(txid, one.name, last, places(part.metas), learned)
        if one.name == to:
            raise UsageError(
                f"savepoint {to!r} of topology {topology_id!r} has what an attempt of txid {txid} has "
                f"committed that was undone; drop it, and go back to another"
            )
    if row is None:
        raise UsageError(
            f"topology {topology_id!r} has no txid {txid} in its ledger, whose places would be gone back to; "
            f"{_would_work(topology_id, databases, None)}"
        )
    return Target(txid, None, last, places(row.metas), learned_by(topology_id, txid, databases))


def places(metas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metas of a batch that reads nothing and begins where these end."""
    carried = {**part_of(metas, "carried"), **part_of(metas, "partitions")}
    horizons = part_of(metas, "horizons")
    return {"partitions": {}, "carried": carried, **({"horizons": dict(horizons)} if horizons else {})}


def _would_work(topology_id: str, databases: Sequence[StateDatabase], reach: Txid | None) -> str:
    there = [
        f"savepoint {one.name} (txid {one.txid})" for one in saved(topology_id, databases) if one.is_whole
    ]
    there += [] if reach is None else [f"txid {reach}"]
    return f"what would work: {', '.join(there) or 'nothing; make savepoints'}"


# --- what can be --------------------------------------------------------------------------------------------


def _check(
    topology_id: str, target: Target, databases: Sequence[StateDatabase], semantics: Semantics
) -> None:
    """Raise UsageError, with what would work, unless every table can go back to the target."""
    refused: list[str] = []
    reach: Txid | None = Txid(target.last - 1)
    for database in databases:
        owners = _owners(database, topology_id)
        if target.savepoint is not None:
            part = saved_in(database, topology_id).get(target.savepoint)
            refused += _not_saved(part, owners, database)
            refused += _letters_gone(topology_id, target, database)
            continue
        if semantics is not Semantics.OPAQUE:
            refused += [f"{one.table} is transactional and keeps no earlier values" for one in owners]
            reach = None
        since = database.batches(topology_id, limit=target.last - target.to)
        if rewinds := [row.txid for row in since if rewound_to(row) is not None]:
            kind = since[-1].details["path"] if since[-1].txid == rewinds[-1] else REWIND
            refused.append(f"txid {rewinds[-1]} is a {kind} itself")
            reach = None if target.last in rewinds else reach
        for owner in owners:
            if _is_appended(owner) or semantics is not Semantics.OPAQUE:
                continue
            if target.to < target.last - 1:
                refused.append(f"rows of {owner.table} know only what they were before their last change")
    if refused:
        raise UsageError(
            f"topology {topology_id!r} cannot go back to txid {target.to}: "
            f"{'; '.join(dict.fromkeys(refused))}; {_would_work(topology_id, databases, reach)}"
        )


def _not_saved(part: SavedPart | None, owners: Sequence[Owner], database: StateDatabase) -> list[str]:
    saved_tables = {} if part is None else {one.table: one for one in part.tables}
    found = []
    for owner in owners:
        one = saved_tables.get(owner.table)
        if one is None:
            found.append(f"{owner.table} in {database.display_url} has joined since the savepoint")
        elif one.declaration != owner.declaration:
            found.append(f"{owner.table} was declared otherwise then")
        elif part is not None and part.folder is not None:
            next(folders.read_table(Path(part.folder), one), None)  # its digest is looked at
    return found


def _letters_gone(topology_id: str, target: Target, database: StateDatabase) -> list[str]:
    """Name the batches of a savepoint whose dead letters went when a batch since then undid them: of a record
    that they left out, nothing would be left, and one that they retried would be retried once more."""
    since = database.batches(topology_id, limit=target.last - target.to)
    undoing = {row.txid: to for row in since if (to := rewound_to(row)) is not None and to < target.to}
    if not undoing:
        return []
    low = min(undoing.values())
    by = min(txid for txid, to in undoing.items() if to == low)
    undone = database.batches(topology_id, limit=target.to - low, before=target.to + 1)
    return [
        f"the dead letters of txid {row.txid} went with it when txid {by} undid it"
        for row in undone
        if row.metas.get("excluded") or row.metas.get("retried")
    ]


def _owners(database: StateDatabase, topology_id: str) -> list[Owner]:
    with database.sessions.reading("its tables") as connection:
        return state_tables.owned_by(connection, topology_id)


def _is_appended(owner: Owner) -> bool:
    """Whether rows of a table never change, so that they tell which batch made them."""
    return declared_spec(owner).state.on_conflict in ("fail", "ignore")


# --- doing it -----------------------------------------------------------------------------------------------


def _reached(step: str) -> None:
    """Called between any two steps that write, for tests that die there."""


def _put_back_everywhere(
    states: Sequence[TopologyStates], target: Target, txid: Txid, attempt: AttemptId
) -> None:
    for number, one in enumerate(states):
        last = one.last_batch()
        again = last is not None and last.txid == txid
        _put_back(sql_database(one.store), one.life, target, TransactionAttempt(txid, attempt), again=again)
        _reached(f"database {number} put back")


def _put_back(
    database: StateDatabase,
    life: TopologyLife,
    target: Target,
    attempt: TransactionAttempt,
    *,
    again: bool,
) -> None:
    """Put the states of one database back, in one transaction under the fence. Done `again`, it leaves what
    is to be told as it is."""
    now = datetime.now(UTC)
    with database.sessions.writing(f"rewinding to txid {target.to}", patient=True) as (connection, answered):
        here = SqlTransaction(life, PreparedStatements(database.sessions), connection, answered)
        here.hold_fence(attempt.attempt)
        owners = state_tables.owned_by(connection, life.topology)
        part = _held(connection, database, life.topology, target) if owners else None
        live = {one.table: state_tables.declared_table(one, database.sessions.dialect) for one in owners}
        copies = {one.declaration["copies"]: live[one.table] for one in owners if leaves(one)}
        # Copies first, so that what is told stays.
        for owner in sorted(owners, key=lambda one: "copies" not in one.declaration):
            if again and "copies" in owner.declaration:
                continue
            table, spec = live[owner.table], declared_spec(owner)
            changes = None if again else copies.get(owner.table)
            since = Txid(0 if part is not None else target.to + 1)
            with telling(connection, spec.state, table, changes, since, attempt.txid):
                if part is not None:
                    _from_savepoint(connection, database, part, owner, table)
                elif _is_appended(owner):
                    connection.execute(delete(table).where(table.c[TXID_COLUMN] > target.to))
                else:
                    here.restore(TransactionAttempt(target.last, attempt.attempt), spec)
            answered()
        _undo_letters(connection, life, target.to)
        here.write_batch(
            BatchRecord(
                life.topology,
                life.uuid,
                attempt.txid,
                attempt.attempt,
                life.semantics,
                COMMITTED,
                dict(target.metas),
                0,
                0,  # rows that carry its txid: those that are put back keep their own
                now,
                now,
                datetime.now(UTC),
                None,
                target.details(),
            )
        )
        _reached("inside")


def _held(
    connection: Connection, database: StateDatabase, topology_id: str, target: Target
) -> SavedPart | None:
    """Return the part of the savepoint in a database; until the transaction ends, nobody drops it."""
    if target.savepoint is None:
        return None
    part = registry.read(connection, topology_id, held=True).get(target.savepoint)
    if part is None or (part.status, part.txid) != (MADE, target.to):
        raise UsageError(
            f"savepoint {target.savepoint!r} of txid {target.to} of topology {topology_id!r} is not in "
            f"{database.display_url} any more: it was dropped meanwhile"
        )
    return part


def _from_savepoint(
    connection: Connection, database: StateDatabase, part: SavedPart, owner: Owner, live: Table
) -> None:
    one = next(one for one in part.tables if one.table == owner.table)
    connection.execute(delete(live))
    if part.folder is None:
        copy = copy_of(database, one)
        names = [column.name for column in live.columns]
        connection.execute(insert(live).from_select(names, select(*(copy.c[name] for name in names))))
    else:
        for rows in folders.read_table(Path(part.folder), one):
            connection.execute(live.insert(), driver_rows(database, rows))


def _undo_letters(connection: Connection, life: TopologyLife, to: Txid) -> None:
    """Undo what the batches after `to` did with dead letters: their records are read again."""
    mine = dead_letter.c.topology == life.topology, dead_letter.c.uuid == life.uuid
    connection.execute(delete(dead_letter).where(*mine, dead_letter.c.txid > to))
    retried = select(dead_letter.c.status).where(*mine, dead_letter.c.status != DEAD).distinct()
    for status in connection.execute(retried).scalars().all():
        with contextlib.suppress(ValueError):
            if int(status.rpartition(" ")[2]) > to:
                connection.execute(
                    update(dead_letter).where(*mine, dead_letter.c.status == status).values(status=DEAD)
                )
