"""What a session with PostgreSQL makes of a cut connection, a fork, and a database's own encoding."""

from __future__ import annotations

import math
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.server_databases import new_database
from support.states import Rig
from support.tables import execute

from txstream.core.errors import ServiceUnavailableError, StateValueError
from txstream.core.transaction import attempt_id
from txstream.state import AnswerLostError, open_sql_database
from txstream.state.sql import postgresql, sessions


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    return new_database(postgres)


def administrator(postgres: PostgresServer) -> psycopg.Connection[Any]:
    return psycopg.connect(host=str(postgres.data), user="postgres", autocommit=True)


def cut(postgres: PostgresServer, url: str) -> None:
    """End all sessions with a database, as its administrator may at any moment."""
    with administrator(postgres) as connection:
        name = sa.make_url(url).database
        query = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        assert connection.execute(query, (name,)).fetchall()


class TestCut:
    """Every error must be the framework's own, whatever the driver was doing."""

    @pytest.fixture(autouse=True)
    def unasked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the connection count as used just now, however slow the machine is."""
        monkeypatch.setattr(sessions, "_PING_AFTER_IDLE_SECONDS", math.inf)

    def test_before_the_lock_timeout_is_set(self, rig: Rig, postgres: PostgresServer) -> None:
        rig.commit(1, {"a": 1})
        cut(postgres, rig.url)
        with pytest.raises(ServiceUnavailableError, match=r"raising the fence.* terminating") as told:
            rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=5)
        assert not isinstance(told.value, AnswerLostError)
        rig.states.raise_fence(attempt_id(2, 0), lock_timeout_seconds=5)
        assert rig.fence() == attempt_id(2, 0)

    def test_before_a_reading(self, rig: Rig, postgres: PostgresServer) -> None:
        rig.commit(1, {"a": 1})
        cut(postgres, rig.url)
        with pytest.raises(ServiceUnavailableError, match=r"the ledger.* terminating"):
            rig.database.last_batch("words")
        assert rig.last().txid == 1


class TestStatements:
    def test_a_table_that_is_too_large_to_undo_a_batch_in(self, rig: Rig) -> None:
        """It would be tried again for ever, so the error says what helps."""
        rig.commit(1, {"a": 1})
        engine = rig.database.sessions.engine
        rig.database.sessions.dialect.message_timeout_seconds = 0.05
        execute(
            rig.url,
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_sleep(60); RETURN OLD; END'",
            "CREATE TRIGGER slow BEFORE DELETE ON word_count FOR EACH ROW EXECUTE FUNCTION slow()",
        )

        def hurry(connection: Any, _record: object, _proxy: object) -> None:
            connection.execute("SET statement_timeout = 100")

        sa.event.listen(engine.pool, "checkout", hurry)
        with pytest.raises(ServiceUnavailableError, match=r"'word_count' was broken off .*index_txid=True"):
            rig.commit(1, {"a": 2})
        sa.event.remove(engine.pool, "checkout", hurry)
        engine.dispose()
        execute(rig.url, "DROP TRIGGER slow ON word_count")
        rig.commit(1, {"a": 2})
        assert rig.values() == {"a": 2}

    def test_large_values_go_in_several(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        """The server takes no array of a gigabyte, and would call the data damaged."""
        monkeypatch.setattr(postgresql, "_STATEMENT_BYTES", 1000)
        deltas = {f"{number} {'x' * number}": number for number in range(100)}
        statements: list[str] = []
        sa.event.listen(
            rig.database.sessions.engine,
            "before_cursor_execute",
            lambda conn, cursor, statement, *_: statements.append(statement),
        )
        rig.commit(1, deltas)
        rig.commit(2, deltas)
        assert rig.values() == {key: 2 * number for key, number in deltas.items()}
        assert sum("unnest" in statement for statement in statements) >= 2 * 6


class TestEncodings:
    @pytest.mark.parametrize(("encoding", "refused"), [("LATIN1", "\U0001f600"), ("SQL_ASCII", None)])
    def test_text_is_kept_or_refused(
        self, postgres: PostgresServer, unique: str, encoding: str, refused: str | None
    ) -> None:
        name = f"encoded_{unique}"
        with administrator(postgres) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING {encoding} LOCALE 'C' TEMPLATE template0")
        database = open_sql_database(postgres.url(name))
        rig = Rig(database, postgres.url(name)).join()
        rig.commit(1, {"café": 1})
        if refused is None:
            rig.commit(2, {"\U0001f600": 1})
        else:
            with pytest.raises(StateValueError, match="has no equivalent in encoding"):
                rig.commit(2, {refused: 1})
        keys = rig.table_of({"café": 0, "\U0001f600": 0}).select(["word"])
        if refused is not None:
            keys = keys.slice(0, 1)
        found = database.read(rig.spec, keys, before=rig.next(3).txid).column("word").to_pylist()
        assert sorted(found) == keys.column("word").to_pylist()
        database.close()
