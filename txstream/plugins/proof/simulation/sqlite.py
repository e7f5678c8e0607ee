"""A real SQLite database for some of the histories, opened by the product's own `StateDatabase`.

Invariants. Nobody sleeps inside a transaction: its lock is real, so the others could not go on and it would
never wake up. The files are created once per process. Each history begins with what `delete` leaves of the
one before.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, event

from txstream.core.errors import ServiceUnavailableError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.stores import Client, with_late_calls
from txstream.state import AnswerLostError, TableSpec, TopologyStates
from txstream.state.sql.database import StateDatabase
from txstream.state.sql.sessions import Sessions

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.world import World


@functools.cache
def _file(name: str, _process: int) -> StateDatabase:
    folder = tempfile.TemporaryDirectory(prefix="txstream-simulation-")
    atexit.register(folder.cleanup)
    database = StateDatabase(f"sqlite:///{Path(folder.name) / name}.db")
    # The machine does not lose power in this simulation.
    event.listen(database.sessions.engine, "connect", _without_sync)
    database.ensure_framework_tables()
    return database


def _without_sync(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


class Server:
    """One database file."""

    has_late = False

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.world = world
        self.on_executors = True
        self.url = f"memory://{name}"  # the topology's name for it
        self.database = _file(name, os.getpid())
        for fence in self.database.topologies():
            self.database.delete(fence.topology, drop_state=True)

    def open(self, client: Client) -> Store:
        return Store(self, client)

    def reach(self) -> None:
        if self.world.happens("database away"):
            raise ServiceUnavailableError(f"{self.name} is away")

    def deliver_late(self) -> None:
        """Do nothing: no transaction is on its way while others act. Only whole calls are late."""


class Store(StateDatabase):
    """One client's view of a file: each transaction may crash, be refused, be late or lose its answer."""

    def __init__(self, server: Server, client: Client) -> None:
        vars(self).update(vars(server.database))
        self.sessions = _Sessions(server, client)
        self.on_executors = server.on_executors  # type: ignore[misc]  # the kind's, elsewhere
        self._server = server

    def of(
        self, topology: str, uuid: str, semantics: Semantics, tables: Sequence[TableSpec] = ()
    ) -> TopologyStates:
        return with_late_calls(super().of(topology, uuid, semantics, tables), self._server.world)

    def check(self) -> None:
        self._server.reach()


class _Sessions(Sessions):
    """The file's own sessions, with what may go wrong on the way to the database and back."""

    def __init__(self, server: Server, client: Client) -> None:
        vars(self).update(vars(server.database.sessions))
        self._server = server
        self._client = client

    @contextlib.contextmanager
    def writing(self, doing: str, **options: Any) -> Iterator[Any]:
        server, world = self._server, self._server.world
        self._client.pass_point("before a transaction", server.name)
        self._server.reach()
        with world.nobody_sleeps(), super().writing(doing, **options) as begun:
            yield begun
        self._client.pass_point("after a transaction", server.name)
        if world.happens("answer lost"):
            world.note(f"the answer of {server.name} to {doing} is lost")
            raise AnswerLostError(f"{server.name} did not answer")

    @contextlib.contextmanager
    def reading(self, doing: str, *arguments: Any, **options: Any) -> Iterator[Connection]:
        self._client.pass_point("before a database is read", self._server.name)
        self._server.reach()
        with super().reading(doing, *arguments, **options) as connection:
            yield connection
