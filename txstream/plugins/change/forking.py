"""`txstream fork`: makes a topology beside another one, which begins at a place of the original's log.

Steps. 1. Be elected under the new id. 2. Remove what a fork that was broken off has left. 3. Store the znode
`fork`. 4. In each database make fence and tables, and raise the fence. 5. In each database one transaction
writes the rows of the savepoint and the ledger row whose metas are the places to begin at. 6. One write to
ZooKeeper stores the identity and that this batch is committed.

Invariants. The original is only read. Before step 6 there is no topology of the new id, and all that is there
carries the uuid that step 3 has stored, so that the same command finds and removes it. The first batch of a
fork from a savepoint has the txid after the savepoint's, so that its rows keep the txids that they have.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import insert, select

from txstream.api.schema import parse_schema
from txstream.api.spouts import SpoutContext, Unavailable
from txstream.cli.beside import beside, shadow
from txstream.core.batch_metas import BatchMetas, MetaCodec, is_empty, is_numbered, until
from txstream.core.errors import (
    PartitionUnavailableError,
    ProgressMismatchError,
    TopologyError,
    TxstreamError,
    UsageError,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID, TransactionAttempt, Txid
from txstream.engine.start.recovery import prove_distinct, take_over
from txstream.engine.start.takeover import identity_of, kept_of
from txstream.inspect.databases import nowhere, open_databases, open_zookeeper, with_states_of
from txstream.inspect.ledgers import part_of
from txstream.inspect.plain_metas import codec_of
from txstream.inspect.source import source_of
from txstream.plugins.audit.rebuilt_progress import rebuild
from txstream.plugins.audit.recover_from_ledgers import elected
from txstream.plugins.change import folders
from txstream.plugins.change.forks import Fork, fork_of, znode
from txstream.plugins.change.registry import SavedPart, SavedTable
from txstream.plugins.change.savepoints import (
    copy_of,
    driver_rows,
    is_name,
    learned_at,
    no_savepoint,
    saved,
    sql_database,
    sql_databases,
)
from txstream.settings import Settings
from txstream.state import BatchRecord, StateDatabase, TableSpec, TopologyStates
from txstream.state.declarations import Owner, refuse_other_declaration
from txstream.state.records import COMMITTED
from txstream.state.sql import tables as state_tables
from txstream.state.sql.database import PreparedStatements, SqlTransaction
from txstream.zookeeper import Identity, Progress, StoredBatch

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.zookeeper import ZooKeeper

FORK: Final = "fork"
"""The kind of a ledger row, in its details: as `path`, and with what it is a fork of under this name."""
EARLIEST: Final = "earliest"
_ANSWER_SECONDS = 10.0


@dataclass(frozen=True)
class Original:
    """What is forked: a topology, its databases, and the code that the fork is to run, if that is known."""

    id: str
    identity: Identity
    databases: Sequence[StateDatabase]
    code: Topology | None
    settings: Settings

    @property
    def codec(self) -> MetaCodec[Any]:
        return codec_of(self.identity, self.code)


@dataclass(frozen=True)
class Beginning:
    """Where a fork begins: the `metas` of its first batch `txid`, and in words. `parts` are those of the
    savepoint whose rows it begins with, by URL; `learned` is what its windows know of the batches before."""

    words: str
    txid: Txid
    metas: BatchMetas[Any]
    parts: Mapping[str, SavedPart] = dataclasses.field(default_factory=dict)
    learned: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make_fork(
    topology_id: str,
    name: str,
    settings: Settings | None = None,
    *,
    savepoint: str | None = None,
    start: str = EARLIEST,
    code: Topology | None = None,
) -> Fork:
    """Make the topology `name` beside another one, from the rows and places of a savepoint, or from nothing
    and the places of `start`: "earliest", a time in ISO 8601 with its offset, or a txid.

    `code` is what the fork is to run, with the original's topics and semantics; a fork from a savepoint needs
    it. Raises UsageError for what cannot be, UnknownTopologyError, StateTableError, ServiceUnavailableError,
    and LeaderExistsError if the new id runs.
    """
    if not is_name(name):
        raise UsageError(
            f"a fork cannot be named {name!r:.60}: it is part of tables' names, so it begins with a letter "
            f"from a to z, and has at most 32 of these, digits and _"
        )
    settings = with_states_of((settings or Settings()).resolve(), code)
    settings.require_zookeeper()
    with (
        open_zookeeper(settings) as zookeeper,
        open_databases(settings, topology_id, for_writing=True) as found,
    ):
        if not found.opened:
            raise nowhere(settings, topology_id)
        databases = sql_databases(found)
        identity = zookeeper.identity(topology_id)
        if identity is None:
            raise ProgressMismatchError(
                f"topology {topology_id!r} is not in ZooKeeper; `txstream fsck {topology_id}` says why"
            )
        original = Original(topology_id, identity, databases, code, settings)
        with elected(zookeeper, name):
            return fork_in(zookeeper, original, name, savepoint=savepoint, start=start)


def fork_in(
    zookeeper: ZooKeeper,
    original: Original,
    name: str,
    *,
    savepoint: str | None = None,
    start: str = EARLIEST,
) -> Fork:
    """Do what `make_fork` does, over services that are open. Nobody else may lead the new id meanwhile."""
    if original.identity.semantics is Semantics.NON_TRANSACTIONAL:
        raise UsageError(
            f"topology {original.id!r} is non-transactional: no txid says where it was; run it again "
            f"over other tables by `txstream run MODULE:FACTORY --as {name}`"
        )
    _refuse_other_code(original)
    begins = _from_savepoint(original, savepoint, name) if savepoint else _from_log(original, start)
    specs = {one.display_url: _specs(original, begins, one, name) for one in original.databases}
    return _make(zookeeper, original, name, begins, specs)


def _refuse_other_code(original: Original) -> None:
    if original.code is None:
        return
    now = replace(identity_of(original.code), tables=original.identity.tables)
    if differences := original.identity.differences(now):
        raise UsageError(
            f"that code is no version of topology {original.id!r}: {'; '.join(differences)}; run it as a "
            f"topology of its own"
        )


# --- where it begins ----------------------------------------------------------------------------------------


def _from_savepoint(original: Original, savepoint: str, name: str) -> Beginning:
    whole = {one.name: one for one in saved(original.id, original.databases) if one.is_whole}
    if savepoint not in whole:
        raise no_savepoint(original.id, savepoint, original.databases)
    if original.code is None:
        raise UsageError(
            f"with which code? a fork from a savepoint has its tables as the code declares them, and "
            f"topology {original.id!r} was not run from this folder; give it by --code MODULE:FACTORY"
        )
    parts = whole[savepoint].parts
    metas = next(iter(parts.values())).metas
    codec = original.codec
    places = codec.decode(metas, f"savepoint {savepoint}").positions()
    horizons = {shadow(table, name): one for table, one in part_of(metas, "horizons").items()}
    first = BatchMetas(carried=dict(places), partitions={}, horizons=horizons)
    known = learned_at(original.id, whole[savepoint], original.databases)
    learned = {shadow(table, name): one for table, one in known.items()}
    return Beginning(f"savepoint {savepoint}", Txid(whole[savepoint].txid + 1), first, parts, learned)


def _from_log(original: Original, start: str) -> Beginning:
    if start.isdecimal():
        places = _before(original, Txid(int(start)))
        return Beginning(f"txid {int(start)}", FIRST_TXID, BatchMetas({}, places))
    if start == EARLIEST:
        return Beginning(EARLIEST, FIRST_TXID, BatchMetas({}, _asked(original, EARLIEST)))
    try:
        moment = datetime.fromisoformat(start)
    except ValueError as error:
        raise UsageError(
            f"--from takes {EARLIEST!r}, a txid, or a time such as 2026-01-31T12:00:00Z, not {start!r}"
        ) from error
    if moment.tzinfo is None:
        raise UsageError(f"--from {start} has no offset; write {start}Z for UTC")
    return Beginning(moment.isoformat(), FIRST_TXID, BatchMetas({}, _asked(original, moment)))


def _before(original: Original, txid: Txid) -> dict[str, Any]:
    """Return the places where a batch of the original has begun."""
    row = next((row for one in original.databases if (row := one.batch(original.id, txid)) is not None), None)
    if row is None:
        raise UsageError(
            f"topology {original.id!r} has no txid {txid} in its ledger, where it could begin; give a time, "
            f"a savepoint (--at) or {EARLIEST!r}"
        )
    metas = original.codec.decode(row.metas, f"ledger of topology {original.id!r}, txid {txid}")
    if not all(is_numbered(one) for one in metas.partitions.values()):
        raise UsageError(
            f"where txid {txid} has begun is only known to the source's own code; give a savepoint (--at) or "
            f"{EARLIEST!r}"
        )
    return {**metas.carried, **{name: until(one, one.start) for name, one in metas.partitions.items()}}


def _asked(original: Original, start: Any) -> dict[str, Any]:
    """Return where the partitions begin, as the source's coordinator tells it."""
    source = source_of(original.identity, original.code, original.settings)
    if source is None:
        raise UsageError(
            f"where topology {original.id!r} would begin is only known to its code; give that by --code "
            f"MODULE:FACTORY, or --kafka"
        )
    try:
        source = source.starting(start)
    except TopologyError as error:
        raise UsageError(f"a fork of {original.id!r} cannot begin at {start}: {error}") from error
    seconds = max(_ANSWER_SECONDS, original.settings.connect_timeout_seconds)
    context = SpoutContext(original.id, FORK, original.settings.addresses(), seconds, seconds)
    with contextlib.closing(source.coordinator(context)) as coordinator:
        answers = coordinator.plan({}, 1)
    away = {name: one.reason for name, one in answers.items() if isinstance(one, Unavailable)}
    if away:
        listed = "; ".join(f"{name}: {why}" for name, why in sorted(away.items()))
        raise PartitionUnavailableError(f"cannot tell where a fork would begin now: {listed}")
    metas: Mapping[str, Any] = answers
    return {
        name: one if is_empty(one) else until(one, one.start)
        for name, one in metas.items()
        if is_empty(one) or is_numbered(one)
    }


# --- the tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copied:
    """A table of a fork, as it is made: as its code declares it, with the value columns of the savepoint."""

    spec: TableSpec
    saved: SavedTable


def _specs(original: Original, begins: Beginning, database: StateDatabase, name: str) -> list[Copied]:
    """Return the tables that get rows in one database. Raises StateTableError for what the code has changed
    and no table can change to."""
    part = begins.parts.get(database.display_url)
    if part is None or original.code is None:
        return []
    states = {bolt.state.table: (bolt.state, kept) for bolt, kept in original.code.states}
    states |= {use.state.table: (use.state, use.semantics) for use in original.code.map_states}
    found = []
    for one in part.tables:
        if one.table not in states:
            continue  # a state that the code has no more
        state, semantics = states[one.table]
        owner = Owner(one.table, original.id, original.identity.uuid, dict(one.declaration))
        refuse_other_declaration(owner, TableSpec(state, semantics, {}))
        then = copy.copy(replace(state, table=shadow(one.table, name)))
        object.__setattr__(then, "value", one.declaration["value"])
        object.__setattr__(then, "value_schema", parse_schema(one.declaration["value"]))
        found.append(Copied(TableSpec(then, semantics, {}), one))
    return found


# --- doing it -----------------------------------------------------------------------------------------------


def _reached(step: str) -> None:
    """Called between any two steps that write, for tests that die there."""


def _make(
    zookeeper: ZooKeeper,
    original: Original,
    name: str,
    begins: Beginning,
    copied: Mapping[str, Sequence[Copied]],
) -> Fork:
    codec = original.codec
    store = zookeeper.progress(name, codec)
    if store.read_identity() is not None:
        raise UsageError(
            f"there is a topology {name!r} already; choose another name, or `txstream delete {name} "
            f"--drop-state`"
        )
    # Step 2
    _remove_half_made(zookeeper, original, name)
    # Step 3
    tables = {table: shadow(table, name) for table in original.identity.tables}
    now = datetime.now(UTC)
    made = Fork(
        original.id,
        original.identity.uuid,
        name,
        str(uuid.uuid4()),
        tables,
        begins.words,
        now.isoformat(timespec="seconds"),
    )
    tree = zookeeper.tree()
    tree.ensure(znode(zookeeper, name).rpartition("/")[0])
    tree.put_if_absent(znode(zookeeper, name), made.encode())
    _reached("znode")
    try:
        # Step 4
        here = tuple(sorted(one.spec.state.table for part in copied.values() for one in part))
        identity = replace(original.identity, uuid=made.uuid, tables=here, created_at=made.at)
        states = [
            one.of(name, made.uuid, identity.semantics, [made.spec for made in copied[one.display_url]])
            for one in original.databases
        ]
        for number, one in enumerate(states):
            _refuse_taken(original, one, name)
            one.store.ensure_framework_tables()
            one.join(first_run=True, identity=kept_of(identity, states))
            _reached(f"database {number} joined")
        fence = prove_distinct(name, states, take_over(store, states))
        _reached("fences raised")
        # Step 5
        attempt = TransactionAttempt(begins.txid, fence)
        for number, (database, one) in enumerate(zip(original.databases, states, strict=True)):
            _begin(database, one, begins, copied[database.display_url], attempt, made, codec, now)
            _reached(f"database {number} begun")
        # Step 6
        batches = {begins.txid: StoredBatch(begins.metas, fence)}
        progress = Progress(Txid(begins.txid + 1), fence, batches)
        store.replace(partial(rebuild, codec, identity, progress))
    except TxstreamError:
        with contextlib.suppress(TxstreamError):
            _remove_half_made(zookeeper, original, name)
        raise
    _reached("done")
    return made


def _remove_half_made(zookeeper: ZooKeeper, original: Original, name: str) -> None:
    """Remove what a fork that was broken off has left, if there is any. This driver is elected."""
    half = fork_of(zookeeper, name)
    if half is None:
        return
    if half.of != original.id:
        raise UsageError(
            f"a fork {name!r} of {half.of!r} is half made; `txstream fork {half.of} {name}` makes it whole; "
            f"`txstream delete {name} --drop-state` removes it then"
        )
    for database in original.databases:
        database.delete(name, drop_state=True, uuid=half.uuid)
    zookeeper.progress(name, MetaCodec(Fork)).delete_everything()


def _refuse_taken(original: Original, states: TopologyStates, name: str) -> None:
    """Raise StateTableError for a table that the fork's run would refuse: its name is taken."""
    if original.code is None:
        return
    own = beside(original.code, name)
    uses = [*(bolt.state for bolt, _ in own.states), *(use.state for use in own.map_states)]
    database = sql_database(states.store)
    with database.sessions.reading("its tables") as connection:
        for state in uses:
            if state_tables.read_owner(connection, state.table) is None:
                spec = TableSpec(state, states.life.semantics, {})
                state_tables.refuse_foreign(connection, states.life, spec)


def _begin(
    database: StateDatabase,
    states: TopologyStates,
    begins: Beginning,
    copied: Sequence[Copied],
    attempt: TransactionAttempt,
    made: Fork,
    codec: MetaCodec[Any],
    now: datetime,
) -> None:
    """Write the rows of the savepoint and the first batch, in one transaction under the fence."""
    part = begins.parts.get(database.display_url)
    doing = f"fork {made.name!r} beginning"
    with database.sessions.writing(doing, patient=True) as (connection, answered):
        here = SqlTransaction(states.life, PreparedStatements(database.sessions), connection, answered)
        here.hold_fence(attempt.attempt)
        for one in copied:
            table = state_tables.build_table(one.spec.state, one.spec.semantics, database.sessions.dialect)
            if part is not None and part.folder is not None:
                for rows in folders.read_table(Path(part.folder), one.saved):
                    connection.execute(table.insert(), driver_rows(database, rows))
            else:
                source = copy_of(database, one.saved)
                names = [column.name for column in table.columns]
                connection.execute(insert(table).from_select(names, select(*(source.c[n] for n in names))))
            answered()
        here.write_batch(
            BatchRecord(
                made.name,
                made.uuid,
                attempt.txid,
                attempt.attempt,
                states.life.semantics,
                COMMITTED,
                codec.encode(begins.metas),
                0,
                0,  # rows that carry its txid: those that are copied keep their own
                now,
                now,
                datetime.now(UTC),
                None,
                {"path": FORK, FORK: {"of": made.of, "began": made.began}, "learned": dict(begins.learned)},
            )
        )
        _reached("inside")
