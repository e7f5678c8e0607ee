"""The checks of `fsck` on the state tables that it has read, and on their agreement with the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from txstream.inspect.records import Finding, Severity
from txstream.inspect.snapshot import DatabasePart, Snapshot, TablePart
from txstream.state.records import COMMITTED

ERROR = Severity.ERROR

Findings = Iterator[Finding]


def unseen_tables(snapshot: Snapshot) -> list[str]:
    """Return the topology's tables that none of the databases knows."""
    named = () if snapshot.identity is None else snapshot.identity.tables
    return sorted({*named}.difference(*(db.names for db in snapshot.databases)))


def unknown_tables(snapshot: Snapshot) -> Findings:
    if any(db.errors or db.fence is None for db in snapshot.databases):
        return  # reported already, and may be the reason
    for name in unseen_tables(snapshot):
        yield Finding(
            "table-unknown", ERROR, name,
            "the topology fills this table, and none of its databases knows it",
            "give its database by --state-database; if its row in txstream_table was deleted, restore it",
        )  # fmt: skip


def tables(snapshot: Snapshot) -> Findings:
    for database in snapshot.databases:
        for one in database.tables or ():
            yield from _table(snapshot, database, one)
        yield from _rows_of_last(database)


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
    there = sum(count for count in counts if count is not None)
    if there < last.keys:
        yield Finding(
            "rows-missing", ERROR, database.url,
            f"txid {last.txid} wrote {last.keys} rows, and {there} rows carry it: rows were deleted, or "
            f"tables restored from an older copy than the ledger",
            "restore tables and ledger of one moment",
        )  # fmt: skip
