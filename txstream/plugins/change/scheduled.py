"""Savepoints that the leader makes by itself, every so many hours, and of which it keeps the newest.

TXSTREAM_SAVEPOINT_HOURS asks for them, TXSTREAM_SAVEPOINTS_KEPT says how many are kept. They are named
`auto_` and the time, in UTC. When the next is due follows from the newest that is there, so that a restart
neither puts it off nor makes one more. One that cannot be made delays no batch and is tried again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from txstream.core.errors import TxstreamError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import FIRST_TXID
from txstream.engine.start.companions import Leading
from txstream.plugins.change.savepoints import create_savepoint_in, drop_savepoint_in, remove, saved, saved_in
from txstream.state import StateBackend, StateDatabase

log = logging.getLogger(__name__)

EVERY: Final = "TXSTREAM_SAVEPOINT_HOURS"
KEPT: Final = "TXSTREAM_SAVEPOINTS_KEPT"
PREFIX: Final = "auto_"
_KEPT_BY_DEFAULT = 7
_LOOK_SECONDS = 30.0
_MOMENT_SECONDS = 5.0


def scheduled_savepoints(leading: Leading) -> ScheduledSavepoints | None:
    """Return what makes savepoints beside a run, if the environment asks for it. Raises UsageError."""
    every = os.environ.get(EVERY)
    if not every:
        return None
    kept = os.environ.get(KEPT) or str(_KEPT_BY_DEFAULT)
    try:
        hours = float(every)
    except ValueError:
        hours = 0
    if not 0 < hours < 24 * 366:
        raise UsageError(f"{EVERY} is {every!r}; it must be a number of hours")
    if not kept.isdecimal() or int(kept) < 1:
        raise UsageError(f"{KEPT} is {kept!r}; it must be a number of savepoints, at least 1")
    databases = [one for one in leading.databases if isinstance(one, StateDatabase)]
    if len(databases) < len(leading.databases) or leading.topology.semantics is Semantics.NON_TRANSACTIONAL:
        raise UsageError(
            f"topology {leading.topology.id!r} can have no savepoints, which {EVERY} asks for: it is "
            f"non-transactional or keeps states in something that is no SQL database"
        )
    return ScheduledSavepoints(
        leading.topology.id,
        databases,
        timedelta(hours=hours),
        int(kept),
        lambda: leading.current() > FIRST_TXID,
    )


class ScheduledSavepoints:
    """Makes a savepoint every `every` and keeps the newest `kept` of those that it has made."""

    def __init__(
        self,
        topology_id: str,
        databases: Sequence[StateDatabase],
        every: timedelta,
        kept: int,
        has_committed: Callable[[], bool],
    ) -> None:
        self._topology_id = topology_id
        self._databases = databases
        self._every = every
        self._kept = kept
        self._has_committed = has_committed
        self._stopped = threading.Event()
        name = f"txstream-savepoints-{topology_id}"
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        self._stopped.set()
        self._thread.join(timeout_seconds)

    def look(self, now: datetime) -> str | None:
        """Make the savepoint that is due, and drop those that are too many. Returns the name of a new one.
        Raises what either raises."""
        if not self._has_committed():
            return None
        mine = [one for one in saved(self._topology_id, self._databases) if one.name.startswith(PREFIX)]
        for one in mine:
            if not one.is_whole:  # left by a driver that died
                for database in self._databases:
                    remove(database, self._topology_id, one.name)
        mine = [one for one in mine if one.is_whole]
        made = None
        if not mine or now - max(one.at for one in mine) >= self._every:
            made = f"{PREFIX}{now.astimezone(UTC):%Y%m%d_%H%M%S}"
            mine.append(
                create_savepoint_in(self._topology_id, made, self._databases, timeout_seconds=_MOMENT_SECONDS)
            )
        for one in sorted(mine, key=lambda one: one.at)[: -self._kept]:
            drop_savepoint_in(self._topology_id, one.name, self._databases)
        return made

    def _main(self) -> None:
        failed = False
        while not self._stopped.is_set():
            try:
                made = self.look(datetime.now(UTC))
            except TxstreamError as error:
                log.log(logging.INFO if failed else logging.WARNING, "a savepoint waits: %s", error)
                failed = True
            else:
                failed = False
                if made is not None:
                    log.info("topology %s: savepoint %s", self._topology_id, made)
            self._stopped.wait(min(_LOOK_SECONDS, self._every.total_seconds()))


def belongings(database: StateBackend, topology_id: str, *, drop: bool) -> list[str]:
    """Return the tables that a topology's savepoints and swaps have in a database, or drop them."""
    from txstream.plugins.change import kept
    from txstream.plugins.change.swapping import drop_kept_in

    if not isinstance(database, StateDatabase) or not database.sessions.dialect.is_there():
        return []
    parts = saved_in(database, topology_id)
    with database.sessions.reading("what swaps have kept") as connection:
        swaps = kept.read(connection, topology_id)
    tables = [one.copy for part in parts.values() for one in part.tables if part.folder is None]
    tables += [stored for one in swaps.values() for stored, _ in one.tables.values()]
    if drop:
        for name in parts:
            remove(database, topology_id, name)
        with database.sessions.writing("dropping what swaps have kept") as (connection, _):
            database.sessions.dialect.lock_definitions(connection)
            drop_kept_in(connection, topology_id)
    return tables
