"""A database as an older txstream left it: made by that revision's own scripts, with its rows."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from support.states import Rig
from txstream.state import StateDatabase
from txstream.state.sql import framework_tables as framework, framework_tables as revisions

OLDER = framework.REVISIONS[:-1]


def old_database(database: StateDatabase, url: str, revision: str) -> Rig:
    """Return a database as `revision` left it, with a topology that has committed a batch."""
    rig = Rig(database, url).join()
    rig.commit(1, {"a": 1, "b": 2})
    at_revision(database, url, revision)
    return rig


def differences(url: str) -> list[Any]:
    """Return how the models differ from what the scripts made."""
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(
                connection,
                opts={
                    "version_table": framework.VERSION_TABLE,
                    "compare_type": True,
                    "include_name": lambda name, kind, parents: (
                        kind != "table" or name.startswith("txstream")
                    ),
                },
            )
            return list(compare_metadata(context, framework.metadata))
    finally:
        engine.dispose()


def definitions(url: str) -> dict[str, Any]:
    """Return the columns and keys of the framework's tables, in full."""
    engine = sa.create_engine(url)
    inspector = sa.inspect(engine)
    found = {
        name: [
            [{**column, "type": repr(column["type"])} for column in inspector.get_columns(name)],
            inspector.get_pk_constraint(name),
            inspector.get_indexes(name),
        ]
        for name in [*framework.metadata.tables, framework.VERSION_TABLE]
    }
    engine.dispose()
    return found


def at_revision(database: StateDatabase, url: str, revision: str) -> None:
    """Make the framework's tables again by the scripts up to `revision`, with all their present rows. Columns
    and tables that came later are lost, as if they had never existed. State tables stay as they are."""
    kept = _rows(url)
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name in [*framework.metadata.tables, framework.VERSION_TABLE]:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
    with database.sessions.writing(f"going back to revision {revision}") as (connection, _):
        revisions._run_scripts(connection, to=revision)
    with engine.begin() as connection:
        present = sa.inspect(connection).get_table_names()
        for name, rows in kept.items():
            if name in present and rows:
                table = sa.Table(name, sa.MetaData(), autoload_with=connection)
                columns = set(table.columns.keys())
                known = [{column: row[column] for column in row.keys() & columns} for row in rows]
                connection.execute(table.insert(), known)
    engine.dispose()


def _rows(url: str) -> dict[str, list[dict[str, Any]]]:
    engine = sa.create_engine(url)
    found: dict[str, list[dict[str, Any]]] = {}
    with engine.connect() as connection:
        present = sa.inspect(connection).get_table_names()
        for name in framework.metadata.tables:
            if name in present:
                table = sa.Table(name, sa.MetaData(), autoload_with=connection)
                found[name] = [dict(row) for row in connection.execute(sa.select(table)).mappings()]
    engine.dispose()
    return found
