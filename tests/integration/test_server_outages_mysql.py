"""A MariaDB and a MySQL that are stopped, killed or frozen, and answers that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from integration.test_server_outages_postgres import ServerOutages
from mysql_servers import MySQLFamilyServer
from support.cut import AnswerLosingProxy
from support.server_databases import new_database
from support.states import Rig

from txstream.state import open_sql_database
from txstream.state.sql.sessions import Sessions


class TestOutages(ServerOutages):
    @pytest.fixture(params=["own_mariadb", "own_mysql"])
    def server(self, request: pytest.FixtureRequest) -> MySQLFamilyServer:
        found: MySQLFamilyServer = request.getfixturevalue(request.param)
        self.own = found
        return found

    @pytest.fixture
    def url(self, server: MySQLFamilyServer) -> str:
        return new_database(server)

    def freeze(self, url: str | None) -> contextlib.AbstractContextManager[object]:
        return self.own.frozen()

    @contextlib.contextmanager
    def losing(self, url: str) -> Iterator[tuple[str, AnswerLosingProxy]]:
        server = sa.make_url(url)
        assert server.host is not None
        assert server.port is not None
        with contextlib.closing(AnswerLosingProxy((server.host, server.port), ("127.0.0.1", 0))) as proxy:
            through = server.set(port=proxy.address[1])
            yield through.render_as_string(hide_password=False), proxy

    def test_a_server_that_freezes_when_it_has_committed_is_not_waited_for(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The batch is committed by then, but giving the connection back asks the server once more."""
        impatient = open_sql_database(rig.url)
        release = Sessions._release
        with contextlib.ExitStack() as frozen:

            def freeze(sessions: Sessions, connection: sa.Connection) -> None:
                monkeypatch.undo()
                frozen.enter_context(self.own.frozen())
                sessions.dialect.silence_seconds = 1.0  # type: ignore[attr-defined]  # its usual is 35 s
                release(sessions, connection)

            monkeypatch.setattr(Sessions, "_release", freeze)
            Rig(impatient, rig.url).commit(1, {"a": 1}, under=rig.next(1))
        assert rig.values() == {"a": 1}
        Rig(impatient, rig.url).commit(2, {"a": 1}, under=rig.next(2))
        assert rig.values() == {"a": 2}
        impatient.close()
