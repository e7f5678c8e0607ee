"""Sessions with a SQL database: how a connection is taken, guarded and released, and its errors translated.

Invariants. Every transaction has its own connection, and nothing is sent twice: a failure before COMMIT
leaves nothing, and an outage at COMMIT is an AnswerLostError, which the ledger settles. A driver's errors
leave this module as errors of the framework. No two processes use one connection.

Thread-safe: connections come from a pool.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from sqlalchemy import Connection, Pool
from sqlalchemy.exc import DBAPIError, TimeoutError as PoolTimeoutError

from txstream.core.errors import ServiceUnavailableError, TxstreamError
from txstream.state.sql.dialect import BEGINS_LATER, READ_ONLY, StateDialect, Touch
from txstream.state.sql.errors import one_line, to_error, wrapped
from txstream.state.sql.framework_tables import COMMITS_EACH_STEP
from txstream.state.sql.urls import without_password

_PING_AFTER_IDLE_SECONDS = 1.0
_PATIENCE_SECONDS = 24 * 3600.0  # even then, a silent server is given up in the end
_USED_AT = "txstream_used_at"  # key in the `info` of a pooled connection


class Sessions:
    """Begins the transactions on one database. Raises ServiceUnavailableError when its driver is missing."""

    def __init__(self, dialect: StateDialect) -> None:
        self.dialect = dialect
        self.display_url = without_password(dialect.url)
        try:
            self.engine = dialect.create_engine()
        except ImportError as error:
            raise ServiceUnavailableError(
                f"database {self.display_url} needs a driver that is not installed ({one_line(error)}); "
                f"type pip install '{dialect.package}'"
            ) from error
        self.engine.update_execution_options(**{COMMITS_EACH_STEP: dialect.commits_each_step})
        self._process = os.getpid()
        self._left_to_parent: list[Pool] = []

    @contextlib.contextmanager
    def writing(
        self,
        doing: str,
        *,
        lock_timeout_seconds: float | None = None,
        patient: bool = False,
        begins_later: bool = False,
    ) -> Iterator[tuple[Connection, Touch]]:
        """Begin a transaction; commit it at the end of the block, undo it when the block raises.

        Yields its connection and a function to call whenever the server has answered. A `patient` transaction
        may work on a whole table, for longer than a commit may take. One that `begins_later` is begun by the
        caller. `doing` describes it in messages. Raises the database's errors as `errors.to_error` translates
        them.
        """
        connection = self._connect(doing).execution_options(**{BEGINS_LATER: begins_later})
        at_commit = False
        try:
            with contextlib.ExitStack() as stack:
                silence_seconds = _PATIENCE_SECONDS if patient else None
                answered = stack.enter_context(self.dialect.deadline(connection, silence_seconds))
                if lock_timeout_seconds is not None:
                    stack.enter_context(self.dialect.lock_timeout(connection, lock_timeout_seconds))
                with connection.begin():
                    if patient:
                        self.dialect.be_patient(connection)
                    yield connection, answered
                    at_commit = True
        except (DBAPIError, self._driver_error) as error:
            raise self._understood(wrapped(error, connection), doing, at_commit=at_commit) from error
        finally:
            self._release(connection)

    @contextlib.contextmanager
    def reading(
        self, doing: str, silence_seconds: float | None = None, *, snapshot: bool = False
    ) -> Iterator[Connection]:
        """Begin a transaction that only reads and waits for no lock; with `snapshot` it sees one moment.

        A server that is silent for `silence_seconds` is given up; by default as in `writing`.
        """
        connection = self._connect(doing).execution_options(**{READ_ONLY: True})
        if snapshot and self.dialect.snapshot_isolation is not None:
            # The pool resets it to the usual level.
            connection = connection.execution_options(isolation_level=self.dialect.snapshot_isolation)
        try:
            with self.dialect.deadline(connection, silence_seconds), connection.begin():
                yield connection
        except (DBAPIError, self._driver_error) as error:
            raise self._understood(wrapped(error, connection), doing) from error
        finally:
            self._release(connection)

    def close(self) -> None:
        """Close all connections; the next transaction opens new ones."""
        self.engine.dispose()

    def _connect(self, doing: str) -> Connection:
        if os.getpid() != self._process:
            # A fork inherits its parent's sockets and files. It must neither use nor close them.
            self._left_to_parent.append(self.engine.pool)
            self.engine.dispose(close=False)
            self._process = os.getpid()
        try:
            connection = self.engine.connect()
            idle_seconds = time.monotonic() - connection.info.get(_USED_AT, time.monotonic())
            if idle_seconds < _PING_AFTER_IDLE_SECONDS or self._answers(connection):
                return connection
            # The server has restarted, so all connections in the pool are as dead as this one.
            connection.invalidate()
            connection.close()
            self.engine.dispose()
            return self.engine.connect()
        except DBAPIError as error:
            raise self._understood(error, doing) from error
        except PoolTimeoutError as error:
            raise ServiceUnavailableError(
                f"database {self.display_url}: all connections are in use for {doing}; try again"
            ) from error

    def _answers(self, connection: Connection) -> bool:
        try:
            with self.dialect.deadline(connection, self.dialect.connect_timeout_seconds):
                self.dialect.ping(connection)
        except DBAPIError:
            return False
        return True

    def _release(self, connection: Connection) -> None:
        """Return the connection to the pool, which may ask the server to reset the session. If the server
        does not answer then, it is given up too and the connection thrown away. The commit stands."""
        if connection.invalidated:
            connection.close()
            return
        connection.info[_USED_AT] = time.monotonic()
        with self.dialect.deadline(connection) if self.dialect.asks_at_release else contextlib.nullcontext():
            connection.close()

    @property
    def _driver_error(self) -> type[Exception]:
        """The driver's error in calls that bypass SQLAlchemy: a ping, a deadline."""
        found: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return found

    def _understood(self, error: DBAPIError, doing: str, *, at_commit: bool = False) -> TxstreamError:
        failure = self.dialect.classify(error)
        return to_error(failure, self.display_url, doing, at_commit=at_commit)
