"""`txstream diff`: what differs between a topology and one beside it, at the same place in their topics.

Invariants. Nothing is written. All rows of a database, of both topologies, are read in one snapshot, and each
topology is as of one txid that all its databases have committed. Rows are compared only if both txids end at
the same place in every partition: until then it is waited, and nothing is said. Or what one has read beyond
the place of the other is taken out of its rows again (taking_out.py); rows of which that cannot be told are
left out, and then nobody says that all is the same.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

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
from txstream.plugins.change.taking_out import LeftOutError, Since, since
from txstream.settings import Settings
from txstream.state import BatchRecord, StateDatabase
from txstream.state.reading import StoredRow, StoredTable
from txstream.state.sql.sql_reading import SqlStateReading, value_of

if TYPE_CHECKING:
    from txstream.api.topology import Topology

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
    `only_in` says which topology has the table at all, if one has not; `left_out` how many rows were not
    compared; `note` what was not, and why."""

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
    left_out: int = 0

    @property
    def same(self) -> bool:
        return not (self.only_old or self.only_new or self.different or self.only_in or self.left_out)


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two topologies; each is as of its own txid, at the same `places`. `taken_out` says
    of how many records the effects were taken out for that, by topology."""

    old: str
    new: str
    old_txid: Txid
    new_txid: Txid
    places: Mapping[str, Any] = field(default_factory=dict)
    states: tuple[TableDifference, ...] = ()
    taken_out: Mapping[str, int] = field(default_factory=dict)

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
    code: Callable[[str], Topology] | None = None,
) -> Difference:
    """Compare the states of a topology with those of the one that runs beside it.

    Waits until `timeout_seconds` for both to have committed the same place. With `now` not at all: what one
    has read beyond the other is run again, dry, by its `code`, and taken out of its rows. Of each table, as
    many as `rows` of the largest differences are told. Raises UnknownTopologyError, ServiceUnavailableError
    if a database is away or they have not come to one place in time, and UsageError if they are not at one
    place now, and without `code` or by what they read cannot be brought to one.
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
                told = both if isinstance(both, str) else _apart(both)
                if told is None and not isinstance(both, str):
                    return _compared(both, rows)
                if now and code is not None and not isinstance(both, str):
                    return _compared(both, rows, [_beyond(both, one, code, settings) for one in (0, 1)])
            looks += 1
            if now:
                raise UsageError(
                    f"{other!r} and {topology_id!r} cannot be compared now: {told}; leave out --now, and "
                    f"`txstream pause {topology_id}` if its records never rest"
                )
            if time.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    f"{other!r} and {topology_id!r} did not come to the same place within "
                    f"{timeout_seconds:g} s: {told}; give it more time (--timeout), or "
                    f"`txstream pause {topology_id}` until {other!r} has come there"
                )
            pause(min(_BACKOFF.after(looks), max(0.0, deadline - time.monotonic())))


@dataclass(frozen=True)
class Snapshot:
    """A topology in a snapshot of each of its databases, and the batch as of which it is."""

    topology: str
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
    """Return both topologies, each as of one batch, or why there is no such batch."""
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
        found.append(Snapshot(topology_id, readings, connections, row))
    return found[0], found[1]


def _apart(both: tuple[Snapshot, Snapshot]) -> str | None:
    """Return how far one is from the place of the other; None if both are at one place."""
    before, after = (places_of(one.row) for one in both)
    lag, lead = behind(before, after), behind(after, before)
    words = [f"is {counted(lag, 'record')} behind"] if lag else []
    words += [f"is {counted(lead, 'record')} ahead"] if lead else []
    return f"{both[1].topology!r} {' in some partitions and '.join(words)}" if words else None


def _beyond(
    both: tuple[Snapshot, Snapshot], number: int, code: Callable[[str], Topology], settings: Settings
) -> Since | None:
    """Return what one of the two has added beyond the places that both have read; None if nothing."""
    one, other = both[number], both[1 - number]
    mine, others = places_of(one.row), places_of(other.row)
    if not behind(mine, others):
        return None
    if not all(isinstance(place, int) for place in (*mine.values(), *others.values())):
        raise UsageError(
            f"places of {one.topology!r} are no numbers, so no record can be taken out of its rows"
        )
    common = {name: min(place, others.get(name, 0)) for name, place in mine.items()}
    return since(code(one.topology), settings, one.row, common)


def _compared(
    both: tuple[Snapshot, Snapshot], rows: int, beyond: Sequence[Since | None] = (None, None)
) -> Difference:
    old, new = (one.topology for one in both)
    before, after = (one.tables() for one in both)
    states = []
    for table, (url, stored) in sorted(before.items()):
        name = shadow(table, new)
        if name not in after:
            count = both[0].readings[url].count(table)
            told, left_out = (count, 0) if beyond[0] is None else (0, count)
            states.append(TableDifference(table, 0, told, 0, 0, only_in=old, left_out=left_out))
        elif after[name][0] != url:
            raise StateTableError(
                f"state table {table!r} is in {url}, and {name!r} in {after[name][0]}: tables of two "
                f"databases are not compared"
            )
        else:
            readings = both[0].readings[url], both[1].readings[url]
            connection = both[0].connections[url]
            states.append(_of_table(connection, readings, (stored, after[name][1]), rows, beyond))
    shadows = {shadow(table, new) for table in before}
    for name, (url, _) in sorted(after.items()):
        if name not in shadows:
            count = both[1].readings[url].count(name)
            plain = name.removesuffix(shadow("", new))
            told, left_out = (count, 0) if beyond[1] is None else (0, count)
            states.append(TableDifference(plain, 0, 0, told, 0, only_in=new, left_out=left_out))
    mine, others = (places_of(one.row) for one in both)
    places = {
        name: place if place == others.get(name) or not any(beyond) else min(place, others.get(name, 0))
        for name, place in sorted(mine.items())
    }
    taken = {one.topology: some.records for one, some in zip(both, beyond, strict=True) if some is not None}
    return Difference(old, new, both[0].row.txid, both[1].row.txid, places, tuple(states), taken)


# --- one table ----------------------------------------------------------------------------------------------


def _of_table(
    connection: Connection,
    readings: tuple[SqlStateReading, SqlStateReading],
    both: tuple[StoredTable, StoredTable],
    most: int,
    beyond: Sequence[Since | None],
) -> TableDifference:
    old, new = both
    (_, before), (_, after) = readings[0].query(old.name), readings[1].query(new.name)
    counts = readings[0].count(old.name), readings[1].count(new.name)
    added = tuple(name for name in new.value.names if name not in old.value.names)
    removed = tuple(name for name in old.value.names if name not in new.value.names)
    if not old.key.equals(new.key):
        told = f"its key was {', '.join(old.key.names)} and is {', '.join(new.key.names)}: no row is compared"
        return TableDifference(old.name, 0, *counts, 0, added, removed, note=told)
    taken = [(one, table) for one, table in zip(beyond, both, strict=True) if one is not None]
    if unknown := [why for one, table in taken if (why := one.unknown.get(table.name)) is not None]:
        told = f"what its rows were at one place is not known: {unknown[0]}"
        return TableDifference(old.name, 0, 0, 0, 0, added, removed, note=told, left_out=max(counts))
    shared = [name for name in old.value.names if name not in removed]
    note: str | None = None
    if _CLOSED in shared and "window_end" in shared and "window_start" in old.key.names:
        shared.remove(_CLOSED)
        note = "when a window closes depends on the batches: `closed` is not compared"
    a, b = before.subquery("old_rows"), after.subquery("new_rows")
    same_key = and_(*(a.c[name] == b.c[name] for name in old.key.names))
    first = old.key.names[0]
    largest = _Largest(most)
    moved = {key for one, table in taken for key in one.keys(table.name)}

    def found(query: Select[Any]) -> Iterator[Mapping[Any, Any]]:
        for one in connection.execute(query.execution_options(yield_per=10_000)).mappings():
            if not moved or tuple(row(one, "k_", old.key.names, old.key).values()) not in moved:
                yield one

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
    equal, left_out, reasons = counts[0] - only[0] - different, 0, set[str]()
    for key in moved:
        stored = [one.find(table.name, key) for one, table in zip(readings, both, strict=True)]
        equal -= stored[0] is not None
        try:
            was, is_now = (
                _shown(one, table.name, key, here, shared)
                for one, table, here in zip(beyond, both, stored, strict=True)
            )
        except LeftOutError as error:
            left_out += 1
            reasons.add(str(error))
            continue
        if was is None and is_now is None:
            continue
        if was is None or is_now is None:
            only[0 if is_now is None else 1] += 1
        elif all(_is_equal(was[name], is_now[name]) for name in shared):
            equal += 1
            continue
        else:
            different += 1
        largest.add(dict(zip(old.key.names, key, strict=True)), was, is_now)
    if left_out:
        told = f"{counted(left_out, 'row')} left out: {'; '.join(sorted(reasons))}"
        note = told if note is None else f"{note}; {told}"
    return TableDifference(
        old.name,
        equal,
        only[0],
        only[1],
        different,
        added,
        removed,
        note=note,
        rows=largest.found(),
        left_out=left_out,
    )


def _shown(
    beyond: Since | None, table: str, key: tuple[Any, ...], row: StoredRow | None, shared: Sequence[str]
) -> dict[str, Any] | None:
    """Return what is compared of a row, as it was at the place that both have read. Raises LeftOutError."""
    values = None if row is None else row.value
    values = values if beyond is None else beyond.before(table, key, values)
    return None if values is None else {name: values[name] for name in shared}


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
