"""PostgreSQL behind a pooler in transaction mode, where a session's state is another client's in the next
transaction."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support import pgbouncer
from support.server_databases import new_database
from support.states import Rig, word_table
from support.tables import execute
from support.transaction_pooler import TransactionPooler

from txstream.core.semantics import Semantics
from txstream.state import open_sql_database

BATCHES = 25
STRANGERS = {
    "statement_timeout": "'77s'",
    "lock_timeout": "'77s'",
    "idle_in_transaction_session_timeout": "'77s'",
    "timezone": "'Asia/Tokyo'",
}


def open_rig(url: str, direct: str, table: str, semantics: Semantics) -> Rig:
    database = open_sql_database(url)
    return Rig(database, direct, word_table(table, semantics), topology=table, uuid=table).join()


def pooled_run(url: str, direct: str, number: int) -> None:
    """Two topologies beside each other, each with sessions of its own: both paths of a commit, and replays.
    Every batch adds one to each of two keys."""

    def run(name: str, semantics: Semantics) -> None:
        table = f"{name}_{number}"
        rig = open_rig(url, direct, table, semantics)
        with contextlib.closing(rig.database):
            for txid in range(1, BATCHES + 1):
                if txid % 2:
                    rig.commit(txid, {"a": 1, "b": 1})
                    rig.commit(txid, {"a": 1, "b": 1})
                else:
                    under = rig.begin(txid)
                    rig.write(under, {"a": 1})
                    rig.write(under, {"b": 1})
                    rig.end(under, keys=2)
            assert rig.values() == {"a": BATCHES, "b": BATCHES}, table

    with ThreadPoolExecutor(2) as pool:
        for one in [
            pool.submit(run, "first", Semantics.OPAQUE),
            pool.submit(run, "second", Semantics.TRANSACTIONAL),
        ]:
            one.result()


@pytest.fixture
def direct(postgres: PostgresServer) -> str:
    """The database without the pooler."""
    return new_database(postgres)


@pytest.fixture
def pooled(postgres: PostgresServer, direct: str) -> Iterator[Callable[..., TransactionPooler]]:
    """Starts a pooler in front of the server."""
    with contextlib.ExitStack() as stack:

        def start(*, size: int) -> TransactionPooler:
            pooler = TransactionPooler(str(postgres.data / ".s.PGSQL.5432"), size)
            stack.callback(pooler.close)
            return pooler

        yield start


def through(pooler: TransactionPooler, direct: str) -> str:
    return f"postgresql://postgres@127.0.0.1:{pooler.port}/{sa.make_url(direct).database}"


class TestPooled:
    @pytest.mark.parametrize("size", [1, 3])
    def test_two_topologies_beside_each_other(
        self, pooled: Callable[..., TransactionPooler], direct: str, size: int
    ) -> None:
        pooler = pooled(size=size)
        for number in range(3):
            pooled_run(through(pooler, direct), direct, number)
        assert set(pooler.given) == set(range(size))

    def test_a_statement_never_means_another_topologys(
        self, pooled: Callable[..., TransactionPooler], direct: str
    ) -> None:
        """A driver that prepares statements under names of its own prepares them here in two sessions, the
        same names for other tables; then one driver gets the other's session."""
        pooler = pooled(size=2)
        first, second = (
            open_rig(through(pooler, direct), direct, name, Semantics.TRANSACTIONAL)
            for name in ("one", "two")
        )
        with contextlib.closing(first.database), contextlib.closing(second.database):
            for pooler.only, rig in ((0, first), (1, second)):
                for txid in range(1, BATCHES):
                    rig.commit(txid, {"a": 1})
            pooler.only = 0
            second.commit(BATCHES, {"a": 1})
            assert (first.values(), second.values()) == ({"a": BATCHES - 1}, {"a": BATCHES})
        # One name that means the same in both sessions would do no harm here, and to others all the same.
        for pooler.only in (0, 1):
            with psycopg.connect(through(pooler, direct), autocommit=True) as stranger:
                assert stranger.execute("SELECT name FROM pg_prepared_statements").fetchall() == []

    def test_strangers_find_their_sessions_as_they_were(
        self, pooled: Callable[..., TransactionPooler], direct: str
    ) -> None:
        name = sa.make_url(direct).database
        execute(direct, *(f"ALTER DATABASE {name} SET {one} = {value}" for one, value in STRANGERS.items()))
        pooler = pooled(size=1)
        url = through(pooler, direct)
        with psycopg.connect(url, autocommit=True) as stranger:

            def settings() -> list[str]:
                return [str(stranger.execute(f"SHOW {name}").fetchone()) for name in STRANGERS]

            before = settings()
            pooled_run(url, direct, 0)
            assert settings() == before
            assert stranger.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)


@pytest.mark.soak
def test_pgbouncer(postgres: PostgresServer, direct: str) -> None:
    """The real one, whether or not it knows the statements that clients prepare."""
    if pgbouncer.PROGRAM is None:
        pytest.skip(pgbouncer.MISSING)
    numbers = itertools.count()
    for prepared in pgbouncer.prepared_statements():
        with pgbouncer.PgBouncer(postgres, size=3, prepared=prepared) as pooler:
            for _ in range(100):
                pooled_run(pooler.url(direct), direct, next(numbers))
