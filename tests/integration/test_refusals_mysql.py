"""What a MariaDB and a MySQL refuse: keys that are too long, altered tables, accounts without rights."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from mysql_servers import MySQLFamilyServer
from support.kinds import KINDS
from support.server_databases import new_database
from support.states import Rig, word_table
from support.tables import execute

from txstream.api.reducers import Put
from txstream.core.errors import ServiceUnavailableError, StateTableError, StateValueError
from txstream.core.semantics import Semantics
from txstream.plugins.mysql.column_types import collation
from txstream.state import (
    AnswerLostError,
    StateDatabase,
    open_database,
    open_sql_database,
    place_of,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def server(mysql_server: MySQLFamilyServer) -> MySQLFamilyServer:
    return mysql_server


@pytest.fixture
def url(server: MySQLFamilyServer) -> str:
    return new_database(server)


class TestKeys:
    """Columns of text and bytes share the 3072 bytes of a primary key."""

    @pytest.mark.parametrize(
        ("key", "fits", "too_long", "expected"),
        [
            ("k string", "🦀" * 768, "a" * 769, "'k' of table 'word_count': 'a.*769 characters, and 768"),
            ("k binary", b"\xff" * 3072, b"\xff" * 3073, "3073 bytes, and 3072 is what it can have"),
            (
                "k string, l string",
                ("🦀" * 384, "b" * 384),
                ("a", "b" * 385),
                "'l' .*385 characters, and 384",
            ),
            ("i bigint, k binary", (1, b"a" * 3064), (1, b"a" * 3065), "3065 bytes, and 3064"),
            (
                "a decimal(38,10), b timestamp, c date, d boolean, k binary",
                (Decimal(1), NOON, NOON.date(), True, b"a" * 3036),
                (Decimal(1), NOON, NOON.date(), True, b"a" * 3037),
                "3037 bytes, and 3036",
            ),
        ],
    )
    def test_longest(
        self, database: StateDatabase, url: str, key: str, fits: Any, too_long: Any, expected: str
    ) -> None:
        rig = Rig(database, url, word_table(key=key, index_txid=True)).join()
        rig.commit(1, {fits: 1})
        rig.commit(2, {fits: 1})
        assert list(rig.values().values()) == [2]
        with pytest.raises(StateValueError, match=expected):
            rig.commit(3, {too_long: 1})
        assert rig.join(first_run=False)

    def test_too_many_key_columns(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match="800 key columns do not fit into a primary key of 3072"):
            Rig(database, url, word_table(key=", ".join(f"k{n} string" for n in range(800)))).join()

    def test_a_name_too_long(self, database: StateDatabase, url: str) -> None:
        with pytest.raises(StateTableError, match=r"64 characters at most; choose a shorter one"):
            Rig(database, url, word_table("t" * 65)).join()

    @pytest.mark.parametrize("semantics", list(Semantics), ids=str)
    def test_no_type_is_found_to_differ_from_itself(
        self, database: StateDatabase, url: str, server: MySQLFamilyServer, semantics: Semantics
    ) -> None:
        kinds = [kind.ddl for kind in KINDS if server.is_mariadb or kind.ddl != "decimal(38,38)"]
        value = ", ".join(f"v{number} {ddl}" for number, ddl in enumerate(kinds))
        keys = ", ".join(f"k{number} {ddl}" for number, ddl in enumerate(kinds))
        reducers = {f"v{number}": Put() for number in range(len(kinds))}
        spec = word_table(semantics=semantics, key=keys, value=value, reducers=reducers)
        rig = Rig(database, url, spec).join()
        assert rig.join(first_run=False)

    @pytest.mark.parametrize(
        "change",
        [
            "MODIFY word VARCHAR(768) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL",
            "MODIFY word VARCHAR(700) CHARACTER SET utf8mb4 COLLATE {collation} NOT NULL",
            "MODIFY n INT NOT NULL",
            "MODIFY n BIGINT UNSIGNED NOT NULL",
            "MODIFY n BIGINT NULL",
        ],
    )
    def test_a_column_that_was_altered_is_told(
        self, rig: Rig, server: MySQLFamilyServer, change: str
    ) -> None:
        ours = collation(mariadb=server.is_mariadb)
        execute(rig.url, f"ALTER TABLE word_count {change.format(collation=ours)}")
        with pytest.raises(StateTableError, match=r"column '(word|n)' is .*, expected"):
            rig.join(first_run=False)


class TestRefusals:
    def test_a_read_only_server(self, url: str, server: MySQLFamilyServer) -> None:
        """A commit in progress fails, and goes on once the server can be written again."""
        server.create_account("writer", "ALL ON `db%`.*")
        with contextlib.closing(open_sql_database(url.replace("root@", "writer@"))) as database:
            rig = Rig(database, url).join()
            rig.commit(1, {"a": 1})
            server.execute("SET GLOBAL read_only = ON")
            try:
                with pytest.raises(ServiceUnavailableError, match="read-only") as told:
                    rig.commit(2, {"a": 1})
                assert not isinstance(told.value, AnswerLostError)
            finally:
                server.execute("SET GLOBAL read_only = OFF")
            rig.commit(2, {"a": 1})
            assert rig.values() == {"a": 2}

    def test_an_account_without_rights(self, url: str, server: MySQLFamilyServer) -> None:
        name = sa.make_url(url).database
        server.create_account("guest", f"SELECT ON `{name}`.*")
        guest = open_database(url.replace("root@", "guest@"))
        guest.check()
        with pytest.raises(StateTableError, match=r"does not allow creating txstream's.*command denied"):
            guest.ensure_framework_tables()
        guest.close()

    def test_a_database_that_does_not_exist(self, server: MySQLFamilyServer) -> None:
        with pytest.raises(ServiceUnavailableError, match="Unknown database 'nowhere'"):
            open_database(server.url("nowhere")).check()

    def test_a_wrong_password(self, server: MySQLFamilyServer) -> None:
        wrong = server.url().replace("root@", "root:hidden@")
        with pytest.raises(ServiceUnavailableError, match="Access denied for user 'root'") as told:
            open_database(wrong).check()
        assert "hidden" not in str(told.value)

    @pytest.mark.parametrize("driver", ["mysql", "mariadb", "mariadb+pymysql"])
    def test_every_spelling_of_its_url(self, url: str, driver: str) -> None:
        spelled = url.replace("mysql+pymysql:", f"{driver}:").partition("?")[0]
        assert place_of(spelled) == place_of(url)
        with contextlib.closing(open_sql_database(spelled)) as database:
            assert Rig(database, url).join().commit(1, {"a": 1})

    @pytest.mark.parametrize("query", ["", "?connect_timeout=3", "?unix_socket=/nowhere"])
    def test_unreachable(self, query: str) -> None:
        unreachable = open_database(f"mysql://me:hidden@127.0.0.1:1/db{query}", connect_timeout_seconds=3.0)
        expected = "No such file" if "socket" in query else "refused"
        with pytest.raises(ServiceUnavailableError, match=f"{expected}.*start or repair it, or set") as told:
            unreachable.check()
        assert "hidden" not in str(told.value)
