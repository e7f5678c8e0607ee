"""`txstream diff`: what differs between a topology and one beside it, at the same place in their topics.

Invariants. Nothing is written. All rows of a database, of both topologies, are read in one snapshot, and each
topology is as of one txid that all its databases have committed. Rows are compared only if both txids end at
the same place in every partition: until then it is waited, and nothing is said.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import Connection, Select, and_, or_, select

from txstream.cli.beside import shadow
from txstream.core.backoff import Backoff
from txstream.core.errors import ServiceUnavailableError, StateTableError, UsageError
from txstream.core.transaction import Txid
from txstream.core.wording import counted
from txstream.inspect.databases import nowhere, open_databases
from txstream.plugins.change.forks import behind, places_of
from txstream.plugins.change.savepoints import boundary, sql_databases
from txstream.settings import Settings
from txstream.state import BatchRecord, StateDatabase
from txstream.state.reading import StoredTable
from txstream.state.sql.sql_reading import SqlStateReading, value_of

_BACKOFF = Backoff(first_seconds=0.02, longest_seconds=1.0)
_CLOSED = "closed"
_NINE_DIGITS = 1e-9


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same: its values by column, None where it is only in the other table. `size` is
    the greatest difference of a number in it."""

    key: Mapping[str, Any]
    old: Mapping[str, Any] | None
    new: Mapping[str, Any] | None
    size: float


@dataclass(frozen=True, slots=True)
class TableDifference:
    """A state table in both topologies: how many rows are equal, only in one, or different, and the largest
    differences. `added` and `removed` are value columns that only one of the two has; they are not compared.
    `only_in` says which topology has the table at all, if one has not; `note` what was not compared, and
    why."""

    table: str
    equal: int
    only_old: int
    only_new: int
    different: int
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    only_in: str | None = None
    note: str | None = None
    rows: tuple[RowDifference, ...] = ()

    @property
    def same(self) -> bool:
        return not (self.only_old or self.only_new or self.different or self.only_in)


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two topologies; each is as of its own txid, at the same `places`."""

    old: str
    new: str
    old_txid: Txid
    new_txid: Txid
    places: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[TableDifference, ...] = ()

    @property
    def same(self) -> bool:
        return all(one.same for one in self.states)


def differences(
    topology_id: str,
    other: str,
    settings: Settings | None = None,
    *,
    timeout_seconds: float = 60.0,
    now: bool = False,
    rows: int = 20,
) -> Difference:
    """Compare the states of a topology with those of the one that runs beside it.

    Waits until `timeout_seconds` for both to have committed the same place; with `now` not at all. Of each
    table, as many as `rows` of the largest differences are told. Raises UnknownTopologyError,
    ServiceUnavailableError if a database is away or they have not come to one place in time, and UsageError
    if they are not at one place now.
    """
    settings = (settings or Settings()).resolve()
    with contextlib.ExitStack() as stack:
        databases: dict[str, StateDatabase] = {}
        urls: list[list[str]] = []
        for one in (topology_id, other):
            found = stack.enter_context(open_databases(settings, one))
            if not found.opened:
                raise nowhere(settings, one)
            opened = sql_databases(found)
            urls.append([database.display_url for database in opened])
            for database in opened:
                databases.setdefault(database.display_url, database)
        deadline, looks = time.monotonic() + timeout_seconds, 0
        pause = threading.Event().wait
        while True:
            with contextlib.ExitStack() as tried:
                both = _looked(topology_id, other, databases, urls, tried)
                if not isinstance(both, str):
                    return _compared(topology_id, other, both, rows)
            looks += 1
            if now:
                raise UsageError(
                    f"{other!r} and {topology_id!r} cannot be compared now: {both}. Rows of different places "
                    f"are not compared, since what a batch adds to a row cannot be taken out of it again; "
                    f"leave out --now, and `txstream pause {topology_id}` if its records never rest"
                )
            if time.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    f"{other!r} and {topology_id!r} did not come to the same place within "
                    f"{timeout_seconds:g} s: {both}; give it more time (--timeout), or "
                    f"`txstream pause {topology_id}` until {other!r} has come there"
                )
            pause(min(_BACKOFF.after(looks), max(0.0, deadline - time.monotonic())))


@dataclass(frozen=True)
class Snapshot:
    """A topology in a snapshot of each of its databases, and the batch as of which it is."""

    readings: Mapping[str, SqlStateReading]
    connections: Mapping[str, Connection]
    row: BatchRecord

    def tables(self) -> dict[str, tuple[str, StoredTable]]:
        """Return its tables by name, each with the URL of its database."""
        return {
            table.name: (url, table)
            for url, one in self.readings.items()
            for table in one.tables()
            if not table.transient  # rows that wait for somebody who takes them
        }


def _looked(
    old: str,
    new: str,
    databases: Mapping[str, StateDatabase],
    urls: Sequence[Sequence[str]],
    stack: contextlib.ExitStack,
) -> tuple[Snapshot, Snapshot] | str:
    """Return both topologies at one place, or why they are not."""
    found: list[Snapshot] = []
    connections = {
        url: stack.enter_context(one.sessions.reading(f"the states of {old!r} and {new!r}", snapshot=True))
        for url, one in databases.items()
    }
    for topology_id, here in zip((old, new), urls, strict=True):
        readings = {
            url: SqlStateReading(connections[url], databases[url].sessions.dialect, url, topology_id)
            for url in here
        }
        row = boundary(topology_id, [databases[url] for url in here], list(readings.values()))
        if isinstance(row, str):
            return f"topology {topology_id!r}: {row}"
        found.append(Snapshot(readings, connections, row))
    before, after = (places_of(one.row) for one in found)
    lag, lead = behind(before, after), behind(after, before)
    if lag or lead:
        words = [f"is {counted(lag, 'record')} behind"] if lag else []
        words += [f"is {counted(lead, 'record')} ahead"] if lead else []
        return f"{new!r} {' in some partitions and '.join(words)}"
    return found[0], found[1]


def _compared(old: str, new: str, both: tuple[Snapshot, Snapshot], rows: int) -> Difference:
    before, after = (one.tables() for one in both)
    states = []
    for table, (url, stored) in sorted(before.items()):
        name = shadow(table, new)
        if name not in after:
            count = both[0].readings[url].count(table)
            states.append(TableDifference(table, 0, count, 0, 0, only_in=old))
        elif after[name][0] != url:
            raise StateTableError(
                f"state table {table!r} is in {url}, and {name!r} in {after[name][0]}: tables of two "
                f"databases are not compared"
            )
        else:
            readings = both[0].readings[url], both[1].readings[url]
            connection = both[0].connections[url]
            states.append(_of_table(connection, readings, stored, after[name][1], rows))
    shadows = {shadow(table, new) for table in before}
    for name, (url, _) in sorted(after.items()):
        if name not in shadows:
            count = both[1].readings[url].count(name)
            plain = name.removesuffix(shadow("", new))
            states.append(TableDifference(plain, 0, 0, count, 0, only_in=new))
    places = dict(sorted(places_of(both[0].row).items()))
    return Difference(old, new, both[0].row.txid, both[1].row.txid, places, tuple(states))


# --- one table ----------------------------------------------------------------------------------------------


def _of_table(
    connection: Connection,
    readings: tuple[SqlStateReading, SqlStateReading],
    old: StoredTable,
    new: StoredTable,
    most: int,
) -> TableDifference:
    (_, before), (_, after) = readings[0].query(old.name), readings[1].query(new.name)
    counts = readings[0].count(old.name), readings[1].count(new.name)
    added = tuple(name for name in new.value.names if name not in old.value.names)
    removed = tuple(name for name in old.value.names if name not in new.value.names)
    if not old.key.equals(new.key):
        told = f"its key was {', '.join(old.key.names)} and is {', '.join(new.key.names)}: no row is compared"
        return TableDifference(old.name, 0, *counts, 0, added, removed, note=told)
    shared = [name for name in old.value.names if name not in removed]
    note: str | None = None
    if _CLOSED in shared and "window_end" in shared and "window_start" in old.key.names:
        shared.remove(_CLOSED)
        note = "when a window closes depends on the batches: `closed` is not compared"
    a, b = before.subquery("old_rows"), after.subquery("new_rows")
    same_key = and_(*(a.c[name] == b.c[name] for name in old.key.names))
    first = old.key.names[0]
    largest = _Largest(most)

    def found(query: Select[Any]) -> Iterator[Mapping[Any, Any]]:
        yield from connection.execute(query.execution_options(yield_per=10_000)).mappings()

    def row(given: Mapping[Any, Any], side: str, names: Sequence[str], schema: pa.Schema) -> dict[str, Any]:
        return {name: value_of(given[f"{side}{name}"], schema.field(name).type) for name in names}

    def labelled(subquery: Any, side: str, names: Sequence[str]) -> list[Any]:
        return [subquery.c[name].label(f"{side}{name}") for name in names]

    only = [0, 0]
    for number, (mine, others, schema) in enumerate(((a, b, old.value), (b, a, new.value))):
        alone = select(*labelled(mine, "k_", old.key.names), *labelled(mine, "v_", shared))
        joined = alone.select_from(mine.outerjoin(others, same_key)).where(others.c[first].is_(None))
        for one in found(joined):
            only[number] += 1
            values = row(one, "v_", shared, schema)
            sides = (values, None) if number == 0 else (None, values)
            largest.add(row(one, "k_", old.key.names, old.key), *sides)
    different = 0
    unequal = [a.c[name].is_distinct_from(b.c[name]) for name in shared]
    if unequal:
        columns = [
            *labelled(a, "k_", old.key.names), *labelled(a, "o_", shared), *labelled(b, "n_", shared)
        ]  # fmt: skip
        for one in found(select(*columns).select_from(a.join(b, same_key)).where(or_(*unequal))):
            then, now = row(one, "o_", shared, old.value), row(one, "n_", shared, new.value)
            if any(not _is_equal(then[name], now[name]) for name in shared):
                different += 1
                largest.add(row(one, "k_", old.key.names, old.key), then, now)
    equal = counts[0] - only[0] - different
    return TableDifference(
        old.name, equal, only[0], only[1], different, added, removed, note=note, rows=largest.found()
    )


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same: a sum of doubles depends on the order of its additions."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=_NINE_DIGITS)
    return bool(one == other)


class _Largest:
    """The largest of many differences."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._heap: list[tuple[float, int, RowDifference]] = []
        self._count = 0

    def add(
        self, key: Mapping[str, Any], old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
    ) -> None:
        then, now = old or {}, new or {}
        size = max((_size(then.get(name), now.get(name)) for name in {**then, **now}), default=0.0)
        self._count += 1
        one = size, -self._count, RowDifference(key, old, new, size)
        if len(self._heap) < self._most:
            heapq.heappush(self._heap, one)
        elif self._most:
            heapq.heappushpop(self._heap, one)

    def found(self) -> tuple[RowDifference, ...]:
        return tuple(one for _, _, one in sorted(self._heap, key=lambda one: one[:2], reverse=True))


def _size(old: Any, new: Any) -> float:
    kinds = (int, float, Decimal)
    if any(one is not None and not isinstance(one, kinds) for one in (old, new)):
        if isinstance(old, datetime) and isinstance(new, datetime):
            return abs((new - old).total_seconds())
        return float(abs((new - old).days)) if isinstance(old, date) and isinstance(new, date) else 0.0
    return abs(float(new or 0) - float(old or 0))
