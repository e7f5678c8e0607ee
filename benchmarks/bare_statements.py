"""The fastest ways to add deltas to a table with a database's own driver, for `state.py` to compare with.

Each writes the columns that txstream writes, into a table with no constraint but the key, and adds. There is
no fence, no value rule, no check and no ledger. The parameters are sorted and in the driver's own form before
the clock starts. COMMIT is timed.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import psycopg
import pyarrow as pa

Values = tuple[list[str], list[int]]


class Way(ABC):
    """One way to write, into a table of its own."""

    name: ClassVar[str]
    options: ClassVar[str]  # the table's storage options, as for the state table
    key: ClassVar[str] = "text"

    def __init__(self, connection: Any, table: str, *, opaque: bool) -> None:
        self.connection, self.table, self.opaque = connection, table, opaque
        self.columns = "word, n, prev_n, txid" if opaque else "word, n, txid"
        # How an existing row changes; %s is the new row.
        self.changes = f"n = {table}.n + %s.n, txid = %s.txid" + (f", prev_n = {table}.n" if opaque else "")
        prev = "prev_n bigint, " if opaque else ""
        connection.execute(
            f"CREATE TABLE {table} (word {self.key} NOT NULL PRIMARY KEY, n bigint NOT NULL, {prev}"
            f"txid bigint NOT NULL) {self.options}"
        )
        connection.commit()

    def ready(self, deltas: pa.Table, txid: int) -> Any:
        """Return the parameters of `write`. Not timed."""
        ordered = deltas.sort_by("word")
        return self.parameters((ordered.column("word").to_pylist(), ordered.column("n").to_pylist()), txid)

    @abstractmethod
    def parameters(self, values: Values, txid: int) -> Any: ...

    @abstractmethod
    def write(self, parameters: Any) -> None:
        """Write in one transaction, which is timed with its COMMIT."""

    def on_conflict(self) -> str:
        return f"ON CONFLICT (word) DO UPDATE SET {self.changes.replace('%s', 'excluded')}"


# --- PostgreSQL -------------------------------------------------------------------------------------------


class _PostgreSQL(Way):
    options = "WITH (fillfactor = 50)"
    key = 'text COLLATE "C"'


class _Arrays(_PostgreSQL):
    """One prepared statement with two array literals."""

    source: ClassVar[str] = "unnest(%s::text[], %s::bigint[]) AS delta(word, n)"

    def __init__(self, connection: psycopg.Connection[Any], table: str, *, opaque: bool) -> None:
        super().__init__(connection, table, opaque=opaque)
        self.statement = self.sql()

    @abstractmethod
    def sql(self) -> str: ...

    @property
    def row(self) -> str:
        prev = "NULL::bigint, " if self.opaque else ""
        return f"delta.word, delta.n, {prev}%s::bigint"

    def parameters(self, values: Values, txid: int) -> Any:
        words, numbers = values
        literal = '{"' + '","'.join(words) + '"}'
        return literal, "{" + ",".join(map(str, numbers)) + "}", txid

    def write(self, parameters: Any) -> None:
        words, numbers, txid = parameters
        self.connection.execute(self.statement, self.order(words, numbers, txid), prepare=True)
        self.connection.commit()

    def order(self, words: str, numbers: str, txid: int) -> Sequence[Any]:
        return txid, words, numbers


class UnnestUpsert(_Arrays):
    name = "INSERT unnest ON CONFLICT"

    def sql(self) -> str:
        return (
            f"INSERT INTO {self.table} ({self.columns}) SELECT {self.row} FROM {self.source} "
            f"{self.on_conflict()}"
        )


class UnnestUpdateInsert(_Arrays):
    """UPDATE for existing rows and INSERT for the others, in one statement: no speculative insertion."""

    name = "UPDATE unnest, INSERT"

    def sql(self) -> str:
        changes = f"n = {self.table}.n + delta.n, txid = %s::bigint"
        changes += f", prev_n = {self.table}.n" if self.opaque else ""
        return (
            f"WITH delta AS MATERIALIZED (SELECT * FROM {self.source}), "
            f"there AS (UPDATE {self.table} SET {changes} FROM delta WHERE {self.table}.word = delta.word "
            f"RETURNING {self.table}.word) "
            f"INSERT INTO {self.table} ({self.columns}) SELECT {self.row} FROM delta "
            f"WHERE NOT EXISTS (SELECT FROM there WHERE there.word = delta.word)"
        )

    def order(self, words: str, numbers: str, txid: int) -> Sequence[Any]:
        return words, numbers, txid, txid


class UnnestUpdateThenInsert(_Arrays):
    """An UPDATE, then an INSERT of the other rows only if it found too few: two statements."""

    name = "UPDATE unnest; INSERT"

    def sql(self) -> str:
        self.insert = (
            f"INSERT INTO {self.table} ({self.columns}) SELECT {self.row} FROM {self.source} "
            f"WHERE NOT EXISTS (SELECT FROM {self.table} old WHERE old.word = delta.word) "
            f"{self.on_conflict()}"
        )
        changes = f"n = {self.table}.n + delta.n, txid = %s::bigint"
        changes += f", prev_n = {self.table}.n" if self.opaque else ""
        return f"UPDATE {self.table} SET {changes} FROM {self.source} WHERE {self.table}.word = delta.word"

    def parameters(self, values: Values, txid: int) -> Any:
        return len(values[0]), super().parameters(values, txid)

    def write(self, parameters: Any) -> None:
        rows, (words, numbers, txid) = parameters
        order = self.order(words, numbers, txid)
        if self.connection.execute(self.statement, order, prepare=True).rowcount < rows:
            self.connection.execute(self.insert, order, prepare=True)
        self.connection.commit()


class UnnestMerge(_Arrays):
    name = "MERGE unnest"

    def sql(self) -> str:
        changes = "n = old.n + delta.n, txid = %s::bigint" + (", prev_n = old.n" if self.opaque else "")
        return (
            f"MERGE INTO {self.table} AS old USING {self.source} ON old.word = delta.word "
            f"WHEN MATCHED THEN UPDATE SET {changes} "
            f"WHEN NOT MATCHED THEN INSERT ({self.columns}) VALUES ({self.row})"
        )

    def order(self, words: str, numbers: str, txid: int) -> Sequence[Any]:
        return words, numbers, txid, txid


class CopyUpsert(_PostgreSQL):
    """COPY into a temporary table, which COMMIT empties, then one INSERT from it."""

    name = "COPY, INSERT ON CONFLICT"

    def __init__(self, connection: psycopg.Connection[Any], table: str, *, opaque: bool) -> None:
        super().__init__(connection, table, opaque=opaque)
        self.staging = f"{table}_delta"
        connection.execute(
            f"CREATE TEMPORARY TABLE {self.staging} (word text, n bigint) ON COMMIT DELETE ROWS"
        )
        connection.commit()
        row = "word, n, NULL::bigint, %s::bigint" if opaque else "word, n, %s::bigint"
        self.statement = (
            f"INSERT INTO {table} ({self.columns}) SELECT {row} FROM {self.staging} {self.on_conflict()}"
        )

    def parameters(self, values: Values, txid: int) -> Any:
        return "".join(f"{word}\t{n}\n" for word, n in zip(*values, strict=True)).encode(), txid

    def write(self, parameters: Any) -> None:
        text, txid = parameters
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {self.staging} FROM STDIN") as copy:
            copy.write(text)
        self.connection.execute(self.statement, (txid,), prepare=True)
        self.connection.commit()


POSTGRESQL: tuple[type[Way], ...] = (
    UnnestUpsert,
    UnnestUpdateInsert,
    UnnestUpdateThenInsert,
    UnnestMerge,
    CopyUpsert,
)


# --- SQLite -----------------------------------------------------------------------------------------------


class _SQLite(Way):
    options = "WITHOUT ROWID"

    def write(self, parameters: Any) -> None:
        self.connection.execute("BEGIN IMMEDIATE")
        self.execute(parameters)
        self.connection.execute("COMMIT")

    @abstractmethod
    def execute(self, parameters: Any) -> None: ...


class ManyUpsert(_SQLite):
    name = "executemany ON CONFLICT"

    def __init__(self, connection: sqlite3.Connection, table: str, *, opaque: bool) -> None:
        super().__init__(connection, table, opaque=opaque)
        places = "?, ?, NULL, ?" if opaque else "?, ?, ?"
        self.statement = f"INSERT INTO {table} ({self.columns}) VALUES ({places}) {self.on_conflict()}"

    def parameters(self, values: Values, txid: int) -> Any:
        return [(word, n, txid) for word, n in zip(*values, strict=True)]

    def execute(self, parameters: Any) -> None:
        self.connection.executemany(self.statement, parameters)


class JsonUpsert(_SQLite):
    """One statement over a JSON array of pairs."""

    name = "INSERT json_each ON CONFLICT"

    def __init__(self, connection: sqlite3.Connection, table: str, *, opaque: bool) -> None:
        super().__init__(connection, table, opaque=opaque)
        row = "value ->> 0, value ->> 1, NULL, ?" if opaque else "value ->> 0, value ->> 1, ?"
        # Without WHERE true, SQLite's parser takes ON for the start of a join condition.
        source = "FROM json_each(?) WHERE true"
        self.statement = f"INSERT INTO {table} ({self.columns}) SELECT {row} {source} {self.on_conflict()}"

    def parameters(self, values: Values, txid: int) -> Any:
        return txid, json.dumps(list(zip(*values, strict=True)))

    def execute(self, parameters: Any) -> None:
        self.connection.execute(self.statement, parameters)


class ListUpsert(_SQLite):
    """INSERT statements with a list of rows each, all with the same text."""

    name = "INSERT lists ON CONFLICT"
    rows: ClassVar[int] = 100

    def parameters(self, values: Values, txid: int) -> Any:
        row = f"(?, ?, NULL, {txid})" if self.opaque else f"(?, ?, {txid})"
        flat = [value for pair in zip(*values, strict=True) for value in pair]
        step = 2 * self.rows
        return [
            (
                f"INSERT INTO {self.table} ({self.columns}) VALUES {', '.join([row] * (len(part) // 2))} "
                f"{self.on_conflict()}",
                part,
            )
            for part in (flat[start : start + step] for start in range(0, len(flat), step))
        ]

    def execute(self, parameters: Any) -> None:
        for statement, values in parameters:
            self.connection.execute(statement, values)


SQLITE: tuple[type[Way], ...] = (ManyUpsert, JsonUpsert, ListUpsert)
