"""What `fsck` says to the state tables that it has read, and to their agreement with the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from txstream.inspect.evidence import DatabaseEvidence, Evidence, TableEvidence
from txstream.inspect.records import Finding, Severity
from txstream.state.records import COMMITTED

ERROR = Severity.ERROR

Findings = Iterator[Finding]


def unseen_tables(evidence: Evidence) -> list[str]:
    """The topology's tables that none of the databases knows."""
    there = {table.table.name for db in evidence.databases for table in db.tables}
    return sorted({*evidence.identity.tables} - there) if evidence.identity is not None else []


def unknown_tables(evidence: Evidence) -> Findings:
    if any(db.errors or db.fence is None for db in evidence.databases):
        return  # told already, and it may be why
    for name in unseen_tables(evidence):
        yield Finding(
            "table-unknown", ERROR, name,
            "the topology fills this table, and none of its databases knows it",
            "give its database by --state-database; if its row in txstream_table was deleted, restore it",
        )  # fmt: skip


def tables(evidence: Evidence) -> Findings:
    for database in evidence.databases:
        for one in database.tables:
            yield from _table(evidence, database, one)
        yield from _rows_of_last(database)


def _table(evidence: Evidence, database: DatabaseEvidence, one: TableEvidence) -> Findings:
    table, where = one.table, f"table {one.table.name} in {database.url}"
    afresh = f"txstream delete {evidence.topology} --drop-state"
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
    last = database.snapshot_last
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
            "row-txid", ERROR, where, f"{one.before_the_first} rows carry a txid below 1",
            "somebody has changed them: restore them from a backup",
        )  # fmt: skip
    if one.half_created:
        yield Finding(
            "row-prev", ERROR, where,
            f"{one.half_created} rows have a prev_ that is null beside one that is not: undoing a batch "
            f"would lose them",
            "somebody has changed them: restore them from a backup",
        )  # fmt: skip


def is_behind_its_tables(database: DatabaseEvidence) -> bool:
    """Has a table rows of a txid that the ledger does not know yet?"""
    newest = 0 if database.snapshot_last is None else int(database.snapshot_last.txid)
    return any(one.newest_txid > newest for one in database.tables)


def _rows_of_last(database: DatabaseEvidence) -> Findings:
    """The rows that the last batch wrote are all there: nobody has changed them since."""
    last = database.snapshot_last
    if last is None or last.status != COMMITTED or last.details.get("path") == "executors":
        return
    counts = [one.carrying_last for one in database.tables]
    if not counts or any(count is None for count in counts):
        return
    if is_behind_its_tables(database):
        return  # told already
    there = sum(count for count in counts if count is not None)
    if there < last.keys:
        yield Finding(
            "rows-missing", ERROR, database.url,
            f"txid {last.txid} wrote {last.keys} rows, and {there} rows carry it: rows were deleted, or "
            f"tables restored from an older copy than the ledger",
            "restore tables and ledger of one moment",
        )  # fmt: skip
