"""A state table whose declaration grew: value columns are added to it (`changes` says which may be).

Invariants. Only value columns are added, and only by a leader that has raised the fence, so that nobody who
does not know a column writes to the table. The stored declaration changes last: an interrupted migration is
continued where the database commits each step by itself, and undone elsewhere. As for every column, the new
one's prev is NULL exactly where the row's txid created the row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlalchemy import CheckConstraint, Column, Connection, MetaData, Table, inspect, update
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import ExecutableDDLElement

from txstream.api.state import PREV_PREFIX
from txstream.batch_metas import to_json
from txstream.state.changes import added_values
from txstream.state.records import TableSpec
from txstream.state.sql.dialect import StateDialect
from txstream.state.sql.framework_tables import owned_table


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
    created = table.c.get(f"{PREV_PREFIX}{kept}")
    if created is not None:
        nulls = {table.c[f"{PREV_PREFIX}{name}"]: None for name in added}
        connection.execute(update(table).where(created.is_(None)).values(nulls))
    connection.execute(
        update(owned_table)
        .where(owned_table.c.table_name == table.name)
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
