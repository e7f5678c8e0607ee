"""Tables that change places by name, in one transaction, with what hangs on the name: owner, grants,
comments, indexes and views of the live table are those of the table that takes its place.

What cannot go along is refused with its name (`hindrances`) before anything is changed: whoever relies on the
table by more than its name decides what becomes of it.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, Connection, Index, MetaData, Table, inspect, text
from sqlalchemy.exc import DBAPIError

from txstream.api.state import ROWS_SUFFIX
from txstream.core.backoff import Backoff
from txstream.core.errors import UsageError
from txstream.state import FenceLockedError
from txstream.state.declarations import Owner
from txstream.state.sql import tables as state_tables
from txstream.state.sql.dialect import StateDialect
from txstream.state.sql.errors import one_line

_LOCKING_SECONDS: Final = 60.0
_BACKOFF: Final = Backoff(first_seconds=0.05, longest_seconds=1.0)

PLACES: Final = ("postgresql", "sqlite", "mysql")
"""The databases in which names change places."""


def undoes_renaming(dialect: StateDialect) -> bool:
    """Whether a renaming is part of the transaction; if not, `renaming_later` does it after that."""
    return dialect.name != "mysql"


@dataclass(frozen=True, slots=True)
class Pair:
    """The name of a live table; the table that takes it, as it is called now; and as what the live one is
    kept. None: no table takes it, or there is no live one."""

    name: str
    incoming: str | None = None
    kept: str | None = None
    shown: Mapping[str, Any] | None = None
    """Of a table with `removed_by`, its declaration: the names are views, of rows in tables beside them."""

    @property
    def stored(self) -> Pair:
        """The tables that have the rows."""
        if self.shown is None:
            return self
        names = (self.name, self.incoming, self.kept)
        return Pair(*(None if one is None else f"{one}{ROWS_SUFFIX}" for one in names))  # type: ignore[arg-type]

    @property
    def moves(self) -> list[tuple[str, str]]:
        """The tables that get another name, with that."""
        moves = [] if self.kept is None else [(self.name, self.kept)]
        return moves if self.incoming in (None, self.name) else [*moves, (str(self.incoming), self.name)]


def hindrances(connection: Connection, dialect: StateDialect, pairs: Sequence[Pair]) -> list[str]:
    """Return what keeps these tables from changing places, a phrase each."""
    pairs = [pair.stored for pair in pairs]
    names = [pair.name for pair in pairs if pair.kept is not None]
    if dialect.name == "sqlite":
        query = "SELECT tbl_name, 'trigger ' || name FROM sqlite_master WHERE type = 'trigger'"
        rows = [(name, what) for name, what in connection.execute(text(query)) if name in names]
        keys = 'SELECT m.name, f."table" FROM sqlite_master m, pragma_foreign_key_list(m.name) f'
        rows += [
            (name, f"a foreign key of {one}")
            for one, name in connection.execute(text(f"{keys} WHERE m.type = 'table'"))
            if name in names
        ]
    elif dialect.name == "mysql":
        from txstream.plugins.change import renaming_later

        rows = renaming_later.hindrances(connection, pairs)
    else:
        if not names:
            return []
        listed = {f"name_{number}": quoted(connection, name) for number, name in enumerate(names)}
        regclasses = ", ".join(f"to_regclass(:{one})" for one in listed)
        rows = [
            (name, what)
            for query in _HINDRANCES
            for name, what in connection.execute(text(query.replace("$TABLES", regclasses)), listed)
        ]
        for pair in pairs:
            taking = {check for _, check in _asked(connection, _CHECKS, pair.incoming or pair.name)}
            checks = _asked(connection, _CHECKS, pair.name)
            rows += [(pair.name, f"constraint {name}") for name, check in checks if check not in taking]
    return sorted({f"{what} on {name}" for name, what in rows})


def change_places(connection: Connection, dialect: StateDialect, pairs: Sequence[Pair], suffix: str) -> None:
    """Let every pair's tables change places. `suffix` ends the names of what is kept.

    Raises UsageError for a view that cannot follow.
    """
    shown = [pair for pair in pairs if pair.shown is not None]
    # The view of the live rows stays, as any other that hangs on their table: it has its own grants.
    for pair in shown:
        for view in [pair.incoming] if pair.incoming is not None else [pair.name]:
            try:
                connection.execute(state_tables.DropView(view))
            except DBAPIError as error:
                raise _cannot_follow(f"what uses view {view}", one_line(error.orig or error)) from error
    stored = [pair.stored for pair in pairs]
    if dialect.name == "sqlite":
        _in_sqlite(connection, stored)
    else:
        _in_postgresql(connection, stored, suffix)
    for pair in shown:
        for view in [pair.name] if pair.kept is None else [pair.kept]:
            rows = state_tables.declared_table(Owner(view, "", "", dict(pair.shown or {})), dialect)
            connection.execute(state_tables.CreateView(view, rows))


def _rename(connection: Connection, old: str, new: str, kind: str = "TABLE") -> None:
    old, new = quoted(connection, old), quoted(connection, new)
    connection.execute(text(f"ALTER {kind} {old} RENAME TO {new}"))


def _rename_tables(connection: Connection, pairs: Sequence[Pair]) -> None:
    for old, new in steps(pairs):
        _rename(connection, old, new)


def steps(pairs: Sequence[Pair]) -> list[tuple[str, str]]:
    """Return which table gets which name, one after the other. What is kept may get a name that is taken."""
    live = [pair for pair in pairs if pair.kept is not None]
    return [
        *((pair.name, f"{pair.name}__swap") for pair in live),
        *((str(pair.incoming), pair.name) for pair in pairs if pair.incoming not in (None, pair.name)),
        *((f"{pair.name}__swap", str(pair.kept)) for pair in live),
    ]


def quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote_identifier(name)


def own_indexes(connection: Connection, table: str, new: str) -> dict[str, str]:
    """Return the indexes of a table that are named after it, with what they are called under its new name."""
    found = {}
    for index in inspect(connection).get_indexes(table):
        columns = [name for name in index["column_names"] if name is not None]
        if columns and index["name"] == named(connection, table, columns):
            found[str(index["name"])] = named(connection, new, columns)
    return found


def named(connection: Connection, table: str, columns: Sequence[str]) -> str:
    there = Table(table, MetaData(naming_convention=state_tables.INDEX_NAMES), *map(Column, columns))
    preparer = connection.dialect.identifier_preparer
    named = preparer.format_index(Index(None, *there.columns))
    return str(preparer.unformat_identifiers(named)[0])


# --- SQLite -------------------------------------------------------------------------------------------------

_SQLITE_VIEWS: Final = "SELECT name FROM sqlite_master WHERE type = 'view' ORDER BY name"
_SQLITE_INDEXES: Final = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = :name AND sql IS NOT NULL"
)
_NAME: Final = r'(?:"(?:[^"]|"")*"|[^\s(]+)'
_SQLITE_INDEX: Final = re.compile(rf"(CREATE\s+(?:UNIQUE\s+)?INDEX\s+){_NAME}\s+ON\s+{_NAME}", re.IGNORECASE)


def _in_sqlite(connection: Connection, pairs: Sequence[Pair]) -> None:
    # Without it, views would follow the table instead of the name.
    connection.execute(text("PRAGMA legacy_alter_table = ON"))
    try:
        views = {name for (name,) in connection.execute(text(_SQLITE_VIEWS)) if _works(connection, name)}
        # An index cannot be renamed: what somebody has added to the live table is made on the one that takes
        # its name, and every table has its own.
        made: dict[str, str] = {}
        for pair in pairs:
            for table, new in pair.moves:
                own = own_indexes(connection, table, new)
                for name, sql in connection.execute(text(_SQLITE_INDEXES), {"name": table}).all():
                    connection.execute(text(f"DROP INDEX {quoted(connection, name)}"))
                    goes_on = table == pair.name and pair.incoming is not None
                    if name in own or not goes_on:
                        names = quoted(connection, own.get(name, name)), quoted(connection, new)
                        sql = _SQLITE_INDEX.sub(rf"\1{names[0]} ON {names[1]}", sql, count=1)
                    made[own.get(name, name)] = sql
        _rename_tables(connection, pairs)
        for name, sql in made.items():
            try:
                connection.exec_driver_sql(sql)
            except DBAPIError as error:
                raise _cannot_follow(f"index {name}", one_line(error.orig or error)) from error
        for name in sorted(views):
            if not _works(connection, name):
                raise _cannot_follow(f"view {name}", "it shows a column that is not there any more")
    finally:
        connection.execute(text("PRAGMA legacy_alter_table = OFF"))


def _works(connection: Connection, view: str) -> bool:
    try:
        connection.execute(text(f"SELECT * FROM {quoted(connection, view)} LIMIT 0")).all()  # noqa: S608
    except DBAPIError:
        return False
    return True


# --- PostgreSQL ---------------------------------------------------------------------------------------------

_HINDRANCES: Final = (
    "SELECT c.relname, 'trigger ' || t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
    "WHERE c.oid IN ($TABLES) AND NOT t.tgisinternal",
    "SELECT c.relname, 'constraint ' || k.conname FROM pg_constraint k JOIN pg_class c "
    "ON c.oid = k.conrelid WHERE c.oid IN ($TABLES) AND k.contype NOT IN ('p', 'n', 'c')",
    "SELECT c.relname, 'foreign key ' || k.conname || ' of ' || k.conrelid::regclass FROM pg_constraint k "
    "JOIN pg_class c ON c.oid = k.confrelid WHERE c.oid IN ($TABLES)",
    "SELECT c.relname, 'policy ' || p.polname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid "
    "WHERE c.oid IN ($TABLES)",
    "SELECT c.relname, 'publication ' || p.pubname FROM pg_publication_rel r JOIN pg_publication p "
    "ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid WHERE c.oid IN ($TABLES)",
    "SELECT c.relname, 'table ' || i.inhrelid::regclass || ', which inherits from it,' FROM pg_inherits i "
    "JOIN pg_class c ON c.oid = i.inhparent WHERE c.oid IN ($TABLES)",
    "SELECT c.relname, CASE v.relkind WHEN 'm' THEN 'materialized view ' ELSE 'rule of ' END "
    "|| v.oid::regclass FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = "
    "'pg_rewrite'::regclass JOIN pg_class v ON v.oid = r.ev_class JOIN pg_class c ON c.oid = d.refobjid "
    "WHERE c.oid IN ($TABLES) AND v.relkind <> 'v'",
    "SELECT c.relname, 'function ' || d.objid::regprocedure FROM pg_depend d JOIN pg_class c "
    "ON c.oid = d.refobjid WHERE c.oid IN ($TABLES) AND d.classid = 'pg_proc'::regclass",
)
_CHECKS: Final = (
    "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = to_regclass(:name) "
    "AND contype = 'c'"
)
_VIEWS: Final = (
    "SELECT DISTINCT v.oid, v.oid::regclass::text AS name, pg_get_viewdef(v.oid) AS definition, v.reloptions "
    "FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid AND d.classid = 'pg_rewrite'::regclass "
    "JOIN pg_class v ON v.oid = r.ev_class WHERE d.refobjid = to_regclass(:name) AND v.relkind = 'v' "
    "ORDER BY v.oid"
)
_INDEXES: Final = (
    "SELECT x.indexrelid::regclass::text AS quoted, i.relname AS name, x.indisunique AS is_unique, "
    "pg_get_indexdef(x.indexrelid) AS definition FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid "
    "WHERE x.indrelid = to_regclass(:name) AND NOT x.indisprimary ORDER BY i.relname"
)
_OWNER: Final = "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = to_regclass(:name)"
_GRANTS: Final = (
    "SELECT NULL AS attribute, pg_get_userbyid(a.grantee) AS grantee, a.grantee = 0 AS is_public, "
    "a.privilege_type AS privilege, a.is_grantable FROM pg_class c, aclexplode(c.relacl) a "
    "WHERE c.oid = to_regclass(:name) AND a.grantee <> c.relowner UNION ALL "
    "SELECT t.attname, pg_get_userbyid(a.grantee), a.grantee = 0, a.privilege_type, a.is_grantable "
    "FROM pg_attribute t, aclexplode(t.attacl) a WHERE t.attrelid = to_regclass(:name)"
)
_COMMENTS: Final = (
    "SELECT t.attname, d.description FROM pg_description d LEFT JOIN pg_attribute t ON t.attrelid = d.objoid "
    "AND t.attnum = d.objsubid AND d.objsubid > 0 WHERE d.classoid = 'pg_class'::regclass "
    "AND d.objoid = to_regclass(:name)"
)


def _in_postgresql(connection: Connection, pairs: Sequence[Pair], suffix: str) -> None:
    both = [pair for pair in pairs if len(pair.moves) > 1]
    alike = [one for pair in both for one in _same_indexes(connection, pair)]  # before anybody waits
    shown = sorted({row.name for pair in pairs for row in _asked(connection, _VIEWS, pair.name)})
    named = sorted({table for pair in pairs for table, _ in pair.moves})
    _lock(connection, [*shown, *(quoted(connection, one) for one in named)])
    views = {row.oid: row for pair in pairs for row in _asked(connection, _VIEWS, pair.name)}
    later = [statement for pair in both for statement in _hung_on(connection, pair)]
    renamed = dict(alike)
    for pair in pairs:
        for table, new in pair.moves:
            renamed |= own_indexes(connection, table, new)
    renamed |= {taking: name for name, taking in alike}
    for name, taking in alike:
        if renamed[name] == taking:  # it is none of ours
            renamed[name] = _short(name.removesuffix(suffix), suffix)
    _rename_tables(connection, pairs)
    for number, name in enumerate(renamed):
        _rename(connection, name, f"txstream_swap_{number}", "INDEX")
    for number, new in enumerate(renamed.values()):
        _rename(connection, f"txstream_swap_{number}", new, "INDEX")
    for statement in later:
        _run(connection, statement)
    for view in views.values():
        options = f" WITH ({', '.join(view.reloptions)})" if view.reloptions else ""
        try:
            _run(connection, f"CREATE OR REPLACE VIEW {view.name}{options} AS {view.definition}")
        except DBAPIError as error:
            raise _cannot_follow(f"view {view.name}", one_line(error.orig or error)) from error


def _lock(connection: Connection, names: Sequence[str]) -> None:
    """Lock tables and the views over them at once, and give up again before PostgreSQL looks for a deadlock:
    it might end a reader, who locks them in another order. A reader waits for a moment at most."""
    usual = connection.execute(text("SHOW lock_timeout")).scalar_one()
    deadline, tries = time.monotonic() + _LOCKING_SECONDS, 0
    while True:
        try:
            with connection.begin_nested():
                connection.execute(text("SET LOCAL lock_timeout = '100ms'"))
                connection.execute(text(f"LOCK TABLE {', '.join(names)}"))
                connection.execute(text(f"SET LOCAL lock_timeout = '{usual}'"))
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) not in ("55P03", "40P01"):
                raise
            if time.monotonic() > deadline:
                raise FenceLockedError(
                    f"sessions of others have used {', '.join(names)} without a pause for "
                    f"{_LOCKING_SECONDS:g} s; end them, and try again: nothing was changed"
                ) from error
        else:
            return
        tries += 1
        threading.Event().wait(_BACKOFF.after(tries))


def _same_indexes(connection: Connection, pair: Pair) -> list[tuple[str, str]]:
    """Return each index of the live table with the one of the incoming table that is like it, which is made
    where there is none; but for those of the older code that the newer code does not declare."""
    incoming = str(pair.incoming)
    there = {_like(row): row.name for row in _asked(connection, _INDEXES, incoming)}
    own = own_indexes(connection, pair.name, incoming)
    found = []
    for row in _asked(connection, _INDEXES, pair.name):
        known = there.get(_like(row))
        if known is None and row.name in own:
            continue
        if known is None:
            known = _short(row.name, "__taking")
            made = f"CREATE {'UNIQUE ' if row.is_unique else ''}INDEX {quoted(connection, known)}"
            _run(connection, f"{made} ON {quoted(connection, incoming)} USING {_like(row)[1]}")
        found.append((row.name, known))
    return found


def _like(row: Any) -> tuple[bool, str]:
    return row.is_unique, row.definition.partition(" USING ")[2]


def _hung_on(connection: Connection, pair: Pair) -> list[str]:
    """Return the statements that give the table that will have the live table's name what hangs on it."""
    name = quoted(connection, pair.name)
    present = connection.execute(text(_OWNER), {"name": quoted(connection, str(pair.incoming))}).scalar_one()
    owner = connection.execute(text(_OWNER), {"name": name}).scalar_one()
    statements = []
    columns = {column["name"] for column in inspect(connection).get_columns(str(pair.incoming))}
    for row in _asked(connection, _GRANTS, pair.name):
        if row.attribute is not None and row.attribute not in columns:
            continue
        grantee = "PUBLIC" if row.is_public else quoted(connection, row.grantee)
        of = "" if row.attribute is None else f" ({quoted(connection, row.attribute)})"
        more = " WITH GRANT OPTION" if row.is_grantable else ""
        statements.append(f"GRANT {row.privilege}{of} ON {name} TO {grantee}{more}")
    for column, comment in _asked(connection, _COMMENTS, pair.name):
        told = comment.replace("'", "''")
        what = f"TABLE {name}" if column is None else f"COLUMN {name}.{quoted(connection, column)}"
        if column is None or column in columns:
            statements.append(f"COMMENT ON {what} IS '{told}'")
    if owner != present:
        statements.append(f"ALTER TABLE {name} OWNER TO {quoted(connection, owner)}")
    return statements


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement.replace("%", "%%"))


def _asked(connection: Connection, query: str, table: str) -> Sequence[Any]:
    return connection.execute(text(query), {"name": quoted(connection, table)}).all()


def _short(name: str, suffix: str) -> str:
    """Return a name with a suffix, as long as PostgreSQL lets one be."""
    if len(f"{name}{suffix}".encode()) <= 63:
        return f"{name}{suffix}"
    return f"{hashlib.sha256(name.encode()).hexdigest()[:16]}{suffix[-40:]}"


def _cannot_follow(what: str, why: str) -> UsageError:
    return UsageError(
        f"{what} cannot follow the name to the table that takes it: {why}. Drop it, swap, and create it "
        f"again; nothing was changed"
    )
