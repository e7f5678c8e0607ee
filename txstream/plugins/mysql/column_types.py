"""Columns of MySQL and MariaDB that keep every value exactly, and keys that stay distinct.

Text is compared by code points, and trailing blanks count. The two servers have different names for such a
collation; SQLAlchemy's dialect knows which server it is once connected.

A primary key of InnoDB has at most 3072 bytes. Columns of text and bytes share what the others leave.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Dialect, TypeDecorator, types
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles

from txstream.core.errors import StateTableError, StateValueError
from txstream.state.sql.framework_tables import Binary, Document, Instant

KEY_BYTES: Final = 3072
_BYTES_PER_CHARACTER: Final = 4
_SIZES: Final[dict[pa.DataType, int]] = {
    pa.bool_(): 1,
    pa.int8(): 1,
    pa.int16(): 2,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.date32(): 3,
}


def collation(*, mariadb: bool) -> str:
    """Return the collation of text in state tables and in the sessions that write them."""
    return "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"


@compiles(Document, "mysql", "mariadb")
def _document(*_arguments: object, **_options: object) -> str:
    return "LONGTEXT"  # TEXT ends at 64 KiB


@compiles(Binary, "mysql", "mariadb")
def _binary(*_arguments: object, **_options: object) -> str:
    return "LONGBLOB"


@compiles(Instant, "mysql", "mariadb")
def _instant(*_arguments: object, **_options: object) -> str:
    return "DATETIME(6)"


class TextKey(TypeDecorator[str]):
    """Text of at most `length` characters in a primary key."""

    impl = mysql.VARCHAR
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        return dialect.type_descriptor(
            mysql.VARCHAR(self.length, charset="utf8mb4", collation=_collation(dialect))
        )


class TextValue(TypeDecorator[str]):
    """Text of any length."""

    impl = mysql.LONGTEXT
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> types.TypeEngine[Any]:
        return dialect.type_descriptor(mysql.LONGTEXT(charset="utf8mb4", collation=_collation(dialect)))


BinaryKey = mysql.VARBINARY


def is_text(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_string(data_type) or pa.types.is_large_string(data_type))


def is_bytes(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_binary(data_type) or pa.types.is_large_binary(data_type))


def key_lengths(keys: pa.Schema, table: str) -> dict[str, int | None]:
    """Return the maximum number of characters or bytes of each key column; None for a type of fixed size.

    Raises StateTableError when there are so many columns that nothing is left for one of text or bytes.
    """
    shared = [field.name for field in keys if is_text(field.type) or is_bytes(field.type)]
    left = KEY_BYTES - sum(_size(field.type) for field in keys if field.name not in shared)
    share = left // len(shared) if shared else left
    if share < (_BYTES_PER_CHARACTER if shared else 0):
        raise StateTableError(
            f"state table {table!r}: its {len(keys)} key columns do not fit into a primary key of "
            f"{KEY_BYTES} bytes, which is all that MySQL and MariaDB have; use fewer or a hash of them"
        )
    return {
        field.name: None
        if field.name not in shared
        else share // _BYTES_PER_CHARACTER
        if is_text(field.type)
        else share
        for field in keys
    }


def refuse_too_long(table: str, name: str, column: pa.ChunkedArray, length: int) -> None:
    """Raise StateValueError for a key that is too long for its column, which holds `length`."""
    import pyarrow.compute as pc  # who only looks at a database does not need it

    text = is_text(column.type)
    lengths = pc.utf8_length(column) if text else pc.binary_length(column)
    longest = pc.max(lengths).as_py()
    if longest is None or longest <= length:
        return
    value = column[pc.index(lengths, longest).as_py()].as_py()
    raise StateValueError(
        f"key column {name!r} of table {table!r}: {value[:40]!r}... has {longest} "
        f"{'characters' if text else 'bytes'}, and {length} is what it can have: the primary key has "
        f"{KEY_BYTES} bytes in MySQL and MariaDB, shared among its columns of text and bytes; use a hash of "
        f"it as the key"
    )


def shown(dialect: Dialect, column_type: Any) -> str:
    """Return a type as text that is equal for the declaration and the server's catalog."""
    if isinstance(column_type, types.Boolean) or getattr(column_type, "display_width", None) == 1:
        return "BOOL"
    name = str(column_type.compile(dialect))
    if isinstance(column_type, types.Integer):
        return re.sub(r"\(\d+\)", "", name)  # MariaDB adds a width, which does not limit the values
    return re.sub(
        r" CHARACTER SET \w+(?= COLLATE)", "", name
    )  # the collation implies the character set, so it may be missing


def _size(data_type: pa.DataType) -> int:
    if pa.types.is_decimal(data_type):
        # Each nine digits take four bytes, separately before and after the point.
        return sum(
            4 * math.ceil(digits / 9) for digits in (data_type.precision - data_type.scale, data_type.scale)
        )
    if pa.types.is_timestamp(data_type):
        return 8
    return _SIZES.get(data_type, 8)


def _collation(dialect: Dialect) -> str:
    return collation(mariadb=bool(getattr(dialect, "is_mariadb", False)))
