"""Swap: a fork's tables take the names of a topology's, which goes on with the fork's code and places.

Steps. 1. Lead both, claim an epoch of each, raise every fence; settle what was left by a crash. 2. See that
the fork is at or past the topology's place in every partition, and that nothing hangs on the old tables that
could not follow. 3. The identity in ZooKeeper names only the tables that both have, so that either code can
start from here on; drop the plans that nothing has committed. 4. In each database one transaction, under both
fences, forgets the fork, lets the names change places, and writes the ledger row (renaming_later.py: the
databases where a renaming commits by itself). 5. Progress advances, and the fork goes from ZooKeeper.

Invariants. As a rewind, the swap is the batch of the txid that would commit next, and the first transaction
decides: killed before it, nothing has begun (step 3 does not keep either code from starting); killed after
it, its ledger row says what the other databases are to do, and the next leader does that before anything
else. The fork cannot commit in between, since its fence is raised and its attempt compared, nor start again,
since each transaction takes its fence away with its tables.

Why txids stay true. The fork's rows carry the fork's numbers, which mean nothing in the topology's ledger and
may be greater than its next txid. The swap is the batch that wrote these rows into the topology: they get its
txid, and nothing before it, as rows that it has created (prev NULL). It is committed everywhere before
the next batch begins and is never undone by itself, so nobody asks what was before. In the ledger the swap is
a rewind to txid 0: no earlier batch has an effect in the tables, so that `why`, `wait` and `fsck` count none;
it has no digests, and as many keys as it has rows. `swap --back` puts tables of the topology's own numbers
back, as of the batch before the swap: there it is a rewind to that txid, rows keep their txids, and it reads
again what came since. Savepoints of before still have the rows of before; a rewind to one of them works if
the declarations are the same. Dead letters of before would be counted twice if they were retried, so a swap
with some is refused.

Over 500 lines: one batch, whose steps are read beside what a crash leaves of each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, delete, update

from txstream.core.batch_metas import MetaCodec, to_json
from txstream.core.errors import IdentityMismatchError, ProgressMismatchError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.start.recovery import prove_distinct, recover, take_over
from txstream.engine.start.takeover import Unsettled, kept_of
from txstream.inspect.databases import nowhere, open_databases, open_zookeeper
from txstream.inspect.ledgers import part_of
from txstream.inspect.plain_metas import codec_of
from txstream.plugins.audit.rebuilt_progress import rebuild
from txstream.plugins.audit.recover_from_ledgers import elected
from txstream.plugins.change import kept, renaming, renaming_later
from txstream.plugins.change.forks import fork_of
from txstream.plugins.change.kept import OLD, Kept
from txstream.plugins.change.ownership import forget_fork, own, renumber, tell_changes
from txstream.plugins.change.rewinding import places, refuse_overtaken
from txstream.plugins.change.savepoints import learned_by, sql_database, sql_databases
from txstream.plugins.change.swap_plan import (
    Swap,
    live_name,
    pairs_in,
    pairs_of,
    refuse,
    refuse_behind,
    staying,
)
from txstream.settings import Settings
from txstream.state import BatchRecord, StateDatabase, TopologyLife, TopologyStates
from txstream.state.declarations import Owner
from txstream.state.records import COMMITTED
from txstream.state.sql import fence, tables as state_tables
from txstream.state.sql.database import PreparedStatements, SqlTransaction
from txstream.state.sql.framework_tables import dead_letter, fence as fence_table
from txstream.zookeeper import Identity, Progress, ProgressStore
from txstream.zookeeper.request_queue import this_operator


@dataclass(frozen=True, slots=True)
class Swapped:
    """What a swap has done, or would do: the topology's state tables `tables` are the fork's, by the batch
    `txid`; those of before are kept as `kept`, by name. `back`: it is the other way round. `is_done` is False
    of what was only looked at."""

    topology: str
    fork: str
    back: bool
    txid: Txid
    tables: tuple[str, ...]
    kept: Mapping[str, str]
    is_done: bool = True


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two topologies, led by this process."""

    identity: Identity
    store: ProgressStore
    codec: MetaCodec[Any]

    @property
    def topology(self) -> str:
        return self.store.topology_id


def swap(
    topology_id: str,
    fork_id: str,
    settings: Settings | None = None,
    *,
    back: bool = False,
    dry_run: bool = False,
    confirm: Callable[[str], None] = lambda _: None,
    by: str | None = None,
) -> Swapped:
    """Let a fork's tables take the names of a topology's, or with `back`, those of before the swap.

    Nothing may run either of them. `confirm` is called with what is about to happen, and raises to leave
    everything as it is. The ledger keeps who asks: `by`, or this process's user. Returns only once all of it
    is done. Raises LeaderExistsError, UnknownTopologyError, ServiceUnavailableError if a database is away,
    and UsageError with what is in the way.
    """
    settings, by = (settings or Settings()).resolve(), by or this_operator()
    settings.require_zookeeper()
    with ExitStack() as stack:
        zookeeper = stack.enter_context(open_zookeeper(settings))
        found = stack.enter_context(open_databases(settings, topology_id, for_writing=True))
        if not found.opened:
            raise nowhere(settings, topology_id)
        databases = sql_databases(found)
        stack.enter_context(elected(zookeeper, topology_id))

        def side(one: str) -> Side | None:
            if (identity := zookeeper.identity(one)) is None:
                return None
            codec = codec_of(identity, None)
            return Side(identity, zookeeper.progress(one, codec), codec)

        if (mine := side(topology_id)) is None:
            raise ProgressMismatchError(
                f"topology {topology_id!r} is not in ZooKeeper; `txstream fsck {topology_id}` says why"
            )
        known = fork_of(zookeeper, fork_id)
        if known is not None and known.of_uuid != mine.identity.uuid:
            raise UsageError(f"{fork_id!r} is a fork of {known.of!r}, not of {topology_id!r} as it is now")
        if known is not None:
            stack.enter_context(elected(zookeeper, fork_id))
        theirs = None if known is None else side(fork_id)
        done = swap_in(mine, theirs, fork_id, databases, back=back, dry_run=dry_run, confirm=confirm, by=by)
    if known is not None and done.is_done and not back:
        with open_zookeeper(settings) as zookeeper:
            zookeeper.delete_topology(fork_id)
    return done


def swap_in(
    mine: Side,
    theirs: Side | None,
    fork_id: str,
    databases: Sequence[StateDatabase],
    *,
    back: bool = False,
    dry_run: bool = False,
    confirm: Callable[[str], None] = lambda _: None,
    by: str = "",
) -> Swapped:
    """Do what `swap` does, over services that are open, but for removing the fork from ZooKeeper. Nobody else
    may lead either topology meanwhile."""
    semantics, topology_id = mine.identity.semantics, mine.topology
    if semantics is Semantics.NON_TRANSACTIONAL:
        raise UsageError(f"topology {topology_id!r} is non-transactional: no txid says what is swapped")
    # Step 1
    states, attempt = _lead(mine, databases)
    _settle_all(Unsettled(mine.identity, mine.store, states, attempt))
    progress = _whole(mine, states)
    done = {url: one for url, one in _kept(databases, topology_id, fork_id).items() if one is not None}
    newest = Swap.of(_newest(states))
    _finish(mine.store, states, newest, attempt)
    is_there = theirs is not None and any(one.read_fence(fork_id) is not None for one in databases)
    if newest is not None and (newest.fork, newest.back) == (fork_id, back) and done and not is_there:
        return _told(mine, newest, databases)  # this command has done it, and was killed
    if back:
        planned = _back(mine, fork_id, progress, done, databases)
    else:
        if theirs is None or not is_there:
            raise UsageError(f"there is no fork {fork_id!r} of topology {topology_id!r}")
        if done:
            raise UsageError(
                f"tables of an earlier swap of {topology_id!r} with {fork_id!r} are kept; `txstream swap "
                f"{topology_id} {fork_id} --drop-kept` drops them"
            )
        planned = _forward(mine, theirs, progress, databases)
    planned = replace(planned, by=by)
    # Step 2
    pairs = {one.display_url: pairs_of(one, topology_id, planned) for one in databases}
    refuse(topology_id, fork_id, databases, pairs, planned)
    told = Swapped(
        topology_id,
        fork_id,
        back,
        progress.current,
        planned.names,
        {pair.name: pair.kept for some in pairs.values() for pair in some if pair.kept is not None},
        is_done=not dry_run,
    )
    if dry_run:
        return told
    confirm(
        f"Let {', '.join(planned.names)} of {topology_id} be what "
        f"{'was there before the swap with' if back else 'is there of'} {fork_id}, as batch "
        f"{progress.current}? What is there now is kept as {', '.join(told.kept.values())}."
    )
    # Step 3
    both = tuple(name for name in planned.old if name in planned.names)
    _reached("checked")
    mine.store.replace_identity(replace(mine.identity, tables=both))
    _reached("identity narrowed")
    plans = {txid: one for txid, one in progress.batches.items() if txid < progress.current}
    if len(plans) < len(progress.batches):
        without = Progress(progress.current, progress.committed_by, plans)
        narrowed = replace(mine.identity, tables=both)
        mine.store.replace(partial(rebuild, mine.codec, narrowed, without))
        # A late copy of that write would drop what step 5 stores: not under another claim.
        states, attempt = _lead(mine, databases)
        refuse_overtaken(topology_id, without, _whole(mine, states))
    _reached("plans dropped")
    # Step 4
    _swap_everywhere(states, planned, progress.current, attempt, mine.identity)
    # Step 5
    _whole(mine, states)
    _reached("advanced")
    _finish(mine.store, states, planned, attempt)
    _reached("identity replaced")
    return told


def settle(unsettled: Unsettled, *, clears: bool = True) -> None:
    """Finish a swap that was broken off: every start calls this before it reads where the topology is. With
    `clears`, what ZooKeeper has of the fork goes; a command that leads the fork does that at its end."""
    told = _newest(unsettled.states)
    planned = Swap.of(told)
    if told is None or planned is None or unsettled.store.load().current < told.txid:
        return
    rows = [one.last_batch() for one in unsettled.states]
    is_apart = len({row and (row.txid, row.attempt, row.status) for row in rows}) > 1
    if is_apart or any(row is not None and renaming_later.MOVES in row.details for row in rows):
        _swap_everywhere(unsettled.states, planned, told.txid, unsettled.fence, unsettled.identity)
    if (
        stored := unsettled.store.read_identity()
    ) is not None and unsettled.store.load().current == told.txid:
        unsettled.store.replace_identity(replace(stored, tables=planned.names))
    if clears and not planned.back:
        fork = unsettled.store.beside(planned.fork)
        left = fork.read_identity()
        if left is not None and left.uuid == planned.fork_uuid:
            fork.delete_everything()
    tables = {spec.state.table for one in unsettled.states for spec in one.life.tables}
    if tables and (lacking := sorted({*planned.names} - tables)):
        raise IdentityMismatchError(
            f"topology {unsettled.identity and told.topology!r} was swapped with {planned.fork!r} by txid "
            f"{told.txid}, and this code lacks its states {', '.join(lacking)}: run the code of the fork"
        )


def drop_kept(topology_id: str, fork_id: str, settings: Settings | None = None) -> list[str]:
    """Drop the tables that a swap has kept. Returns what they were kept as."""
    settings = (settings or Settings()).resolve()
    with open_databases(settings, topology_id, for_writing=True) as found:
        databases = sql_databases(found)
        dropped: list[str] = []
        for database in databases:
            with database.sessions.writing(f"dropping what was kept of {fork_id!r}") as (connection, _):
                database.sessions.dialect.lock_definitions(connection)
                dropped += drop_kept_in(connection, topology_id, fork_id)
    if not dropped:
        raise UsageError(f"topology {topology_id!r} has kept nothing of a swap with {fork_id!r}")
    return dropped


def drop_kept_in(connection: Connection, topology_id: str, fork_id: str | None = None) -> list[str]:
    """Drop what a database has kept of a topology's swaps, of one fork or of all."""
    dropped = []
    for fork, one in kept.read(connection, topology_id).items():
        if fork_id in (None, fork):
            owners = [Owner(stored, "", "", dict(declared)) for stored, declared in one.tables.values()]
            dropped += state_tables.drop_tables(connection, owners)
            kept.forget(connection, topology_id, fork)
    return dropped


# --- step 1 -------------------------------------------------------------------------------------------------


def _lead(side: Side, databases: Sequence[StateDatabase]) -> tuple[list[TopologyStates], AttemptId]:
    states = [one.of(side.topology, side.identity.uuid, side.identity.semantics) for one in databases]
    return states, prove_distinct(side.topology, states, take_over(side.store, states))


def _settle_all(unsettled: Unsettled) -> None:
    from txstream.plugins.change.rewinding import settle as settle_rewind

    settle_rewind(unsettled)
    settle(unsettled, clears=False)


def _whole(side: Side, states: Sequence[TopologyStates]) -> Progress:
    resume = recover(side.topology, side.identity.semantics, side.store, states, side.codec)
    if resume.replays:
        (txid,) = resume.replays
        raise UsageError(
            f"topology {side.topology!r}: txid {txid} is committed in part; let `txstream run` finish it "
            f"(--until-txid {txid} ends it there), then swap"
        )
    return resume.progress


def _newest(states: Sequence[TopologyStates]) -> BatchRecord | None:
    rows = [row for one in states if (row := one.last_batch()) is not None]
    return max(rows, key=lambda row: row.txid, default=None)


def _finish(
    store: ProgressStore, states: Sequence[TopologyStates], planned: Swap | None, attempt: AttemptId
) -> None:
    """Name the tables of after the swap as the topology's, in ZooKeeper and beside the fences."""
    identity = store.read_identity()
    if planned is None or identity is None:
        return
    identity = replace(identity, tables=planned.names)
    store.replace_identity(identity)
    for one in states:
        one.keep_identity(attempt, kept_of(identity, states))


def _told(mine: Side, planned: Swap, databases: Sequence[StateDatabase]) -> Swapped:
    found = _kept(databases, mine.topology, planned.fork).values()
    names = {name: stored for one in found if one is not None for name, (stored, _) in one.tables.items()}
    return Swapped(mine.topology, planned.fork, planned.back, Txid(planned.last + 1), planned.names, names)


# --- what is planned ----------------------------------------------------------------------------------------


def _kept(databases: Sequence[StateDatabase], topology_id: str, fork_id: str) -> dict[str, Kept | None]:
    found = {}
    for one in databases:
        with one.sessions.reading("its swaps") as connection:
            found[one.display_url] = kept.read(connection, topology_id).get(fork_id)
    return found


def _forward(mine: Side, theirs: Side, progress: Progress, databases: Sequence[StateDatabase]) -> Swap:
    fork = theirs.topology
    differing = mine.identity.differences(replace(theirs.identity, tables=mine.identity.tables))
    if differing:
        raise UsageError(f"{fork!r} is not {mine.topology!r} with other code: {'; '.join(differing)}")
    states, attempt = _lead(theirs, databases)
    _settle_all(Unsettled(theirs.identity, theirs.store, states, attempt))
    reached = _whole(theirs, states)
    last, theirs_last = Txid(progress.current - 1), Txid(reached.current - 1)
    if last == 0 or theirs_last == 0:
        raise UsageError(f"{mine.topology if last == 0 else fork!r} has committed nothing yet")
    old = mine.codec.encode(progress.batches[last].metas)
    new = theirs.codec.encode(reached.batches[theirs_last].metas)
    refuse_behind(mine.topology, fork, old, new)
    live = [live_name(table, fork) for table in theirs.identity.tables]
    names = tuple(sorted({*live, *staying(databases, mine.topology, live)}))
    horizons = {live_name(name, fork): time for name, time in part_of(new, "horizons").items()}
    metas = places({**new, "horizons": horizons})
    learned = {live_name(one, fork): told for one, told in learned_by(fork, theirs_last, databases).items()}
    return Swap(
        fork,
        theirs.identity.uuid,
        attempt,
        False,
        last,
        Txid(0),
        names,
        tuple(mine.identity.tables),
        metas,
        places(old),
        learned,
    )


def _back(
    mine: Side, fork: str, progress: Progress, done: Mapping[str, Kept], databases: Sequence[StateDatabase]
) -> Swap:
    if not done or {one.which for one in done.values()} != {OLD}:
        why = "was gone back already" if done else "nothing is kept of one"
        raise UsageError(f"topology {mine.topology!r} cannot go back before a swap with {fork!r}: {why}")
    one = next(iter(done.values()))
    last = Txid(progress.current - 1)
    return Swap(
        fork,
        "",
        AttemptId(0),
        True,
        last,
        one.txid,
        one.names,
        tuple(mine.identity.tables),
        one.metas,
        places(mine.codec.encode(progress.batches[last].metas)),
        learned_by(mine.topology, one.txid, databases),
    )


# --- doing it -----------------------------------------------------------------------------------------------


def _reached(step: str) -> None:
    """Called between any two steps that write, for tests that die there."""


def _swap_everywhere(
    states: Sequence[TopologyStates], planned: Swap, txid: Txid, attempt: AttemptId, identity: Identity
) -> None:
    for number, one in enumerate(states):
        last = one.last_batch()
        if last is None or last.txid < txid:
            kept_identity = kept_of(replace(identity, tables=planned.names), states)
            mine = TransactionAttempt(txid, _decided(states, txid) or attempt)
            _swap_one(sql_database(one.store), one.life, planned, mine, attempt, kept_identity)
            _reached(f"database {number} recorded")
        renaming_later.finish(sql_database(one.store), one.last_batch(), planned.fork, _reached)
        _reached(f"database {number} swapped")


def _decided(states: Sequence[TopologyStates], txid: Txid) -> AttemptId | None:
    """Return the attempt by which the first database has this txid: all of them commit it by that one."""
    rows = [row for one in states if (row := one.last_batch()) is not None and row.txid == txid]
    return rows[0].attempt if rows else None


def _swap_one(
    database: StateDatabase,
    life: TopologyLife,
    planned: Swap,
    mine: TransactionAttempt,
    held: AttemptId,
    identity: Mapping[str, Any],
) -> None:
    """Let the tables of one database change places, in one transaction under both fences."""
    now = datetime.now(UTC)
    dialect, fork = database.sessions.dialect, planned.fork
    doing = f"swapping {life.topology!r} with {fork!r}"
    moves: dict[str, Any] = {}
    if not renaming.undoes_renaming(dialect):
        pairs = pairs_of(database, life.topology, planned)
        renaming_later.prepare(database, pairs, life, fork)
        moves = {renaming_later.MOVES: [[one.name, one.incoming, one.kept, one.shown] for one in pairs]}
        _reached("prepared")
    with database.sessions.writing(doing, patient=True) as (connection, answered):
        here = SqlTransaction(life, PreparedStatements(database.sessions), connection, answered)
        here.hold_fence(held)
        if not planned.back:
            theirs = TopologyLife(fork, planned.fork_uuid, life.semantics)
            fence.require(connection, database.sessions, theirs, planned.fork_attempt)
        dialect.lock_definitions(connection)
        pairs = pairs_in(connection, life.topology, planned)
        owners = {
            one.table: one
            for topology in (life.topology, fork)
            for one in state_tables.owned_by(connection, topology)
        }
        rows = 0
        for pair in pairs:
            if pair.incoming is not None and not planned.back:
                stored = state_tables.declared_table(owners[pair.incoming], dialect)
                rows += renumber(connection, stored, mine.txid)
                answered()
        before = kept.read(connection, life.topology).get(fork)
        tell_changes(connection, dialect, pairs, owners, mine.txid)
        answered()
        if renaming.undoes_renaming(dialect):
            renaming.change_places(connection, dialect, pairs, f"__before_{fork}")
            answered()
        own(connection, life, planned, pairs, owners, before)
        forget_fork(connection, fork, planned)
        connection.execute(delete(dead_letter).where(dead_letter.c.topology == life.topology))
        connection.execute(
            update(fence_table)
            .where(fence_table.c.topology == life.topology)
            .values(identity=to_json(identity))
        )
        here.write_batch(
            BatchRecord(
                life.topology,
                life.uuid,
                mine.txid,
                mine.attempt,
                life.semantics,
                COMMITTED,
                dict(planned.metas),
                0,
                rows,
                now,
                now,
                datetime.now(UTC),
                None,
                planned.details() | moves,
            )
        )
        _reached("inside")
