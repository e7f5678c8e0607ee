"""Tables that change places by name where each renaming commits by itself, as in MySQL and MariaDB.

Invariants. The ledger's row comes first, in the transaction that a swap is: it has the pairs (`moves`). All
names change at once, by one RENAME TABLE, and with them that of a table without rows, the mark. As long as
the mark has its first name, the tables have theirs; with its second, old indexes and views may be left;
without it, all is done. So whoever finds the row in the ledger, the command or the next start, finishes it.
A mark without a row is of a swap that has not begun, and its comment says whose: a start drops it.
Views and grants follow the name by themselves here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sqlalchemy import Column, Connection, Integer, MetaData, Table, inspect, text
from sqlalchemy.schema import SetTableComment

from txstream.plugins.change import kept, renaming
from txstream.plugins.change.renaming import Pair
from txstream.state import BatchRecord, StateDatabase, TopologyLife
from txstream.state.declarations import Owner
from txstream.state.sql import tables as state_tables

MOVES: Final = "moves"
_HINDRANCES: Final = (
    "SELECT event_object_table, CONCAT('trigger ', trigger_name) FROM information_schema.triggers "
    "WHERE event_object_schema = DATABASE()",
    "SELECT referenced_table_name, CONCAT('a foreign key of ', table_name) FROM "
    "information_schema.referential_constraints WHERE constraint_schema = DATABASE()",
    "SELECT table_name, CONCAT('foreign key ', constraint_name) FROM "
    "information_schema.referential_constraints WHERE constraint_schema = DATABASE()",
)
_VIEWS: Final = (
    "SELECT table_name, view_definition FROM information_schema.views WHERE table_schema = DATABASE()"
)

_LEFT: Final = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
    "AND table_name LIKE 'txstream!_swap!_!_%' ESCAPE '!' AND table_comment = :uuid"
)


def hindrances(connection: Connection, pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """Return what keeps tables from changing places, by table."""
    names = {pair.name for pair in pairs if pair.kept is not None}
    rows = [tuple(row) for query in _HINDRANCES for row in connection.execute(text(query))]
    found = [(name, what) for name, what in rows if name in names]
    views = connection.execute(text(_VIEWS)).all()
    for pair in pairs:
        if pair.kept is None:
            continue
        taking = str(pair.incoming)
        gone = {*_columns(connection, pair.name)} - {*_columns(connection, taking)} if pair.incoming else {""}
        if gone:
            found += [(pair.name, f"view {name}") for name, query in views if f"`{pair.name}`" in query]
        if pair.incoming is None:
            continue
        there = {_like(one) for one in _indexes(connection, taking)}
        own = renaming.own_indexes(connection, pair.name, taking)
        found += [
            (pair.name, f"index {one['name']}, which {taking} lacks,")
            for one in _indexes(connection, pair.name)
            if one["name"] not in own and _like(one) not in there
        ]
    return found


def prepare(database: StateDatabase, pairs: Sequence[Pair], life: TopologyLife, fork: str) -> None:
    """Make the mark and the table of what is kept, and give the tables that come in the comments of those
    whose names they take, and indexes of the names that a start asks for. As often as it is called."""
    with database.sessions.writing("preparing a swap") as (connection, _):
        database.sessions.dialect.lock_definitions(connection)
        for mark in _marks(fork):
            _table(mark).drop(connection, checkfirst=True)
        _table(_marks(fork)[0], life.uuid).create(connection)
        kept.kept.create(connection, checkfirst=True)
        for pair in (one.stored for one in pairs):
            if pair.incoming is None:
                continue
            there = {index["name"]: index["column_names"] for index in _indexes(connection, pair.incoming)}
            for old, new in renaming.own_indexes(connection, pair.incoming, pair.name).items():
                if new not in there:
                    on = ", ".join(renaming.quoted(connection, str(one)) for one in there[old])
                    name, table = (renaming.quoted(connection, one) for one in (new, pair.incoming))
                    connection.exec_driver_sql(f"CREATE INDEX {name} ON {table} ({on})")
            if pair.kept is None:
                continue
            comment = inspect(connection).get_table_comment(pair.name)["text"]
            if comment:
                connection.execute(SetTableComment(Table(pair.incoming, MetaData(), comment=comment)))


def clear(database: StateDatabase, life: TopologyLife) -> None:
    """Drop the marks of the topology's swaps that have not begun, and never will."""
    with database.sessions.reading("what is left of its swaps") as connection:
        left = connection.execute(text(_LEFT), {"uuid": life.uuid}).scalars().all()
    row = database.last_batch(life.topology) if left else None
    if row is None or MOVES in row.details:  # that one has begun
        return
    with database.sessions.writing("clearing what is left of its swaps") as (connection, _):
        database.sessions.dialect.lock_definitions(connection)
        for name in left:
            _table(name).drop(connection, checkfirst=True)


def finish(
    database: StateDatabase, row: BatchRecord | None, fork: str, reached: Callable[[str], None]
) -> None:
    """Do what the ledger row of a swap says and is not done yet."""
    if row is None or not (moves := row.details.get(MOVES)):
        return
    pairs = [Pair(*one) for one in moves]
    todo, done = _marks(fork)
    with database.sessions.writing("letting names change places", patient=True) as (connection, answered):
        database.sessions.dialect.lock_definitions(connection)
        if inspect(connection).has_table(todo):
            statement = ", ".join(
                f"{renaming.quoted(connection, old)} TO {renaming.quoted(connection, new)}"
                for old, new in [*renaming.steps([pair.stored for pair in pairs]), (todo, done)]
            )
            connection.exec_driver_sql(f"RENAME TABLE {statement}")
            answered()
            reached("renamed")
        inspect(connection).clear_cache()
        if not inspect(connection).has_table(done):
            return
        for pair in pairs:
            _follow(connection, database, pair)
            answered()
        reached("indexes dropped")
        _table(done).drop(connection, checkfirst=True)


def _follow(connection: Connection, database: StateDatabase, pair: Pair) -> None:
    """Drop the indexes that have the name of before, and show the kept rows of a table with `removed_by`."""
    stored = pair.stored
    if stored.incoming is not None:
        for index in _indexes(connection, stored.name):
            columns = [str(one) for one in index["column_names"]]
            old, new = (renaming.named(connection, one, columns) for one in (stored.incoming, stored.name))
            if index["name"] == old != new:
                name, table = (renaming.quoted(connection, one) for one in (old, stored.name))
                connection.exec_driver_sql(f"DROP INDEX {name} ON {table}")
    if pair.shown is None:
        return
    views = {pair.incoming, pair.kept, pair.name if pair.incoming is None else None} - {None}
    present = {*inspect(connection).get_view_names()}
    for view in views & present:
        connection.execute(state_tables.DropView(str(view)))
    for view in [pair.name] if pair.kept is None else [pair.kept]:
        rows = state_tables.declared_table(Owner(view, "", "", dict(pair.shown)), database.sessions.dialect)
        connection.execute(state_tables.CreateView(view, rows))


def _marks(fork: str) -> tuple[str, str]:
    return f"txstream_swap__{fork}", f"txstream_swapped__{fork}"


def _table(name: str, comment: str | None = None) -> Table:
    return Table(name, MetaData(), Column("id", Integer, primary_key=True), comment=comment)


def _columns(connection: Connection, table: str) -> list[str]:
    return [column["name"] for column in inspect(connection).get_columns(table)]


def _indexes(connection: Connection, table: str) -> Sequence[Any]:
    return inspect(connection).get_indexes(table)


def _like(index: Any) -> tuple[bool, tuple[Any, ...]]:
    return bool(index["unique"]), tuple(index["column_names"])
