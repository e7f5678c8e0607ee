"""Passwords and TLS, as a real MariaDB and a real MySQL demand them."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pymysql
import pytest
import sqlalchemy as sa
from mysql_servers import MySQLFamilyServer, MySQLServer
from support.states import Rig

from txstream.core.errors import ServiceUnavailableError
from txstream.state import AnswerLostError, open_sql_database

PASSWORD = "pä:ss w@rd/日本 'x'"


@pytest.fixture
def account(mysql_server: MySQLFamilyServer, unique: str) -> sa.URL:
    """The URL of an account with a password, in an empty database. The server has never seen this account."""
    url = mysql_server.create_database(unique)
    mysql_server.create_account(unique, f"ALL ON `{unique}`.*", PASSWORD.replace("'", "''"))
    return sa.make_url(url).set(username=unique, password=PASSWORD)


@pytest.fixture
def encrypted(mysql: MySQLServer, unique: str) -> sa.URL:
    """The URL of a MySQL account that must use TLS, which MySQL offers without being configured."""
    url = mysql.create_database(unique)
    mysql.create_account(unique, f"ALL ON `{unique}`.*", "secret")
    mysql.execute(f"ALTER USER `{unique}`@`127.0.0.1` REQUIRE SSL")
    return sa.make_url(url).set(username=unique, password="secret", query={})


def text(url: sa.URL) -> str:
    return url.render_as_string(hide_password=False)


def cipher(url: str) -> str:
    """Commit a batch over a connection; return its cipher, which is empty without encryption."""
    with contextlib.closing(open_sql_database(url)) as database:
        rig = Rig(database, url).join()
        rig.commit(1, {"a": 1})
        with database.sessions.reading("a test") as connection:
            assert connection.exec_driver_sql("SELECT n FROM word_count").scalar_one() == 1
            found: str = connection.exec_driver_sql("SHOW STATUS LIKE 'Ssl_cipher'").one()[1]
    return found


def test_a_password_of_any_characters_over_a_plain_connection(account: sa.URL) -> None:
    assert cipher(text(account)) == ""


def test_a_password_needs_a_package_where_nothing_is_encrypted(
    account: sa.URL, mysql_server: MySQLFamilyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    if mysql_server.is_mariadb:
        assert cipher(text(account)) == ""
        return
    with pytest.raises(
        ServiceUnavailableError, match=r"needs the package cryptography.*txstream\[mysql\]"
    ) as told:
        open_sql_database(text(account)).check()
    assert "@rd" not in str(told.value)
    assert cipher(text(account.set(query={}))) != ""


def test_the_password_is_the_one_that_the_servers_own_clients_send(
    account: sa.URL, mysql_server: MySQLFamilyServer
) -> None:
    pymysql.connect(
        host="127.0.0.1",
        port=mysql_server.port,
        user=account.username,
        password=PASSWORD.encode(),
        ssl_disabled=True,
    ).close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ssl_disabled": "false"},
        {"ssl_ca": "ca.pem", "ssl_check_hostname": "false"},
        {"ssl_ca": "ca.pem", "ssl_verify_cert": "true"},
        {
            "ssl_ca": "ca.pem",
            "ssl_check_hostname": "no",
            "ssl_cert": "client-cert.pem",
            "ssl_key": "client-key.pem",
        },
    ],
    ids=str,
)
def test_options_that_encrypt(encrypted: sa.URL, mysql: MySQLServer, options: dict[str, str]) -> None:
    query = {
        name: str(mysql.data / value) if value.endswith(".pem") else value for name, value in options.items()
    }
    assert cipher(text(encrypted.set(query=query))) != ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"ssl_disabled": "true"}, "Access denied"),
        ({"ssl_ca": "ca.pem"}, "certificate is not valid for '127.0.0.1'"),
        ({"ssl_ca": "ca.pem", "ssl_verify_identity": "true"}, "certificate is not valid for '127.0.0.1'"),
        ({"ssl_verify_cert": "true"}, "certificate verify failed"),
        ({"ssl_ca": "server-cert.pem", "ssl_check_hostname": "false"}, "certificate verify failed"),
    ],
    ids=str,
)
def test_who_is_not_trusted_is_told(
    encrypted: sa.URL, mysql: MySQLServer, options: dict[str, str], expected: str
) -> None:
    query = {
        name: str(mysql.data / value) if value.endswith(".pem") else value for name, value in options.items()
    }
    with pytest.raises(ServiceUnavailableError, match=expected) as told:
        open_sql_database(text(encrypted.set(query=query))).check()
    assert "secret" not in str(told.value)


def test_a_server_that_freezes_is_given_up_over_tls_too(own_mysql: MySQLServer, unique: str) -> None:
    own_mysql.create_database(unique)
    url = text(sa.make_url(own_mysql.url(unique)).set(query={}))
    with contextlib.closing(open_sql_database(url, message_timeout_seconds=1.0)) as database:
        rig = Rig(database, url).join()
        database.sessions.dialect.silence_seconds = 1.0  # type: ignore[attr-defined]  # its usual is 10 s more
        with contextlib.ExitStack() as frozen:

            def freeze(_point: str) -> None:
                frozen.enter_context(own_mysql.frozen())

            with pytest.raises(AnswerLostError, match="the server did not answer for 1 s"):
                rig.commit(1, {"a": 1}, reached=freeze)


def test_a_password_in_the_clients_own_file(mysql: MySQLServer, unique: str, tmp_path: Path) -> None:
    url = sa.make_url(mysql.create_database(unique))
    mysql.create_account(unique, f"ALL ON `{unique}`.*", "correct-horse")
    (tmp_path / "my.cnf").write_text("[client]\npassword = correct-horse\n")
    named = url.set(username=unique).update_query_dict({"read_default_file": str(tmp_path / "my.cnf")})
    assert cipher(text(named)) == ""
    (tmp_path / "my.cnf").write_text("[client]\npassword = battery-staple\n")
    with pytest.raises(ServiceUnavailableError, match="Access denied"):
        open_sql_database(text(named)).check()
