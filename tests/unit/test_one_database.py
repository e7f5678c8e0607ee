"""One database under two URLs is never taken for two, and two databases never for one."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from support.committing import WORDS, word_source
from support.lists import each
from support.one_database import two_tables
from support.recovering import Site

import txstream
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import ServiceUnavailableError, StaleAttemptError, TopologyError
from txstream.core.transaction import AttemptId, Epoch, attempt_id
from txstream.engine.commit.state_targets import state_targets
from txstream.engine.start.recovery import prove_distinct
from txstream.engine.start.takeover import take_up
from txstream.inspect.databases import open_databases, without_password
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.proof.stores.memory import MemoryBackend, forget
from txstream.plugins.proof.zookeeper_tree import MemoryProgress, MemoryTree
from txstream.settings import Settings
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.state import FenceRow, StateBackend, StateDatabase, open_database, place_of, registry
from txstream.state.sql import urls
from txstream.testing import TopologyTest


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with word_source() as spout:
        yield spout


def stored(path: Path, table: str) -> dict[str, int]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute(f"SELECT word, n FROM {table}"))


# --- a store that cannot tell which place it is ------------------------------------------------------------


class Alias(MemoryBackend):
    """`alias://HOST/NAME`: one store in memory under any host, and it does not know."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(f"memory://{url.rpartition('/')[2]}", **options)
        self.display_url = url

    @staticmethod
    def place_of(url: str) -> str:
        return url


@pytest.fixture
def alias(unique: str) -> Iterator[str]:
    take_back = txstream.register_backend("alias", Alias)
    yield f"alias://%s/{unique}"
    take_back()
    forget(unique)
    forget(f"{unique}-other")


def test_a_store_under_two_urls_is_found_out_by_its_fence(source: MemorySpout, alias: str) -> None:
    test = TopologyTest(two_tables(source, alias % "localhost", alias % "127.0.0.1"))
    with pytest.raises(TopologyError, match="one database under two URLs") as told, test:
        pass
    assert alias % "localhost" in str(told.value)
    assert alias % "127.0.0.1" in str(told.value)
    assert open_database(alias % "x").batches("two") == []


def test_the_corrected_run_takes_up_what_the_refused_one_made(source: MemorySpout, alias: str) -> None:
    tree, codec = MemoryTree(), MetaCodec(MemoryRange)

    def give_up(error: Exception) -> None:
        raise error

    def start(first: str, second: str) -> None:
        topology = two_tables(source, alias % first, alias % second)
        targets = state_targets(topology, "", open_database, in_this_process=True)
        take_up(topology, MemoryProgress(tree, "two", codec), targets, codec, locked=give_up)

    with pytest.raises(TopologyError, match="one database under two URLs"):
        start("localhost", "127.0.0.1")
    start("localhost", "localhost")
    fence = open_database(alias % "x").read_fence("two")
    assert fence is not None
    assert fence.identity is not None
    assert fence.identity["databases"] == [alias % "localhost"]


def test_two_stores_of_a_kind_that_cannot_tell_are_two(source: MemorySpout, alias: str) -> None:
    first, second = alias % "localhost", f"{alias % 'localhost'}-other"
    with TopologyTest(two_tables(source, first, second)) as test:
        test.run()
        for url, table in ((first, "one"), (second, "two")):
            rows = {row["word"]: row["n"] for row in open_database(url).top(table, topology="two", n=99)}
            assert rows == Counter(WORDS)
        fences = [open_database(url).read_fence("two") for url in (first, second)]
        assert len({fence and fence.attempt for fence in fences}) == 1, "the last commit raised both alike"


class Fenced:
    """A fence that may be shared, and what is done to it."""

    def __init__(self, display_url: str, row: list[int]) -> None:
        self.display_url = display_url
        self.row = row

    def read_fence(self) -> FenceRow | None:
        return FenceRow("t", "u", AttemptId(self.row[0]))

    def raise_fence(self, attempt: AttemptId) -> None:
        if attempt < self.row[0]:
            raise StaleAttemptError("another driver has taken over")
        self.row[0] = attempt

    def last_batch(self) -> None:
        return None


@pytest.mark.parametrize(
    ("rows", "names"),
    [((0, 0), "db0 and db1"), ((0, 1, 0), "db0 and db2"), ((0, 1, 1), "db1 and db2")],
    ids=["both", "first-and-last", "last-two"],
)
def test_no_row_is_taken_for_two(rows: Sequence[int], names: str) -> None:
    shared = [[0] for _ in rows]
    databases = [Fenced(f"db{number}", shared[row]) for number, row in enumerate(rows)]
    with pytest.raises(TopologyError, match=f"{names} are one database"):
        prove_distinct("t", databases, Epoch(3))


@each("count", [1, 2, 5])
def test_fences_that_are_apart_end_at_one_attempt(count: int) -> None:
    databases = [Fenced(f"db{number}", [attempt_id(3, 0)]) for number in range(count)]
    at = prove_distinct("t", databases, Epoch(3))
    assert {one.row[0] for one in databases} == {at} == {attempt_id(3, count - 1)}


def test_a_newer_leader_is_not_taken_for_a_second_url() -> None:
    databases = [Fenced(f"db{number}", [0]) for number in range(2)]

    def read_fence() -> FenceRow | None:
        for one in databases:
            one.row[0] = attempt_id(4, 0)
        return Fenced.read_fence(databases[0])

    databases[0].read_fence = read_fence  # type: ignore[method-assign]
    with pytest.raises(StaleAttemptError):
        prove_distinct("t", databases, Epoch(3))


# --- files --------------------------------------------------------------------------------------------------


def test_a_hard_link_to_a_file_is_refused_before_anything_is_made(
    source: MemorySpout, tmp_path: Path
) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    with closing(sqlite3.connect(one)) as connection:
        connection.execute("CREATE TABLE mine (n)")
    os.link(one, other)
    test = TopologyTest(two_tables(source, f"sqlite:///{one}", f"sqlite:///{other}"))
    with pytest.raises(TopologyError, match="one database under two URLs") as told, test:
        pass
    assert f"sqlite:///{one} and sqlite:///{other}" in str(told.value)
    with closing(sqlite3.connect(other)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert not {"one", "two"} & tables


@pytest.mark.parametrize("is_there", [True, False])
def test_a_symbolic_link_is_a_spelling_of_its_file(
    source: MemorySpout, tmp_path: Path, is_there: bool
) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    other.symlink_to(one)
    if is_there:
        one.touch()
    with TopologyTest(two_tables(source, f"sqlite:///{one}", f"sqlite:///{other}")) as test:
        test.run()
    assert stored(one, "one") == stored(one, "two") == Counter(WORDS)


# --- which URLs are one -------------------------------------------------------------------------------------


def opened_for(topology: Topology) -> list[str]:
    """Return the URLs that a run would open, one for each target."""
    asked: list[str] = []

    def opening(url: str) -> StateBackend:
        asked.append(url)
        return open_database(url)

    state_targets(topology, "sqlite:///default.db", opening)
    return asked


@pytest.mark.parametrize(
    "other",
    [
        "postgresql://bob@host/x",
        "postgresql://alice@host/x?options=-csearch_path%3Dtwo",
        "postgresql://alice@host/x?service=two",
        "postgresql://alice@host/x?hostaddr=10.0.0.2",
        "postgresql://alice@host/x?passfile=/two",
        "postgresql://alice@host/x?host=/run/two",
        "postgresql://alice@host/x?sslmode=require",
        "postgresql://alice@127.0.0.1/x",
    ],
)
def test_no_url_stands_in_for_another(source: MemorySpout, other: str) -> None:
    first = "postgresql://alice@host/x"
    assert opened_for(two_tables(source, first, other)) == [first, other]


@pytest.mark.parametrize(
    "other", ["postgresql+psycopg://alice@HOST:5432/x?connect_timeout=3&sslmode=require"]
)
def test_a_url_that_is_spelled_in_another_way_is_the_same(source: MemorySpout, other: str) -> None:
    first = "postgresql://alice@host/x?sslmode=require&connect_timeout=3"
    assert opened_for(two_tables(source, first, other)) == [first]


def test_urls_that_look_alike_without_their_passwords_are_refused(source: MemorySpout) -> None:
    urls = "postgresql://me:one@host/x", "postgresql://me:two@host/x"
    with pytest.raises(TopologyError, match=r"differ only in what is hidden of postgresql://me:\*\*\*@host"):
        state_targets(two_tables(source, *urls), "sqlite:///default.db", open_database)


@each(
    "query",
    [
        "service=two",
        "hostaddr=10.0.0.2",
        "options=-csearch_path%3Dtwo",
        "passfile=/two",
        "host=/run/two",
        "host=two",
        "port=5433",
        "dbname=two",
    ],
)
def test_what_names_a_place_is_part_of_it(query: str) -> None:
    assert place_of(f"postgresql://host/x?{query}") != place_of("postgresql://host/x")


def test_mysqls_options_that_name_a_place_are_part_of_it() -> None:
    for query in ("database=two", "db=two", "unix_socket=/two", "read_default_file=/two"):
        assert place_of(f"mysql://host/x?{query}") != place_of("mysql://host/x")


# --- looking ------------------------------------------------------------------------------------------------


def test_a_file_with_two_names_is_read_once(tmp_path: Path) -> None:
    site = Site(tmp_path, OpaqueSpout, 2)
    try:
        site.test.commit(3)
        site.test.crash()
        link = tmp_path / "link.db"
        os.link(site.urls[0].removeprefix("sqlite:///"), link)
        settings = Settings(database=f"sqlite:///{link}", state_databases=(site.urls[1],))
        with open_databases(settings, "words") as databases:
            assert [one.display_url for one in databases.opened] == [f"sqlite:///{link}", site.urls[1]]
            assert databases.at(site.urls[0]) is databases.opened[0]
            assert databases.listed_twice() == []
    finally:
        site.close()


def test_a_url_of_the_code_without_its_password_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opening(url: str, **_: Any) -> StateBackend:
        if "secret" not in url:
            raise ServiceUnavailableError("no password supplied")
        return open_database(f"sqlite:///{tmp_path}/a.db")

    monkeypatch.setattr("txstream.state.open_database", opening)
    settings = Settings(database="postgresql://me:secret@db/x", state_databases=("postgresql://app@db/x",))
    with open_databases(settings, all_given=True) as databases:
        assert len(databases.opened) == 1
        assert databases.missing == []
    settings = Settings(database="postgresql://me:secret@db/x", state_databases=("postgresql://app@db/y",))
    with pytest.raises(ServiceUnavailableError, match="no password"), open_databases(settings):
        pass


def test_fsck_tells_that_a_run_took_one_database_for_two(tmp_path: Path) -> None:
    site = Site(tmp_path, OpaqueSpout, 1)
    try:
        site.test.commit(3)
        site.test.crash()
        link = tmp_path / "link.db"
        os.link(site.urls[0].removeprefix("sqlite:///"), link)
        site.execute(
            0,
            "UPDATE txstream_fence SET identity = json_set(identity, '$.databases', "
            f"json_array('{site.urls[0]}', 'sqlite:///{link}'))",
        )
        settings = Settings(database=site.urls[0])
        with open_databases(settings, "words") as databases:
            report = fsck_in(
                "words", site.store, databases.opened, settings,
                topology=site.topology, listed_twice=databases.listed_twice(),
            )  # fmt: skip
        (finding,) = report.findings
        assert (finding.code, finding.where) == ("database-twice", f"sqlite:///{link}")
        assert site.urls[0] in finding.what
    finally:
        site.close()


# --- secrets and names --------------------------------------------------------------------------------------


@each("name", ["passwd", "password", "PWD", "sslpassword", "client_secret", "authToken", "sslkey", "api_key"])
def test_a_secret_in_an_option_is_hidden_wherever_the_url_is_shown(name: str) -> None:
    url = f"mysql://me@host/x?{name}=geheim&charset=utf8mb4"
    for shown in (StateDatabase(url).display_url, urls.shown(url), without_password(url)):
        where, _, options = unquote(shown).partition("?")
        assert (where, {*options.split("&")}) == ("mysql://me@host/x", {f"{name}=***", "charset=utf8mb4"})
    assert without_password(without_password(url)) == without_password(url)
    for unusable in (url.replace("mysql:", "nothing:"), url.replace("mysql:", "oracle+x:"), f"{url}&a=%zz"):
        with pytest.raises((txstream.UsageError, ServiceUnavailableError)) as told:
            open_database(unusable).check()
        assert "geheim" not in str(told.value)


def test_where_the_password_is_kept_is_shown() -> None:
    url = "postgresql://me@host/x?passfile=%2Fetc%2Fpgpass&sslpassword=geheim"
    found = urls.shown(url)
    assert "passfile=%2Fetc%2Fpgpass" in found
    assert urls.place_of(found) == urls.place_of(url)
    assert "geheim" not in found


def test_a_url_without_its_secret_is_not_tried(tmp_path: Path) -> None:
    settings = Settings(
        database=f"sqlite:///{tmp_path}/none.db",
        state_databases=(without_password("mysql://me@host/x?passwd=geheim"),),
    )
    with open_databases(settings, "words", strict=False) as databases:
        (missing,) = databases.missing
    assert missing.reason == "only its URL without the password is known"


def test_a_table_names_no_schema() -> None:
    with pytest.raises(TopologyError, match=r"'analytics.per_minute' has a dot.*search_path%3Danalytics"):
        SqlState("analytics.per_minute", key="word string", value="n bigint")


def test_every_store_that_ships_with_txstream_is_known_by_its_place(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    database = open_database(url)
    assert database.place() is None, "looking must not create it"
    database.ensure_framework_tables()
    assert database.place() == open_database(url).place() is not None
    assert registry.open_database("memory://a").place() is None
