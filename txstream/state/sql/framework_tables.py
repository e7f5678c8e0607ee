"""The framework's own tables, as the newest revision of `txstream.migrations` leaves them.

Invariants. One fence row per topology; its attempt only grows. At most one ledger row per topology and
txid, and for transactional and opaque state it is written by the transaction that wrote the state. One
ownership row per state table, written by the transaction that created the table. At most one dead letter per
topology, life, txid and place, written by the transaction that committed the batch.

A new database gets these tables as described here. The scripts upgrade an older one to the same tables; a
test compares the two.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.dialects import mysql

from txstream.state.dead_letters import PLACE_LENGTH
from txstream.state.declarations import TABLE_LENGTH

REVISIONS = ("0001", "0002", "0003", "0004")
"""Every revision, oldest first. They are listed here because scripts cannot be read from a zip; a test
compares the list with the scripts."""

HEAD = REVISIONS[-1]
VERSION_TABLE = "txstream_alembic_version"  # alembic_version belongs to the user's own Alembic

TOPOLOGY_LENGTH = 255
UUID_LENGTH = 36

STORED: dict[str, Any] = {
    f"{name}_{option}": value
    for name in ("mysql", "mariadb")
    for option, value in (
        ("engine", "InnoDB"),
        ("row_format", "DYNAMIC"),  # no other format allows keys as long as these
        ("default_charset", "utf8mb4"),
        ("collate", "utf8mb4_bin"),  # ids are sensitive to case and accents
    )
}
"""How MySQL and MariaDB store a table; other databases ignore it."""

metadata = MetaData()


def document() -> Text:
    """Return the type for text of any length: MySQL's own TEXT ends at 64 KiB."""
    return Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def binary() -> LargeBinary:
    """Return the type for bytes of any length: MySQL's own BLOB ends at 64 KiB."""
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


class Utc(TypeDecorator[datetime]):
    """An aware time, kept in UTC. SQLite stores no zone, so reading adds it again."""

    impl = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _topology(**options: Any) -> Column[str]:
    return Column("topology", String(TOPOLOGY_LENGTH), nullable=False, **options)


def _uuid(**options: Any) -> Column[str]:
    return Column("uuid", String(UUID_LENGTH), nullable=False, **options)


fence = Table(
    "txstream_fence",
    metadata,
    _topology(primary_key=True),
    _uuid(),
    Column("attempt", BigInteger, nullable=False),
    Column("identity", document(), nullable=True),
    **STORED,
)

batch = Table(
    "txstream_batch",
    metadata,
    _topology(primary_key=True),
    _uuid(),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", BigInteger, nullable=False),
    Column("semantics", String(32), nullable=False),
    Column("status", String(16), nullable=False),
    Column("metas", document(), nullable=False),
    Column("tuples", BigInteger, nullable=False),
    Column("keys", BigInteger, nullable=False),
    Column("planned_at", Utc, nullable=False),
    Column("processed_at", Utc, nullable=False),
    Column("committed_at", Utc, nullable=True),
    Column("error", document(), nullable=True),
    Column("details", document(), nullable=True),
    **STORED,
)

owned_table = Table(
    "txstream_table",
    metadata,
    Column("table_name", String(TABLE_LENGTH), primary_key=True),
    _topology(),
    _uuid(),
    Column("declaration", document(), nullable=False),
    Column("created_at", Utc, nullable=False),
    **STORED,
)

dead_letter = Table(
    "txstream_dead_letter",
    metadata,
    _topology(primary_key=True),
    _uuid(primary_key=True),
    Column("txid", BigInteger, primary_key=True, autoincrement=False),
    Column("place", String(PLACE_LENGTH), primary_key=True),
    Column("attempt", BigInteger, nullable=False),
    Column("status", String(64), nullable=False),
    Column("when", Utc, nullable=False),
    Column("topic", document(), nullable=True),
    Column("partition", BigInteger, nullable=True),
    Column("offset", BigInteger, nullable=True),
    Column("timestamp", BigInteger, nullable=True),  # milliseconds since 1970, as Kafka has them
    Column("component", document(), nullable=False),
    Column("exception", document(), nullable=False),
    Column("message", document(), nullable=False),
    Column("traceback", document(), nullable=False),
    Column("key", binary(), nullable=True),
    Column("headers", binary(), nullable=True),
    Column("value", binary(), nullable=True),
    **STORED,
)

version = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""Alembic's own table, as Alembic creates it."""
