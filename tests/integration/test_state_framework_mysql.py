"""The framework's own tables on a MariaDB and a MySQL.

These servers commit each table when it is created, so the next start must go on from wherever a crash came.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable

import pytest
from mysql_servers import MySQLFamilyServer
from support.old_revisions import differences, old_database
from support.server_databases import new_database
from support.states import Rig, word_table
from support.stepwise import crash_before
from support.tables import execute, table_exists
from unit.test_state_framework import TestFramework as TestFramework

from txstream.core.errors import TxstreamError
from txstream.state import StateDatabase, open_sql_database


@pytest.fixture
def url(contract_server: MySQLFamilyServer) -> str:
    return new_database(contract_server)


@pytest.fixture
def fresh(contract_server: MySQLFamilyServer) -> Callable[[], str]:
    """Return a function that makes another empty database."""
    return lambda: new_database(contract_server)


def test_creation_that_was_broken_off_anywhere(fresh: Callable[[], str]) -> None:
    for step in itertools.count():
        url = fresh()
        crashed = crash_before(url, step, joined)
        goes_on(url, first_run=True)
        if not crashed:
            assert step > 12  # tables, revisions, rows
            return


def test_an_upgrade_that_was_broken_off_anywhere(fresh: Callable[[], str]) -> None:
    for step in itertools.count():
        url = fresh()
        with contextlib.closing(open_sql_database(url)) as database:
            old_database(database, url, "0002")
        crashed = crash_before(url, step, lambda database: database.upgrade())
        goes_on(url, first_run=False)
        if not crashed:
            assert step > 4
            return


def test_a_strangers_table_is_not_taken_for_a_step_that_was_done(database: StateDatabase, url: str) -> None:
    assert crash_before(url, 5, lambda database: database.ensure_framework_tables())
    assert not table_exists(url, "txstream_table")
    execute(url, "CREATE TABLE txstream_table (mine BIGINT PRIMARY KEY)")
    with pytest.raises(TxstreamError, match=r"txstream_table.*already exists"):
        database.ensure_framework_tables()
    execute(url, "DROP TABLE txstream_table")
    goes_on(url, first_run=True)


def joined(database: StateDatabase) -> Rig:
    url = database.sessions.dialect.url.render_as_string(hide_password=False)
    return Rig(database, url, word_table(index_txid=True)).join()


def goes_on(url: str, *, first_run: bool) -> None:
    """Start the next driver, or give an operator's command again, and assert that all is as it should be."""
    with contextlib.closing(open_sql_database(url)) as database:
        if not first_run:
            database.upgrade()
        rig = Rig(database, url, word_table(index_txid=first_run), epoch=2).join(first_run=first_run)
        rig.join(first_run=False)
        rig.commit(1 if first_run else 2, {"a": 1})
        assert rig.values()["a"] == (1 if first_run else 2)
        assert [row.topology for row in database.topologies()] == ["words"]
    assert differences(url) == []
