"""What a database's errors mean for a batch, whatever the driver calls them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from txstream.core.errors import (
    CorruptStateError,
    ServiceUnavailableError,
    StateTableError,
    StateValueError,
    TxstreamError,
)
from txstream.state.records import AccessDeniedError, AnswerLostError, FenceLockedError, SchemaDamagedError

REMEDY = "set --database / TXSTREAM_DATABASE to a SQLAlchemy URL"

_LONGEST_MESSAGE = 300


class Kind(Enum):
    """What to do about an error: each kind means to wait, to try again, or to end with a remedy."""

    UNREACHABLE = auto()  # gone, refusing, full, or cutting the connection: wait until it answers
    LOCKED = auto()  # another session holds a lock: try again
    VALUE = auto()  # the database will never store this value
    MISSING = auto()  # a table or column that existed is gone: somebody altered the schema
    DENIED = auto()  # the account may not do this
    DAMAGED = auto()  # the database itself says that its data is broken
    OTHER = auto()


@dataclass(frozen=True)
class Failure:
    """A classified database error. `message` is one line of the driver's own words."""

    kind: Kind
    message: str


def one_line(error: BaseException) -> str:
    """Return the driver's message on one line, without hints and statement."""
    lines = [line.strip(" \t-") for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = lines[0]
    if text.endswith(":") and len(lines) > 1:
        text = f"{text} {lines[1]}"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}..."


def driver_error(error: DBAPIError) -> BaseException:
    """Return the driver's own exception. SQLAlchemy's would repeat the statement and its values."""
    return error.orig if error.orig is not None else error


def rows_missing(table: str, whose: object, rows: int, missing: int) -> StateTableError:
    """Return the error for rows that the database was told to write and has not, without an error."""
    return StateTableError(
        f"table {table!r}: {whose} wrote {rows} rows, and {missing} of them are not there as they were "
        f"written, although the database reported no error; the batch was not committed. Look for a second "
        f"UNIQUE index, a trigger or row-level security on the table, remove it, and start again"
    )


def wrapped(error: Exception, connection: Connection) -> DBAPIError:
    """Return the driver's own error as SQLAlchemy's. A connection that is lost is given up with it: nothing
    more is sent on it, not even a rollback, whose error would hide this one."""
    if isinstance(error, DBAPIError):
        return error
    # Once invalidated, SQLAlchemy's connection no longer gives access to the driver's.
    dialect: Any = connection.dialect
    lost = connection.invalidated or dialect.is_disconnect(error, connection.connection, None)
    if lost:
        connection.invalidate(error)
    found: DBAPIError = DBAPIError.instance(  # type: ignore[assignment]  # the driver's own error is no other
        None, None, error, dialect.loaded_dbapi.Error, connection_invalidated=lost
    )
    return found


def to_error(failure: Failure, database: str, doing: str, *, at_commit: bool) -> TxstreamError:
    """Return the error to raise for a failure in a transaction that was `doing` something.

    `at_commit` means that COMMIT had been sent, so an outage leaves the outcome unknown.
    """
    error = _to_error(failure, database, doing, at_commit=at_commit)
    if isinstance(error, ServiceUnavailableError):
        error.service = f"database {database}"
    return error


def _to_error(failure: Failure, database: str, doing: str, *, at_commit: bool) -> TxstreamError:
    message = failure.message
    match failure.kind:
        case Kind.UNREACHABLE if at_commit:
            return AnswerLostError(
                f"database {database} broke off while {doing} was being committed: {message}; its ledger "
                f"tells, once it answers again, whether that happened"
            )
        case Kind.UNREACHABLE:
            return ServiceUnavailableError(
                f"database {database} cannot be used for {doing}: {message}; start or repair it, or {REMEDY}"
            )
        case Kind.LOCKED:
            return FenceLockedError(
                f"database {database}: {doing} waited for a lock that another session holds: {message}; end "
                f"that session, or wait until its transaction ends"
            )
        case Kind.VALUE:
            return StateValueError(f"database {database} refuses a value in {doing}: {message}")
        case Kind.MISSING:
            return SchemaDamagedError(
                f"database {database}: {doing} needs what is no longer there: {message}; somebody dropped or "
                f"altered a table while it was in use: restore it, or start afresh with "
                f"`txstream delete ID --drop-state`"
            )
        case Kind.DENIED:
            return AccessDeniedError(
                f"database {database} does not allow {doing}: {message}; grant its account the right to "
                f"create, read and write tables"
            )
        case Kind.DAMAGED:
            return CorruptStateError(f"database {database} is damaged, found in {doing}: {message}")
        case Kind.OTHER:
            return TxstreamError(f"database {database} failed in {doing}: {message}")
