"""The checks of `fsck` on what it has read: progress, fences, ledgers, state tables. Each is one small pure
function for one question.

Each takes the snapshot and yields findings. A finding's remedy is a command wherever one exists.

Over 500 lines: one list of checks, which are read one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from txstream.core.batch_metas import MetaCodec
from txstream.core.digests import TableDigest
from txstream.core.errors import CorruptStateError, ProgressMismatchError, SchemaRevisionError, TxstreamError
from txstream.core.semantics import Semantics
from txstream.core.transaction import epoch_of
from txstream.core.wording import counted
from txstream.engine.start.recovery import AdoptPlan, AdvanceFirst, decide
from txstream.inspect.databases import GRANT_REMEDY, upgrade_remedy
from txstream.inspect.ledgers import part_of, range_of, standing_rows
from txstream.inspect.records import Finding, Severity
from txstream.inspect.snapshot import DatabasePart, Snapshot, TablePart
from txstream.plugins.audit.fsck_letters import dead_letters, done_in, retried_letters
from txstream.state import BatchRecord
from txstream.state.fence_rules import shown_attempt
from txstream.state.records import COMMITTED, AccessDeniedError, SchemaDamagedError
from txstream.zookeeper.paths import remedy, znode_in

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

Findings = Iterator[Finding]
_SHOWN = 5


def recover_command(topology: str) -> str:
    return f"txstream recover {topology} --from-ledger"


def check_all(snapshot: Snapshot, codec: MetaCodec[Any], *, is_whole: bool = True) -> list[Finding]:
    """Check all but the source. Without `is_whole`, databases are missing, which is a finding already."""
    checks: list[Callable[[Snapshot], Findings]] = [
        _zookeeper,
        _uuids,
        _epochs,
        _fences,
        _ledgers,
        _tables,
        dead_letters,
        retried_letters,
    ]
    found = [finding for check in checks for finding in check(snapshot)]
    if is_whole:
        found += _unknown_tables(snapshot)
    found += _ledgers_of_one_batch(snapshot, codec)
    found += _progress(snapshot, codec)
    if snapshot.leader is not None:
        found.append(
            Finding("running", NOTE, "ZooKeeper", f"it is run by {snapshot.leader}", "nothing to mend")
        )
    return found


# --- ZooKeeper -------------------------------------------------------------------------------------


def _zookeeper(snapshot: Snapshot) -> Findings:
    command = recover_command(snapshot.topology)
    for error in (*snapshot.errors, *snapshot.other_errors):
        path = znode_in(error)
        mend = remedy(path, snapshot.topology)
        yield Finding(
            "zookeeper-unreadable", ERROR, path, str(error), mend, command if command in mend else None
        )
    if snapshot.identity is None and not snapshot.errors:
        yield Finding(
            "zookeeper-missing", ERROR, "ZooKeeper", "it knows nothing of this topology",
            f"if this is the right ZooKeeper, rebuild it by `{command}`", command,
        )  # fmt: skip


def _uuids(snapshot: Snapshot) -> Findings:
    known: dict[str, str] = {}
    if snapshot.identity is not None:
        known["ZooKeeper"] = snapshot.identity.uuid
    known |= {db.url: db.uuid for db in snapshot.databases if db.uuid is not None}
    if len(set(known.values())) > 1:
        listed = ", ".join(f"{uuid} in {place}" for place, uuid in known.items())
        yield Finding(
            "other-uuid", ERROR, "ZooKeeper and databases",
            f"the id stands for different topologies: uuid {listed}",
            f"point at the places of one of them (--zookeeper, --database); one that is not wanted goes by "
            f"`txstream delete {snapshot.topology} --uuid UUID`, with --drop-state its results, too",
        )  # fmt: skip


def _epochs(snapshot: Snapshot) -> Findings:
    if snapshot.epoch is None or snapshot.identity is None:
        return
    for database in snapshot.databases:
        epoch = 0 if database.fence is None else epoch_of(database.fence.attempt)
        if epoch > snapshot.epoch:
            yield Finding(
                "epoch-behind", WARNING, database.url,
                f"its fence is at epoch {epoch}, ZooKeeper at {snapshot.epoch}: ZooKeeper was restored from "
                f"an older copy",
                "the next `txstream run` claims an epoch above both",
            )  # fmt: skip


def _progress(snapshot: Snapshot, codec: MetaCodec[Any]) -> Findings:
    """Check what a new leader would decide now."""
    identity, progress = snapshot.identity, snapshot.progress
    settled = [db for db in snapshot.databases if not db.is_joining]
    ledgers = {db.url: db.last for db in settled if db.fence is not None and not db.errors}
    if len(ledgers) != len(settled) or not ledgers:
        return  # reported already; a decision from only some of the ledgers would mean nothing
    semantics = _semantics(snapshot)
    if semantics is None or semantics is Semantics.NON_TRANSACTIONAL:
        return
    txids = {url: 0 if row is None else int(row.txid) for url, row in ledgers.items()}
    if max(txids.values()) - min(txids.values()) > 1:
        listed = ", ".join(f"{url} is at txid {txid}" for url, txid in txids.items())
        yield Finding(
            "databases-apart", ERROR, "databases",
            f"they are more than one batch apart: {listed}",
            "one of them was restored from an older copy: bring it up to date from its own backups and logs",
        )  # fmt: skip
        return
    if identity is None or progress is None:
        return
    if snapshot.moved:
        yield Finding(
            "too-fast", NOTE, "ZooKeeper",
            "it commits faster than ZooKeeper and ledgers can be read together; they were not compared",
            "look again, or when it is stopped",
        )  # fmt: skip
        return
    command = recover_command(snapshot.topology)
    try:
        decision = decide(snapshot.topology, semantics, progress, ledgers, codec)
    except ProgressMismatchError as error:
        old = [db.url for db in settled if db.is_behind_its_tables]
        remedy = (
            f"if the databases are right, or copies of one moment from which on they may be filled again, "
            f"`{command}`"
        )
        if old:
            remedy = f"restore ledger and tables of one moment in {', '.join(old)}; then look again"
        yield Finding(
            "progress-mismatch", ERROR, "ZooKeeper and ledgers",
            str(error).partition(" `txstream fsck")[0],  # fsck is running already
            remedy, None if old else command,
        )  # fmt: skip
        return
    except TxstreamError as error:
        yield Finding("ledger-unreadable", ERROR, "ledgers", str(error), "restore the row from a backup")
        return
    unfinished = ""
    if isinstance(decision, AdvanceFirst):
        unfinished = f"txid {decision.txid} is committed in every database, and ZooKeeper does not know yet"
    elif isinstance(decision, AdoptPlan):
        unfinished = f"the plan of txid {decision.txid} is in a ledger, and not in ZooKeeper"
    elif decision.replays:
        unfinished = f"txid {min(decision.replays)} is committed in part"
    if unfinished:
        remedy = (
            "the driver that runs it is at it" if snapshot.leader else "the next `txstream run` settles it"
        )
        yield Finding("unfinished-commit", NOTE, "ledgers", unfinished, remedy)


def _semantics(snapshot: Snapshot) -> Semantics | None:
    if snapshot.identity is not None:
        return snapshot.identity.semantics
    return next((db.last.semantics for db in snapshot.databases if db.last is not None), None)


# --- fences ----------------------------------------------------------------------------------------


def _fences(snapshot: Snapshot) -> Findings:
    command = recover_command(snapshot.topology)
    for database in snapshot.databases:
        fence = database.fence
        if fence is None:
            if not database.errors:
                # Only the fence names the other databases, so some of them may not have been looked at.
                unseen = _unseen_tables(snapshot)
                more = f" --state-database URL (the database of {', '.join(unseen)})" if unseen else ""
                yield Finding(
                    "fence-missing", ERROR, database.url,
                    "txstream_fence has no row of this topology, which has been run on it",
                    f"if only the row was deleted, `{command}` makes it again{more}; if the database was "
                    f"restored from an older copy, bring it up to date",
                    f"{command} --state-database URL" if unseen else command,
                )  # fmt: skip
            continue
        newest = max((row.attempt for row in database.rows), default=0)
        # Non-transactional commits leave the fence where their leader raised it.
        if newest > fence.attempt and _semantics(snapshot) is not Semantics.NON_TRANSACTIONAL:
            yield Finding(
                "fence-behind", ERROR, database.url,
                f"the fence is at attempt {shown_attempt(fence.attempt)}, but the ledger has a batch by "
                f"attempt {shown_attempt(newest)}: somebody has set it back",
                "the next `txstream run` raises it above both, if ZooKeeper's epoch is; stop all drivers "
                "before",
            )  # fmt: skip
        if not fence.identity:
            yield Finding(
                "fence-without-identity", NOTE, database.url,
                "it was last run by a txstream that kept no identity here; `recover` would need the code",
                "the next `txstream run` writes it",
            )  # fmt: skip
        elif snapshot.identity is not None and fence.identity.get("identity") != (
            snapshot.identity.to_document()
        ):
            yield Finding(
                "fence-identity", WARNING, database.url,
                "the identity beside its fence is not the one in ZooKeeper",
                "the next `txstream run` writes it again",
            )  # fmt: skip


# --- ledgers ---------------------------------------------------------------------------------------


def _ledgers(snapshot: Snapshot) -> Findings:
    for database in snapshot.databases:
        for error in database.errors:
            yield _unreadable(database, error)
        strangers = {row.uuid for row in database.rows} - {database.uuid}
        if strangers:
            yield Finding(
                "ledger-uuid", ERROR, database.url,
                f"its ledger has rows of another life of this topology: uuid {', '.join(sorted(strangers))}",
                "restore the ledger from a backup",
            )  # fmt: skip
        gaps = [(a.txid, b.txid) for a, b in pairwise(database.rows) if b.txid != a.txid + 1]
        if gaps:
            listed = ", ".join(f"{a} to {b}" for a, b in gaps[:_SHOWN])
            yield Finding(
                "ledger-gap", WARNING, database.url,
                f"its ledger goes from txid {listed}: the rows between are missing",
                "somebody has deleted them; runs do not need them",
            )  # fmt: skip
        yield from _ranges(snapshot, database)


def _unreadable(database: DatabasePart, error: TxstreamError) -> Finding:
    if isinstance(error, SchemaRevisionError):
        remedy = upgrade_remedy(database.url)
        return Finding("database-missing", ERROR, database.url, str(error), remedy)
    if isinstance(error, AccessDeniedError):
        return Finding("database-missing", ERROR, database.url, str(error), GRANT_REMEDY)
    if isinstance(error, SchemaDamagedError):
        return Finding(
            "framework-damaged", ERROR, database.url, str(error),
            "restore the table that is named from a backup of the moment of the state tables",
        )  # fmt: skip
    return Finding("ledger-unreadable", ERROR, database.url, str(error), "restore the row from a backup")


def _ranges(snapshot: Snapshot, database: DatabasePart) -> Findings:
    """Check that each batch begins where the one before it ended, where metas are offsets."""
    if _semantics(snapshot) is Semantics.NON_TRANSACTIONAL:
        return
    found = []
    for before, row in pairwise(row for row in database.rows if row.status == COMMITTED):
        if row.txid == before.txid + 1:
            found += list(_breaks(before, row))
    if found:
        more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        yield Finding(
            "ledger-ranges", ERROR, database.url,
            f"batches do not follow each other: {'; '.join(found[:_SHOWN])}{more}",
            "somebody has changed the ledger, or offsets were read twice or never: compare with a backup",
        )  # fmt: skip


def _breaks(before: BatchRecord, row: BatchRecord) -> Iterator[str]:
    ends = {
        name: range_of(name, meta).end
        for part in ("carried", "partitions")
        for name, meta in part_of(before.metas, part).items()
    }
    for name, meta in part_of(row.metas, "partitions").items():
        here, end = range_of(name, meta), ends.get(name)
        start = here.start if here.skipped_from is None else here.skipped_from
        if start is not None and end is not None and start != end:
            yield f"txid {before.txid} ends {name} at {end}, txid {row.txid} begins it at {start}"


def _ledgers_of_one_batch(snapshot: Snapshot, codec: MetaCodec[Any]) -> Findings:
    """Check that all databases have the same attempt and ranges of a batch. The newest may be under way."""
    semantics = _semantics(snapshot)
    databases = [db for db in snapshot.databases if not db.is_joining]
    if len(databases) < 2 or semantics is Semantics.NON_TRANSACTIONAL:
        return
    done = done_in(snapshot)
    first, *others = databases
    known = {row.txid: row for row in first.rows if row.txid <= done}
    for other in others:
        differing = [
            row.txid for row in other.rows if row.txid in known and not _is_same(row, known[row.txid], codec)
        ]
        if differing:
            yield Finding(
                "ledgers-differ", ERROR, f"{first.url} and {other.url}",
                f"they have different attempts, ranges or records for txid "
                f"{', '.join(map(str, differing[:_SHOWN]))}",
                "one of them was changed, or restored beside the other: compare with backups",
            )  # fmt: skip


def _is_same(one: BatchRecord, other: BatchRecord, codec: MetaCodec[Any]) -> bool:
    made_from = [row.details["read"] for row in (one, other) if "read" in row.details]
    if one.attempt != other.attempt or made_from[1:] not in ([], made_from[:1]):
        return False
    if one.metas == other.metas:
        return True
    # A row of an older version may lack a new field; decoding gives it the default.
    where = f"ledger, txid {one.txid}"
    try:
        return codec.encode(codec.decode(one.metas, where)) == codec.encode(codec.decode(other.metas, where))
    except CorruptStateError:
        return False


def _unseen_tables(snapshot: Snapshot) -> list[str]:
    """Return the topology's tables that none of the databases knows."""
    named = () if snapshot.identity is None else snapshot.identity.tables
    return sorted({*named}.difference(*(db.names for db in snapshot.databases)))


def _unknown_tables(snapshot: Snapshot) -> Findings:
    if any(db.errors or db.fence is None for db in snapshot.databases):
        return  # reported already, and may be the reason
    for name in _unseen_tables(snapshot):
        yield Finding(
            "table-unknown", ERROR, name,
            "the topology fills this table, and none of its databases knows it",
            "give its database by --state-database; if its row in txstream_table was deleted, restore it",
        )  # fmt: skip


def _tables(snapshot: Snapshot) -> Findings:
    for database in snapshot.databases:
        for one in database.tables or ():
            yield from _table(snapshot, database, one)
        yield from _rows_of_last(database)
        yield from _rows_of_batches(snapshot, database)


def _table(snapshot: Snapshot, database: DatabasePart, one: TablePart) -> Findings:
    table, where = one.table, f"table {one.table.name} in {database.url}"
    afresh = f"txstream delete {snapshot.topology} --drop-state"
    if database.uuid is not None and table.owner != database.uuid:
        yield Finding(
            "table-owner", ERROR, where,
            f"it was made for uuid {table.owner}, the topology here is {database.uuid}",
            f"restore the database as a whole, or start afresh with `{afresh}`",
        )  # fmt: skip
    if one.differences is None:
        yield Finding(
            "table-missing", ERROR, where, "it is gone",
            f"restore it from a backup of the same txid, or start afresh with `{afresh}`",
        )  # fmt: skip
        return
    if one.differences:
        yield Finding(
            "table-columns", ERROR, where,
            f"it is not as declared: {'; '.join(one.differences)}",
            "put the columns back as they were declared",
        )  # fmt: skip
        return
    last = database.tables_last
    newest = 0 if last is None else int(last.txid)
    if one.newest_txid > newest:
        key = ", ".join(f"{name}={value!r}" for name, value in (one.newest_key or {}).items())
        yield Finding(
            "row-too-new", ERROR, where,
            f"a row ({key}) carries txid {one.newest_txid}, newer than the ledger's last, {newest}",
            "the ledger was restored from an older copy than the table: restore both of one moment",
        )  # fmt: skip
    if one.before_the_first:
        yield Finding(
            "row-txid", ERROR, where, f"{counted(one.before_the_first, 'row')} with a txid below 1",
            "somebody has changed them: restore them from a backup",
        )  # fmt: skip
    if one.half_created:
        yield Finding(
            "row-prev", ERROR, where,
            f"{counted(one.half_created, 'row')} with a prev_ that is null beside one that is not: "
            f"undoing a batch would lose that",
            "somebody has changed them: restore them from a backup",
        )  # fmt: skip


def _rows_of_last(database: DatabasePart) -> Findings:
    """Check that all rows that the last batch wrote still carry it: nothing else may have changed them."""
    last = database.tables_last
    if last is None or last.status != COMMITTED or last.details.get("path") == "executors":
        return
    counts = [one.carrying_last for one in database.tables or ()]
    if not counts or any(count is None for count in counts):
        return
    if database.is_behind_its_tables:
        return  # reported already
    if any(one.keeps_older_rows for one in database.tables or ()):
        return  # some of what it wrote is not there, because an older row of its key was kept
    there = sum(count for count in counts if count is not None)
    if there < last.keys:
        yield Finding(
            "rows-missing", ERROR, database.url,
            f"txid {last.txid} wrote {counted(last.keys, 'row')}, and is now in {there:,}: rows were "
            f"deleted, or tables restored from an older copy than the ledger",
            "restore tables and ledger of one moment",
        )  # fmt: skip


def batches_compared(snapshot: Snapshot, database: DatabasePart) -> list[BatchRecord]:
    """Return the batches whose digests can be compared with their rows."""
    if database.is_behind_its_tables or not any(one.digests is not None for one in database.tables or ()):
        return []
    done = done_in(snapshot)
    rows = standing_rows(database.rows)
    return [row for row in rows if row.txid <= done and row.details.get("digests") is not None]


def _rows_of_batches(snapshot: Snapshot, database: DatabasePart) -> Findings:
    """Check that appended rows are those that the ledger says, batch by batch. Of a table that keeps the
    older row of a key, and of one whose rows expire, a batch may have fewer; of a
    transient one, none."""
    for one in database.tables or ():
        if one.digests is None:
            continue
        name, found, last = one.table.name, [], database.last
        may_lack = one.keeps_older_rows or (last is not None and name in last.metas.get("horizons", {}))
        for row in batches_compared(snapshot, database):
            document = row.details["digests"].get(name)
            told = TableDigest() if document is None else TableDigest.from_document(document)
            here = one.digests.get(row.txid, TableDigest())
            if (may_lack and here.rows < told.rows) or (one.table.transient and not here.rows):
                continue
            differing = told.differences(here)
            if "rows" in differing:
                found.append(f"txid {row.txid} wrote {counted(told.rows, 'row')}, and {here.rows:,} carry it")
            elif differing:
                found.append(f"the rows of txid {row.txid} have other {', '.join(differing)}")
        if found:
            more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            yield Finding(
                "rows-differ", ERROR, f"table {name} in {database.url}",
                f"rows are not those that its batches wrote: {'; '.join(found[:_SHOWN])}{more}",
                "somebody has changed, deleted, moved or added rows: restore them from a backup; `txstream "
                "replay` says what a batch held",
            )  # fmt: skip
