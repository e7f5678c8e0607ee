"""State tables: a list of them, single rows, the greatest rows, and what a batch changed.

Each table is read in one transaction, which sees a single moment, together with the ledger's last row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

from txstream.api.schema import format_schema
from txstream.core.errors import StateTableError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.inspect.databases import Databases, Where, topology_databases
from txstream.inspect.keys import check_key, parse_key
from txstream.inspect.ledgers import no_such_txid
from txstream.inspect.records import RowChange, StateRow, StateRows, StateTable, TableDiff
from txstream.state.reading import StateReading, StoredRow, StoredTable

if TYPE_CHECKING:
    from txstream.inspect.records import MissingDatabase
    from txstream.state import StateBackend


def states(
    topology_id: str, settings: Where = None, *, missing: list[MissingDatabase] | None = None
) -> list[StateTable]:
    """Return the state tables of a topology in all its databases, by name.

    Raises UnknownTopologyError and StateTableError. Databases that cannot be opened are added to the list
    `missing`; without the list ServiceUnavailableError is raised.
    """
    found: list[StateTable] = []
    with topology_databases(settings, topology_id, missing) as databases:
        for database in databases.opened:
            with database.read_state(topology_id) as reading:
                found += [_described(database, reading, table) for table in reading.tables()]
    return sorted(found, key=lambda table: (table.table, table.database))


def get(
    topology_id: str,
    table: str,
    key: Sequence[Any] | Mapping[str, Any],
    settings: Where = None,
    *,
    database: str | None = None,
    parse: bool = False,
) -> StateRows:
    """Return the row of a key, if there is one. `key` has one value per key column, in order or by name.

    With `parse` the values are texts, in order, read by the columns' types. `database` (a URL or a part of
    one) says which table is meant if two databases have one of this name. Raises UsageError for values that
    are not of the key's types, StateTableError for a table that does not exist, and UnknownTopologyError.
    """
    with _reading(topology_id, table, settings, database) as (place, reading, stored):
        values = parse_key(table, stored.key, list(key)) if parse else check_key(table, stored.key, key)
        row = reading.find(table, values)
        return _answer(place, reading, stored, [] if row is None else [row])


def top(
    topology_id: str,
    table: str,
    n: int = 10,
    settings: Where = None,
    *,
    database: str | None = None,
) -> StateRows:
    """Return the `n` rows with the greatest first value; `n` is at least 1. Raises as `get`."""
    if n < 1:
        raise UsageError(f"n is {n}; it must be at least 1")
    with _reading(topology_id, table, settings, database) as (place, reading, stored):
        return _answer(place, reading, stored, reading.top(table, n))


def diff(
    topology_id: str,
    table: str,
    txid: int,
    settings: Where = None,
    *,
    database: str | None = None,
    limit: int | None = None,
) -> TableDiff:
    """Return what batch `txid` changed in a table, as far as it still knows: at most `limit` rows, by key.

    A row knows only the last batch that changed it. Raises as `get`, and UnknownTxidError for a txid that the
    ledger does not have.
    """
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}; it must not be negative")
    with _reading(topology_id, table, settings, database) as (place, reading, stored):
        record = place.batch(topology_id, txid)
        if record is None:
            raise no_such_txid(topology_id, txid, [place])
        rows = reading.written_by(table, txid, limit)
        count = reading.count_written_by(table, txid)
        committed = txid <= reading.as_of
        overwritten = None
        if committed:
            still = sum(
                reading.count_written_by(other.name, txid)
                for other in reading.tables()
                if other.has_txid and other.copies is None
            )
            overwritten = max(0, record.keys - still)
        tells = [stored.tells_before and row.knows_before for row in rows]
        changes = [
            RowChange(row.key, row.prev, None if row.removed else row.value) for row in compress(rows, tells)
        ]
        return TableDiff(
            database=place.display_url,
            table=table,
            semantics=stored.semantics,
            txid=Txid(txid),
            status=record.status,
            created=tuple(c for c in changes if c.before is None and c.after is not None),
            changed=tuple(c for c in changes if c.before not in (None, c.after) and c.after is not None),
            unchanged=sum(change.before == change.after for change in changes),
            carrying=tuple(
                _row(row) for row, told in zip(rows, tells, strict=True) if not (told or row.removed)
            ),
            carrying_count=count,
            overwritten=overwritten,
            notes=tuple(
                _diff_notes(
                    stored,
                    txid,
                    count,
                    len(rows),
                    overwritten,
                    committed=committed,
                    expires=bool(record.metas.get("horizons")),
                )
            ),
            removed=tuple(c for c in changes if c.before is not None and c.after is None),
        )


@contextlib.contextmanager
def _reading(
    topology_id: str, table: str, settings: Where, database: str | None
) -> Iterator[tuple[StateBackend, StateReading, StoredTable]]:
    with topology_databases(settings, topology_id, []) as databases:
        place = place_of_table(topology_id, table, databases, database)
        with place.read_state(topology_id) as reading:
            yield place, reading, next(found for found in reading.tables() if found.name == table)


def place_of_table(topology_id: str, table: str, databases: Databases, wanted: str | None) -> StateBackend:
    """Return the database that has a state table; of several, the one with `wanted` in its URL. Raises
    StateTableError if none has it, or more than one."""
    places: list[StateBackend] = []
    known: list[str] = []
    for place in databases.opened:
        with place.read_state(topology_id) as reading:
            names = [found.name for found in reading.tables()]
        known += [f"{name} in {place.display_url}" for name in names]
        if table in names and (wanted is None or wanted in place.display_url):
            places.append(place)
    if len(places) == 1:
        return places[0]
    if places:
        raise StateTableError(
            f"topology {topology_id!r} has a state table {table!r} in "
            f"{' and in '.join(place.display_url for place in places)}; say which with --in"
        )
    left_out = "".join(f"; {missing}" for missing in databases.missing)
    where = "" if wanted is None else f" in a database like {wanted!r}"
    raise StateTableError(
        f"topology {topology_id!r} has no state table {table!r}{where}; it has "
        f"{', '.join(known) or 'none'}{left_out}"
    )


def _described(database: StateBackend, reading: StateReading, table: StoredTable) -> StateTable:
    differences = reading.differences(table.name)
    notes = list(_notes(reading, table))
    if differences is None:
        notes = [f"table {table.name} is gone; `txstream fsck` says how that is mended"]
    elif differences:
        notes = [f"table {table.name} is not as declared: {'; '.join(differences)}"]
    return StateTable(
        database.display_url,
        table.name,
        format_schema(table.key),
        format_schema(table.value),
        table.semantics,
        reading.count(table.name) if differences == [] else None,
        reading.as_of,
        tuple(notes),
    )


def _answer(
    database: StateBackend, reading: StateReading, table: StoredTable, rows: Sequence[StoredRow]
) -> StateRows:
    return StateRows(
        database.display_url,
        table.name,
        table.semantics,
        tuple(_row(row) for row in rows),
        reading.as_of,
        tuple(_notes(reading, table)),
        table.has_prev,
    )


def _row(row: StoredRow) -> StateRow:
    return StateRow(row.key, row.value, row.prev, row.txid)


def _notes(reading: StateReading, table: StoredTable) -> Iterator[str]:
    txid = reading.unfinished
    if txid is None:
        return
    began = f"txid {txid} is being committed by executors, or was when its driver died"
    if table.tells_before and not table.has_prev:
        yield f"{began}: all rows are shown as of txid {reading.as_of}"
    elif table.semantics is Semantics.OPAQUE:
        yield (
            f"{began}: all rows are shown as of txid {reading.as_of}; where it has written already, txid and "
            f"prev are not known"
        )
    elif table.semantics is Semantics.TRANSACTIONAL:
        yield f"{began}: rows with txid {txid} have it already, and what they were before is not kept"
    else:
        yield f"{began}: rows may have it already"


def _diff_notes(
    table: StoredTable,
    txid: int,
    count: int,
    shown: int,
    overwritten: int | None,
    *,
    committed: bool,
    expires: bool,
) -> Iterator[str]:
    if not committed:
        yield f"txid {txid} is not committed: these are the rows that it has written so far"
    if not table.tells_before:
        yield "a transactional table keeps no earlier values: what these rows were before is not known"
    if shown < count:
        yield f"{count - shown:,} more carry txid {txid}"
    if overwritten:
        removed = "; so it is with rows that it removed" if table.removes else ""
        ignored = ", or are not there because an older row of their key was kept"
        expired = ", or have expired" if expires else ""
        yield (
            f"{overwritten:,} more that txid {txid} wrote, in all tables of this database, were changed by "
            f"later batches since{expired}{ignored if table.keeps_older else ''}: what it did to "
            f"them is not known any more{removed}"
        )
