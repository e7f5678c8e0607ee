"""A table that keeps the first row of each key. `DeduplicateBolt` keeps one in a SQL database.

Invariant: the database decides whether a row is the first of its key, in the statement that inserts it. So
any number of processes may write to the table at once, and rows inserted before a crash count.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
from sqlalchemy import delete, inspect

from txstream.api.reducers import Put
from txstream.api.state import SqlState
from txstream.core.errors import StateTableError
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.state.records import TableSpec
from txstream.state.sql.sessions import Sessions
from txstream.state.sql.tables import build_table
from txstream.state.sql.urls import dialect_of
from txstream.state.sql.writer import TableWriter

# A non-transactional table has no attempt, but the writer needs one for its messages.
_NO_ATTEMPT = TransactionAttempt(Txid(1), AttemptId(1))


class _FirstWins(TableWriter):
    def _update(self, excluded: Any) -> tuple[dict[str, Any], Any]:
        return {name: self._table.c[name] for name in self.spec.state.value_names}, None


class FirstRows:
    """The table of a `SqlState` in the database of `url`. It is created if it does not exist.

    Raises ServiceUnavailableError when the database does not answer, StateTableError when a table of that
    name has other columns.
    """

    def __init__(self, state: SqlState, url: str) -> None:
        dialect = dialect_of(url, 10.0, 30.0)
        reducers = {name: Put(name) for name in state.value_names}
        spec = TableSpec(state, Semantics.NON_TRANSACTIONAL, reducers)
        self._table = build_table(state, spec.semantics, dialect)
        self._dialect = dialect
        self._writer = _FirstWins(spec, dialect)
        self._sessions = Sessions(dialect)
        dialect.check()
        with self._sessions.writing("its table") as (connection, _):
            dialect.lock_definitions(connection)
            if not inspect(connection).has_table(state.table):
                self._table.create(connection)
            found = [column["name"] for column in inspect(connection).get_columns(state.table)]
        expected = [*state.key_names, *state.value_names]
        if found != expected:
            raise StateTableError(
                f"table {state.table!r} at {self._sessions.display_url} has the columns "
                f"{', '.join(found)}, not {', '.join(expected)}; choose another table"
            )

    def keep(self, rows: pa.Table) -> pa.Table:
        """Insert the rows whose keys are new. Returns the rows that the table now has for all these keys.

        No key may occur twice in `rows`. Raises StateValueError for a value that a column cannot hold.
        """
        rows = self._writer.prepare(rows)
        with self._sessions.writing("first rows") as (connection, answered):
            self._writer.write(connection, _NO_ATTEMPT, rows, answered)
            return self._writer.read(connection, rows, before=0)

    def forget(self, column: str, before: datetime) -> int:
        """Delete the rows whose timestamp in `column` is older than `before`. Returns how many."""
        data_type = self._writer.spec.state.value_schema.field(column).type
        moment = pa.chunked_array([pa.array([before], data_type)])
        stored = self._table.c[column]
        with self._sessions.writing("old rows", patient=True) as (connection, _):
            older = stored < self._dialect.literal(moment, stored.type)
            return connection.execute(delete(self._table).where(older)).rowcount

    def close(self) -> None:
        self._sessions.close()
