"""A real PostgreSQL under several URLs, and two of its databases and schemas under URLs that look alike."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from postgres import PostgresServer
from support.one_database import check_one, check_read_once, check_refused, check_two
from support.server_databases import new_database

from txstream.state import open_database


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = PostgresServer(tmp_path_factory.mktemp("postgres"), port)
    yield server
    server.close()


@pytest.fixture
def url(server: PostgresServer) -> str:
    """A database through the server's socket."""
    return new_database(server)


@pytest.fixture
def spelled(
    server: PostgresServer, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The same database by other ways, and others by nearly the same URL."""
    name, port = sa.make_url(url).database, server.port
    other = sa.make_url(new_database(server)).database
    link = tmp_path / "link"
    link.symlink_to(server.data)
    for file in ("passfile", "other-passfile"):
        (tmp_path / file).write_text("*:*:*:*:unused\n")
        (tmp_path / file).chmod(0o600)
    services = tmp_path / "pg_service.conf"
    services.write_text(f"[mine]\ndbname={name}\n[other]\ndbname={other}\n")
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    with psycopg.connect(host=str(server.data), port=port, user="postgres", dbname=name) as connection:
        connection.execute("CREATE SCHEMA other")
    tcp = f"postgresql://postgres@127.0.0.1:{port}"
    return {
        "socket": url,
        "127.0.0.1": f"{tcp}/{name}",
        "localhost": f"postgresql://postgres@localhost:{port}/{name}",
        "link": f"postgresql://postgres@:{port}/{name}?host={link}",
        "hostaddr": f"postgresql://postgres@nowhere.invalid:{port}/{name}?hostaddr=127.0.0.1",
        "service": f"{tcp}?service=mine",
        "other service": f"{tcp}?service=other",
        "schema": f"{tcp}/{name}?options=-csearch_path%3Dother",
        "passfile": f"{tcp}/{name}?passfile={tmp_path}/passfile",
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("127.0.0.1", "localhost"),
        ("socket", "127.0.0.1"),
        ("socket", "link"),
        ("localhost", "hostaddr"),
        ("socket", "service"),
        ("127.0.0.1", "passfile"),
    ],
)
def test_one_database_under_two_urls_is_refused(spelled: dict[str, str], one: str, other: str) -> None:
    check_refused(spelled[one], spelled[other])
    check_one(spelled[one], spelled[other])


@pytest.mark.parametrize(
    ("one", "other"), [("service", "other service"), ("127.0.0.1", "schema"), ("service", "schema")]
)
def test_two_databases_with_urls_that_look_alike_are_two(
    spelled: dict[str, str], one: str, other: str
) -> None:
    check_two(spelled[one], spelled[other])


def test_whoever_looks_by_another_url_finds_it_once(spelled: dict[str, str]) -> None:
    check_read_once(spelled["socket"], spelled["localhost"])


def test_an_account_that_may_not_ask_the_server_is_found_out_by_the_fence(
    server: PostgresServer, url: str, spelled: dict[str, str]
) -> None:
    name = sa.make_url(url).database
    where: dict[str, Any] = {"host": str(server.data), "port": server.port, "dbname": name}
    with psycopg.connect(user="postgres", autocommit=True, **where) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
        connection.execute(f"ALTER DATABASE {name} OWNER TO guest")
        connection.execute("REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC")
    guest = [spelled[way].replace("postgres@", "guest@") for way in ("127.0.0.1", "localhost")]
    with closing(open_database(guest[0])) as database:
        assert database.place() is None
    check_refused(guest[0], guest[1])
