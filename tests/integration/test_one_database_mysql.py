"""A real MariaDB and a real MySQL under several URLs."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from mysql_servers import MySQLFamilyServer
from support.one_database import check_one, check_read_once, check_refused, check_two
from support.server_databases import new_database


@pytest.fixture
def spelled(mysql_server: MySQLFamilyServer) -> dict[str, str]:
    url = sa.make_url(new_database(mysql_server))
    ((path,),) = mysql_server.execute("SELECT @@socket")
    return {
        "127.0.0.1": url.render_as_string(hide_password=False),
        "localhost": url.set(host="localhost").render_as_string(hide_password=False),
        "socket": url.update_query_dict({"unix_socket": path}).render_as_string(hide_password=False),
        "other": new_database(mysql_server),
    }


@pytest.mark.parametrize(("one", "other"), [("127.0.0.1", "localhost"), ("localhost", "socket")])
def test_one_database_under_two_urls_is_refused(spelled: dict[str, str], one: str, other: str) -> None:
    check_refused(spelled[one], spelled[other])
    check_one(spelled[one], spelled[other])


def test_two_databases_of_a_server_are_two(spelled: dict[str, str]) -> None:
    check_two(spelled["socket"], spelled["other"])


def test_whoever_looks_by_another_url_finds_it_once(spelled: dict[str, str]) -> None:
    check_read_once(spelled["127.0.0.1"], spelled["localhost"])
