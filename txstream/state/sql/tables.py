"""State tables: built from a declaration, created once, compared with what exists, owned by one topology, and
extended by value columns (`changes` says which may be added).

Invariants. One transaction creates a state table and its ownership row, so a table without that row is
somebody else's and is never adopted, altered or written. Where a database commits a creation by itself, the
ownership row is written first and says, until the end, that the table is being created. The columns are the
keys, then each value followed by its `prev_` (opaque), then `txid`; `Column.info` says which is which. In a
`SqlTable` only rows that may be replaced have `prev_`, and with it `prev_txid`, NULL exactly where the row's
txid created the row: its values may be NULL themselves.

Columns are added only by a leader that has raised the fence, so that nobody who does not know a column writes
to the table. The stored declaration changes last: an interrupted migration is continued where the database
commits each step by itself, and undone elsewhere. As for every column, the new one's prev is NULL
where the row's txid created the row.

Over 500 lines: a table's life from its declaration to its last column, beside what it is compared with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Connection,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Select,
    Table,
    case,
    delete,
    inspect,
    not_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IdentifierError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateIndex, DropIndex, ExecutableDDLElement
from sqlalchemy.sql import quoted_name

from txstream.api.state import (
    KEPT_PREFIX,
    PREV_PREFIX,
    PREV_TXID_COLUMN,
    REMOVED,
    ROWS_SUFFIX,
    TXID_COLUMN,
    SqlState,
)
from txstream.core.batch_metas import to_json
from txstream.core.errors import CorruptStateError, StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.state import declarations
from txstream.state.changes import CREATING, added_values, committed_in_part, declared_values, refused_changes
from txstream.state.declarations import Owner
from txstream.state.records import TableSpec, TopologyLife
from txstream.state.sql.dialect import StateDialect
from txstream.state.sql.framework_tables import owned_table

INDEX_NAMES = {"ix": "ix_%(table_name)s_%(column_0_name)s"}  # SQLAlchemy shortens names that are too long


def build_table(state: SqlState, semantics: Semantics, dialect: StateDialect) -> Table:
    """Return the table of a declaration. Raises StateTableError for what the database cannot keep."""
    # A new Table means new statements, each compiled again. Only the dialect keeps it.
    known = dialect.tables.get((state, semantics))
    if known is None:
        known = dialect.tables[state, semantics] = _built(state, semantics, dialect)
    return known


def _built(state: SqlState, semantics: Semantics, dialect: StateDialect) -> Table:
    declarations.check_types(state)
    columns: list[Column[Any]] = []
    for name, key_type in dialect.key_types(state.key_schema, state.table).items():
        columns.append(
            Column(_quoted(name), key_type, autoincrement=False, nullable=False, info={"key": True})
        )
    declarations.check_defaults(state, semantics)
    spec = TableSpec(state, semantics, {})
    dialect.check_name(state.table, "table", state.table)
    checks: list[CheckConstraint] = []
    for field in state.value_schema:
        value_type = dialect.type_of(field, state.table)
        value = Column(
            _quoted(field.name),
            value_type,
            nullable=spec.appends or semantics is not Semantics.OPAQUE,
            info={"delta": True},
        )
        columns.append(value)
        check = dialect.value_check(value, field.type)
        if check is not None:
            checks.append(CheckConstraint(check))
        if spec.keeps_prev:
            columns.append(
                Column(
                    _quoted(f"{PREV_PREFIX}{field.name}"),
                    value_type,
                    nullable=True,
                    info={"prev": field.name},
                )
            )
            if state.removed_by is not None and field.name != REMOVED:
                name = _quoted(f"{KEPT_PREFIX}{field.name}")
                columns.append(Column(name, value_type, nullable=True, info={"kept": True}))
    if spec.appends and spec.keeps_prev:
        columns.append(Column(PREV_TXID_COLUMN, BigInteger, nullable=True, info={"prev_txid": True}))
        if state.removed_by is not None:
            name = _quoted(f"{KEPT_PREFIX}{TXID_COLUMN}")
            columns.append(Column(name, BigInteger, nullable=True, info={"kept": True}))
    if semantics is not Semantics.NON_TRANSACTIONAL:
        columns.append(Column(TXID_COLUMN, BigInteger, nullable=False, info={"txid": True}))
    for column in columns:
        dialect.check_name(state.table, "column", str(column.name))
    if state.stored_table != state.table:
        dialect.check_name(state.table, "table", state.stored_table)
    table = Table(
        _quoted(state.stored_table),
        MetaData(naming_convention=INDEX_NAMES),
        *columns,
        *([PrimaryKeyConstraint(*state.key_names)] if spec.is_keyed else []),
        *checks,
        **_table_options(spec, dialect),
    )
    if semantics is not Semantics.NON_TRANSACTIONAL and finds_by_txid(state, dialect):
        Index(None, table.c[TXID_COLUMN])
    if state.removed_by is not None:
        # Of few rows: those that the last batches have removed. Not by txid, which every update changes.
        gone = table.c[REMOVED]
        Index(None, gone, postgresql_where=gone, sqlite_where=gone == true())  # as each writes it in a query
    if state.marks is not None:
        Index(None, *(table.c[name] for name in state.marks))
    if state.keep_on is not None and (not spec.is_keyed or state.keep_on != state.key_names[0]):
        Index(None, table.c[state.keep_on])
    return table


def finds_by_txid(state: SqlState, dialect: StateDialect) -> bool:
    """Is there an index on txid, because it is declared or because changes are copied by it?"""
    return state.index_txid or (state.changes_to is not None and not copies_written(state, dialect))


def copies_written(state: SqlState, dialect: StateDialect) -> bool:
    """Are changes copied by the upsert that makes them? What marks rows is another statement."""
    return state.changes_to is not None and dialect.copies_written and state.marks is None


def _table_options(spec: TableSpec, dialect: StateDialect) -> dict[str, Any]:
    state, options = spec.state, dialect.table_options(keyed=spec.is_keyed, updated=_is_updated(spec))
    if state.storage:
        if (parameters := options.get("postgresql_with")) is None:
            declarations.refuse_storage(state, dialect.label)
        options["postgresql_with"] = {**parameters, **state.storage}
    return options


def _is_updated(spec: TableSpec) -> bool:
    return spec.state.on_conflict in (None, "replace")


def _quoted(name: str) -> quoted_name:
    """Return a name that is always quoted: SQLAlchemy does not know every word that a server reserves."""
    return quoted_name(name, quote=True)


def join_table(
    connection: Connection,
    dialect: StateDialect,
    life: TopologyLife,
    spec: TableSpec,
    *,
    first_run: bool,
    check_only: bool = False,
) -> None:
    """Create the table of `spec`, or check the existing one and its owner.

    With `check_only` nothing is created: where each CREATE is committed by itself, a refusal must come before
    the first one. Raises IdentityMismatchError, StateTableError, ProgressMismatchError or CorruptStateError;
    each names what would help.
    """
    topology, name = life.topology, spec.state.table
    declarations.check_length(spec.state)
    table = build_table(spec.state, spec.semantics, dialect)
    owner = read_owner(connection, name)
    exists = all(inspect(connection).has_table(one) for one in {name, spec.state.stored_table})
    if owner is not None:
        declarations.refuse_other_owner(owner, topology, life.uuid)
        if not exists and owner.declaration.get(CREATING):
            if check_only:
                return
            _create(connection, spec, table)
            exists = True
        if not exists:
            declarations.refuse_other_declaration(owner, spec)
            raise CorruptStateError(
                f"state table {name!r} was created for topology {topology!r} and is gone; restore it, or "
                f"start afresh with `txstream delete {topology} --drop-state`"
            )
        _refuse_differences(connection, dialect, owner, table, spec)
        dialect.refuse_unfit(connection, table)
        creating = owner.declaration.get(CREATING)
        by_time = _missing_index_by_time(connection, dialect, table)
        if by_time is not None and not creating:
            statement = CreateIndex(by_time).compile(dialect=connection.dialect)
            raise StateTableError(
                f"state table {name!r} is declared with keep={spec.state.keep!r} and has no index "
                f"{by_time.name}, without which each commit would read it whole; run this in its database: "
                f"{statement}"
            )
        index = _index_of_difference(connection, dialect, spec)
        if index is not None and not (creating and finds_by_txid(spec.state, dialect)):
            raise _other_index(connection, index, spec)
        if creating and not check_only:
            for one in (index, by_time):
                if one is not None:
                    one.create(connection)
            _declare(connection, name, spec)
        return
    refuse_foreign(connection, life, spec)
    if not first_run:
        raise declarations.not_here(topology, name)
    if check_only:
        return
    declaration = spec.state.declaration(spec.semantics)
    connection.execute(
        owned_table.insert().values(
            table_name=name,
            topology=topology,
            uuid=life.uuid,
            declaration=to_json({**declaration, CREATING: True}),
            created_at=datetime.now(UTC),
        )
    )
    _create(connection, spec, table)
    _declare(connection, name, spec)


def refuse_foreign(connection: Connection, life: TopologyLife, spec: TableSpec) -> None:
    """Raise StateTableError if the table of `spec`, which has no owner, exists."""
    for name in {spec.state.table, spec.state.stored_table}:
        if inspect(connection).has_table(name):
            raise StateTableError(
                f"table {name!r} exists and was not created by txstream for this state, so its data is left "
                f"alone; choose another table for topology {life.topology!r}, or rename or drop that one"
            )


def _create(connection: Connection, spec: TableSpec, table: Table) -> None:
    try:
        table.create(connection, checkfirst=True)
        if table.name != spec.state.table and not inspect(connection).has_table(spec.state.table):
            connection.execute(CreateView(spec.state.table, table))
    except IdentifierError as error:
        raise StateTableError(f"state table {table.name!r}: {error}; choose a shorter name") from error


def _declare(connection: Connection, name: str, spec: TableSpec) -> None:
    connection.execute(
        update(owned_table)
        .where(owned_table.c.table_name == name)
        .values(declaration=to_json(spec.state.declaration(spec.semantics)))
    )


def changes_due(connection: Connection, spec: TableSpec, unfinished: Txid | None) -> list[str]:
    """Return what `migrate_table` would do to a table that `join_table` has accepted, a sentence per change.

    Raises StateTableError for a change that must wait until txid `unfinished` is committed, or that the table
    no longer allows.
    """
    owner = read_owner(connection, spec.state.table)
    if owner is None:
        return []
    # Since `join_table` looked, another driver that declares more columns may have been leader.
    declarations.refuse_other_declaration(owner, spec)
    added = added_values(owner.declaration, spec)
    if added and unfinished is not None and spec.semantics is Semantics.TRANSACTIONAL:
        raise committed_in_part(owner.table, added, unfinished)
    return [f"column {name!r} added, with default {spec.state.defaults[name]!r}" for name in added]


def migrate_table(
    connection: Connection, dialect: StateDialect, spec: TableSpec, unfinished: Txid | None
) -> list[str]:
    """Change a table that `join_table` has accepted to its declaration. Returns one sentence per change.

    Called in a transaction that holds the fence. Raises StateTableError for a change that cannot be made now
    or at all.
    """
    due = changes_due(connection, spec, unfinished)
    owner = read_owner(connection, spec.state.table)
    if not due or owner is None:
        return []
    table = build_table(spec.state, spec.semantics, dialect)
    grow_table(connection, dialect, table, spec, owner.declaration)
    grown = Owner(owner.table, owner.topology, owner.uuid, spec.state.declaration(spec.semantics))
    _refuse_differences(connection, dialect, grown, table, spec)
    return due


def added_columns(table: Table, owner: Owner, spec: TableSpec) -> set[str]:
    """Return the database columns that the declaration adds, the framework's `prev_` columns included."""
    added = added_values(owner.declaration, spec)
    return {
        column.name for column in table.columns if column.name in added or column.info.get("prev") in added
    }


def read_owner(connection: Connection, name: str) -> Owner | None:
    """Return the owner of a state table; None when it has none."""
    row = connection.execute(select(owned_table).where(owned_table.c.table_name == name)).one_or_none()
    return None if row is None else _owner(row)


def owned_by(connection: Connection, topology: str) -> list[Owner]:
    """Return the owners of a topology's state tables, sorted by table name."""
    rows = connection.execute(
        select(owned_table).where(owned_table.c.topology == topology).order_by(owned_table.c.table_name)
    )
    return [_owner(row) for row in rows]


def drop_tables(connection: Connection, owners: Sequence[Owner]) -> list[str]:
    """Drop state tables and delete their ownership rows. Returns the names of the tables that existed."""
    dropped = []
    for owner in owners:
        values, stored = declared_values(owner.declaration), str(owner.table)
        if values is not None and REMOVED in values.names:
            stored = f"{owner.table}{ROWS_SUFFIX}"
            if inspect(connection).has_table(owner.table):
                connection.execute(DropView(owner.table))
        if inspect(connection).has_table(stored):
            Table(_quoted(stored), MetaData()).drop(connection)
            dropped.append(owner.table)
        connection.execute(delete(owned_table).where(owned_table.c.table_name == owner.table))
    return dropped


def declared_table(owner: Owner, dialect: StateDialect) -> Table:
    """Return the table that an ownership row declares. Raises CorruptStateError if it cannot be read."""
    spec = declarations.declared_spec(owner)
    return build_table(spec.state, spec.semantics, dialect)


def stored_schema(owner: Owner, table: Table) -> pa.Schema:
    """Return the types of all columns of a declared table, as they were declared."""
    state = declarations.declared_spec(owner).state
    declared = {one.name: one.type for one in (*state.key_schema, *state.value_schema)}

    def kind(column: Column[Any]) -> pa.DataType:
        base = column.info.get("prev") or column.name
        base = base.removeprefix(KEPT_PREFIX) if "kept" in column.info else base
        return declared.get(base, pa.int64())  # the others are txids

    return pa.schema([pa.field(str(column.name), kind(column)) for column in table.columns])


def _owner(row: Any) -> Owner:
    try:
        declaration = json.loads(row.declaration)
    except ValueError as error:
        raise CorruptStateError(
            f"txstream_table: the declaration of table {row.table_name!r} is not JSON: "
            f"{row.declaration!r:.200}"
        ) from error
    return Owner(row.table_name, row.topology, row.uuid, declaration)


def _refuse_differences(
    connection: Connection, dialect: StateDialect, owner: Owner, table: Table, spec: TableSpec
) -> None:
    differences = refused_changes(owner.declaration, spec)
    if not differences:
        # Columns that a migration will add, or was adding when it was interrupted.
        coming = added_columns(table, owner, spec)
        differences = _column_differences(connection, dialect, table, coming)
    declarations.refuse_differences(owner, differences)


def differences_from_declaration(
    connection: Connection, dialect: StateDialect, table: Table, name: str
) -> list[str] | None:
    """Return how the table, which people call `name`, differs from its declaration, one sentence each; None
    when it is gone."""
    there = all(inspect(connection).has_table(one) for one in {name, table.name})
    return _column_differences(connection, dialect, table) if there else None


def _column_differences(
    connection: Connection, dialect: StateDialect, table: Table, coming: Collection[str] = ()
) -> list[str]:
    """Return how the columns differ from the declared ones. Those in `coming` may be missing."""
    inspector = inspect(connection)

    def shown(column_type: Any, nullable: bool | None) -> str:
        return f"{dialect.shown_type(connection, column_type)}{'' if nullable else ' NOT NULL'}"

    wanted = {column.name: shown(column.type, column.nullable) for column in table.columns}
    found = {
        column["name"]: shown(column["type"], column["nullable"])
        for column in inspector.get_columns(table.name)
    }
    differences = [f"column {name!r} is missing" for name in wanted.keys() - found.keys() - set(coming)]
    differences += [f"column {name!r} is not ours" for name in found.keys() - wanted.keys()]
    differences += [
        f"column {name!r} is {found[name]}, expected {wanted[name]}"
        for name in wanted
        if name in found and found[name] != wanted[name]
    ]
    keys = [column.name for column in table.primary_key.columns]
    found_keys = inspector.get_pk_constraint(table.name)["constrained_columns"]
    if sorted(found_keys) != sorted(keys):
        differences.append(f"its primary key is {found_keys}, expected {keys}")
    return sorted(differences)


def _missing_index_by_time(connection: Connection, dialect: StateDialect, table: Table) -> Index | None:
    """Return the index by which old rows are found, if the table needs one and has none."""
    others = [[table.c[name]] for name in (TXID_COLUMN, REMOVED) if name in table.c]
    mine = (index for index in table.indexes if [*index.columns] not in others)
    return next((index for index in mine if not _is_there(connection, dialect, index)), None)


def _is_there(connection: Connection, dialect: StateDialect, index: Index) -> bool:
    assert index.table is not None
    found = [one["name"] for one in inspect(connection).get_indexes(index.table.name)]
    preparer = connection.dialect.identifier_preparer
    return dialect.stored_name(preparer.unformat_identifiers(preparer.format_index(index))[0]) in found


def _index_of_difference(connection: Connection, dialect: StateDialect, spec: TableSpec) -> Index | None:
    """Return the index on txid if it is declared but missing, or exists but is not declared; else None. Its
    name distinguishes it from the user's own indexes."""
    if spec.semantics is Semantics.NON_TRANSACTIONAL:
        return None
    state = replace(spec.state, index_txid=True, keep=None, keep_on=None)
    table = build_table(state, spec.semantics, dialect)
    index = next(one for one in table.indexes if one.columns.keys() == [TXID_COLUMN])
    is_there, wanted = _is_there(connection, dialect, index), finds_by_txid(spec.state, dialect)
    # Where changes leave, an earlier txstream has made one.
    return None if is_there == wanted or (is_there and spec.state.changes_to is not None) else index


def _other_index(connection: Connection, index: Index, spec: TableSpec) -> StateTableError:
    wanted = spec.state.index_txid or spec.state.changes_to is not None
    statement = (CreateIndex if wanted else DropIndex)(index).compile(dialect=connection.dialect)
    return StateTableError(
        f"state table {spec.state.table!r} is declared with index_txid={wanted} and has "
        f"{'no' if wanted else 'the'} index {index.name}; declare index_txid={not wanted}, or run this in "
        f"its database: {statement}"
    )


def grow_table(
    connection: Connection, dialect: StateDialect, table: Table, spec: TableSpec, declared: Mapping[str, Any]
) -> None:
    """Add the new value columns with their defaults, and store the present declaration.

    Raises StateValueError for a default that this database would change.
    """
    added = added_values(declared, spec)
    present = {column["name"] for column in inspect(connection).get_columns(table.name)}
    for name in added:
        field = spec.state.value_schema.field(name)
        default = _default(dialect, spec, field)
        for column in (table.c[name], table.c.get(f"{PREV_PREFIX}{name}")):
            if column is not None and column.name not in present:
                check = dialect.value_check(column, field.type) if column.name == name else None
                connection.execute(_AddColumn(_alone(table, column, default), check))
    kept = next(name for name in spec.state.value_names if name not in added)
    created = table.c.get(PREV_TXID_COLUMN if spec.appends else f"{PREV_PREFIX}{kept}")
    if created is not None:
        nulls = {table.c[f"{PREV_PREFIX}{name}"]: None for name in added}
        connection.execute(update(table).where(created.is_(None)).values(nulls))
    connection.execute(
        update(owned_table)
        .where(owned_table.c.table_name == spec.state.table)
        .values(declaration=to_json(spec.state.declaration(spec.semantics)))
    )


def _default(dialect: StateDialect, spec: TableSpec, field: pa.Field) -> Any:
    value = spec.state.defaults[field.name]
    if value is None:
        return None
    column = pa.chunked_array([pa.array([value], field.type)])
    dialect.check_values(spec.state.table, field.name, column, spec.reducers.get(field.name))
    return dialect.literal(column, dialect.type_of(field, spec.state.table))


def _alone(table: Table, column: Column[Any], default: Any) -> Column[Any]:
    """Return a copy of the column with a default, in a table of the same name. The declared one has none."""
    nullable = bool(column.nullable)
    found: Column[Any] = Column(column.name, column.type, server_default=default, nullable=nullable)
    Table(table.name, MetaData(), found)
    return found


def rows_there(table: Table) -> Select[Any]:
    """Return the query for the rows of a state table that are not removed, as people see them: one that was
    removed before looks like a new one."""
    if REMOVED not in table.c:
        return select(table)
    shown: list[Any] = []
    for column in table.columns:
        if "prev_txid" in column.info:
            shown.append(case((not_(table.c[f"{PREV_PREFIX}{REMOVED}"]), column)).label(column.name))
        elif "kept" not in column.info and column.name not in (REMOVED, f"{PREV_PREFIX}{REMOVED}"):
            shown.append(column)
    return select(*shown).where(not_(table.c[REMOVED]))


class CreateView(ExecutableDDLElement):
    """The view that shows the rows of a table with `removed_by` that are there."""

    inherit_cache = False

    def __init__(self, name: str, table: Table) -> None:
        self.name, self.query = name, rows_there(table)


@compiles(CreateView)
def _compile_create_view(element: CreateView, compiler: Any, **_options: Any) -> str:
    query = compiler.sql_compiler.process(element.query, literal_binds=True)
    return f"CREATE VIEW {compiler.preparer.quote(_quoted(element.name))} AS {query}"


class DropView(ExecutableDDLElement):
    inherit_cache = False

    def __init__(self, name: str) -> None:
        self.name = name


@compiles(DropView)
def _compile_drop_view(element: DropView, compiler: Any, **_options: Any) -> str:
    return f"DROP VIEW {compiler.preparer.quote(_quoted(element.name))}"


class _AddColumn(ExecutableDDLElement):
    inherit_cache = False

    def __init__(self, column: Column[Any], check: Any) -> None:
        self.column = column
        self.check = None if check is None else CheckConstraint(check)


@compiles(_AddColumn)
def _compile_add_column(element: _AddColumn, compiler: Any, **_options: Any) -> str:
    column = element.column
    table, what = compiler.preparer.format_table(column.table), compiler.get_column_specification(column)
    check = "" if element.check is None else f" {compiler.process(element.check)}"
    return f"ALTER TABLE {table} ADD COLUMN {what}{check}"
