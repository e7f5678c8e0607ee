"""Which backend a URL means, and where stores that forget are refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points as found_points
from pathlib import Path
from typing import Any

import pytest
from support.committing import BATCHES, check_tables, committing, state, word_source
from support.lists import each
from support.map_states import FIELDS, bank, check, movements
from support.states import Rig

import txstream
from txstream.api.reducers import Sum
from txstream.bolts.sql import SqlStateBolt
from txstream.core import entry_points
from txstream.core.errors import ServiceUnavailableError, TopologyError, UsageError
from txstream.engine.commit.state_targets import state_targets
from txstream.engine.start import run_services as services
from txstream.plugins.local.sqlite import SQLiteDialect
from txstream.plugins.proof.stores.memory import MemoryBackend, forget
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase, open_database, open_sql_database, place_of
from txstream.state.sql import framework_tables
from txstream.testing import InProcessRunner, Point, TopologyTest


class Mine(MemoryBackend):
    """A user's own backend: `mine://NAME`, in memory."""

    def __init__(self, url: str, **options: Any) -> None:
        self.options = options
        super().__init__(f"memory://{url.removeprefix('mine://')}", **options)

    @staticmethod
    def place_of(url: str) -> str:
        return url.lower()


def no_backend(url: str, *, connect_timeout_seconds: float, message_timeout_seconds: float) -> Any:
    return url


@pytest.fixture
def mine(unique: str) -> Iterator[str]:
    take_back = txstream.register_backend("mine", Mine)
    yield f"mine://{unique}"
    take_back()
    forget(unique)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The entry points of installed packages: SQL dialects, and what a test adds."""
    points = list(found_points(group=entry_points.SQL_DIALECTS))
    monkeypatch.setattr(entry_points, "_points", lambda group: tuple(p for p in points if p.group == group))
    return points


def test_what_ships_with_txstream(tmp_path: Path) -> None:
    assert isinstance(open_database("memory://x"), MemoryBackend)
    assert isinstance(open_database(f"sqlite:///{tmp_path}/x.db"), StateDatabase)


def test_a_registered_backend_is_opened_with_the_deadlines(mine: str) -> None:
    opened = open_database(mine, connect_timeout_seconds=1.0, message_timeout_seconds=2.0)
    assert isinstance(opened, Mine)
    assert opened.options == {"connect_timeout_seconds": 1.0, "message_timeout_seconds": 2.0}
    assert place_of(mine.upper()) == mine


def test_registering_can_be_taken_back() -> None:
    take_back = txstream.register_backend("mine", Mine)
    with pytest.raises(UsageError, match="registered for mine:// already"):
        txstream.register_backend("mine", Mine)
    take_back()
    take_back()
    with pytest.raises(UsageError, match="'mine' is not supported"):
        open_database("mine://x")


@each("scheme", ["sqlite", "postgresql", "postgresql+mine"])
def test_txstreams_own_schemes_stay_its_own(scheme: str) -> None:
    with pytest.raises(UsageError, match=f"{scheme.replace('+', '.')}:// is a SQL dialect's"):
        txstream.register_backend(scheme, Mine)


@each("scheme", ["", "Mine", "mine://", "1st", "a b"])
def test_what_is_no_scheme(scheme: str) -> None:
    with pytest.raises(UsageError, match="cannot be the scheme of a state backend"):
        txstream.register_backend(scheme, Mine)


def test_an_installed_package_brings_a_backend(installed: list[EntryPoint], unique: str) -> None:
    installed.append(EntryPoint("mine", f"{__name__}:Mine", "txstream.state_backends"))
    installed.append(EntryPoint("yours", f"{__name__}:Mine", "another.group"))
    assert isinstance(open_database(f"mine://{unique}"), Mine)
    assert place_of("mine://A") == "mine://a"
    with pytest.raises(UsageError, match=r"'yours' is not supported; known are mariadb, .*, mine, for"):
        open_database("yours://x")
    forget(unique)


class Beside(SQLiteDialect):
    """A stranger's, which says that it commits each step of DDL."""

    label = "Beside"
    commits_each_step = True


def test_an_installed_package_brings_a_sql_dialect(installed: list[EntryPoint], tmp_path: Path) -> None:
    """It is opened like ours, and what it says of itself is what is asked."""
    installed.append(EntryPoint("beside", f"{__name__}:Beside", "txstream.sql_dialects"))
    url = f"beside:///{tmp_path}/x.db"
    database = open_sql_database(url)
    with contextlib.closing(database):
        rig = Rig(database, f"sqlite:///{tmp_path}/x.db").join()
        rig.commit(1, {"a": 1})
        assert rig.values() == {"a": 1}
        with database.sessions.reading("what it says") as connection:
            assert framework_tables.commits_each_step(connection)
    assert place_of(url) == place_of(f"beside+pysqlite:///{tmp_path}/../{tmp_path.name}/x.db")
    with pytest.raises(UsageError, match=r"beside:// is a SQL dialect's"):
        txstream.register_backend("beside", Mine)
    with pytest.raises(UsageError, match=r"known are beside, mariadb, mysql, postgres, .*sqlite, for"):
        open_database("yours://x")
    with pytest.raises(UsageError, match=r"Beside is reached by beside\+pysqlite, which beside alone means"):
        open_database(f"beside+other:///{tmp_path}/x.db")
    with pytest.raises(UsageError, match="in memory forgets everything"):
        open_database("beside://")


def test_a_sql_dialect_that_cannot_be_loaded(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("broken", "there.is.no:module [broken]", "txstream.sql_dialects"))
    with pytest.raises(ServiceUnavailableError, match=r"broken:// of a package .* 'a package\[broken\]'"):
        open_database("broken://host/x")
    assert place_of("broken://HOST/x") == "broken://HOST/x"


def test_what_is_registered_here_comes_before_what_is_installed(
    mine: str, installed: list[EntryPoint]
) -> None:
    installed.append(EntryPoint("mine", "there.is.no:module", "txstream.state_backends"))
    assert isinstance(open_database(mine), Mine)


def test_a_package_that_cannot_be_loaded(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("mine", "there.is.no:module", "txstream.state_backends"))
    with pytest.raises(ServiceUnavailableError, match=r"mine:// of a package cannot be loaded from 'there"):
        open_database("mine://x")
    assert place_of("mine://X") == "mine://X"


def test_two_packages_for_one_scheme(installed: list[EntryPoint]) -> None:
    installed.extend(EntryPoint("mine", f"{__name__}:Mine", "txstream.state_backends") for _ in range(2))
    with pytest.raises(UsageError, match=r"each have a state backend for mine://; uninstall all but one"):
        open_database("mine://x")


def test_a_factory_that_opens_something_else() -> None:
    take_back = txstream.register_backend("mine", no_backend)
    try:
        with pytest.raises(UsageError, match="answered with str, which is no StateBackend"):
            open_database("mine://x")
    finally:
        take_back()


def test_an_unknown_scheme_is_told_without_its_password() -> None:
    with pytest.raises(UsageError, match=r"redis://me:\*\*\*@host/0: 'redis' is not supported") as told:
        open_database("redis://me:hidden@host/0")
    assert "txstream.register_backend('redis', factory)" in str(told.value)
    assert "'txstream.state_backends'" in str(told.value)


def test_commands_for_sql_databases_alone() -> None:
    with pytest.raises(UsageError, match="memory://x is no SQL database; it is a MemoryBackend"):
        open_sql_database("memory://x")


# --- where a store that forgets will do --------------------------------------------------------------------


def test_a_topology_test_over_memory(unique: str) -> None:
    """After a crash inside or after a commit, the next driver finds what is committed."""
    for at in (Point.INSIDE_COMMIT, Point.AFTER_COMMIT):
        with TopologyTest(committing(word_source()), database=f"memory://{unique}-{at}") as test:
            test.commit(1)
            test.crash(at=at)
            test.restart()
            test.run()
            check_tables(test, BATCHES)
        forget(f"{unique}-{at}")


def test_states_in_memory_and_in_a_file_in_one_topology(unique: str) -> None:
    builder = txstream.TransactionalTopologyBuilder(
        "both", "words", txstream.OpaqueSpout(word_source(), max_batch_records=2)
    )
    here, there = state("here", f"memory://{unique}"), state("there")
    builder.set_bolt("here", SqlStateBolt(here, n=Sum("n"))).fields_grouping("ones", "word")
    builder.set_bolt("there", SqlStateBolt(there, n=Sum("n"))).fields_grouping("ones", "word")
    builder.set_bolt("ones", txstream.CountBolt("word")).fields_grouping("words", "word")
    with TopologyTest(builder.build()) as test:
        test.run()
        assert test.table("here") == test.table("there") == {"oak": 3, "elm": 2, "ash": 1}
    forget(unique)


@pytest.mark.parametrize("at", [Point.AFTER_BEGIN, Point.INSIDE_COMMIT])
def test_map_states_in_memory_where_bolts_run_in_this_process(unique: str, at: Point) -> None:
    """The opaque replay holds other tuples, because a partition is away."""
    records = {"p0": movements(9), "p1": movements(9, start=9)}
    with (
        MemorySpout(FIELDS, records, max_records_per_partition=3) as source,
        TopologyTest(bank(source), database=f"memory://{unique}", width=2) as test,
    ):
        test.commit(1)
        test.crash(at=at, txid=2)
        source.hide("p1")
        test.restart()
        test.commit(2)
        source.show("p1")
        check(test, records)
        test.run()
        check(test, records)
    forget(unique)


def test_map_states_in_memory_are_refused_where_bolts_run_elsewhere() -> None:
    topology = bank(MemorySpout(FIELDS, {"p0": movements(3)}))
    with pytest.raises(TopologyError, match="bolts use table 'balances' from executors, but memory://x"):
        state_targets(topology, "memory://x", open_database)


class NoZooKeeper:
    @classmethod
    def of(cls, settings: Settings) -> NoZooKeeper:
        return cls()

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("where", ["the run", "a state"])
def test_a_run_refuses_a_store_that_forgets(
    monkeypatch: pytest.MonkeyPatch, unique: str, where: str, sqlite_url: str
) -> None:
    monkeypatch.setattr(services, "ZooKeeper", NoZooKeeper)
    url = f"memory://{unique}"
    builder = txstream.TransactionalTopologyBuilder("t", "words", txstream.OpaqueSpout(word_source()))
    builder.set_bolt("ones", txstream.CountBolt("word")).fields_grouping("words", "word")
    counts = state("counts", url if where == "a state" else None)
    builder.set_bolt("counts", SqlStateBolt(counts, n=Sum("n"))).fields_grouping("ones", "word")
    settings = Settings(zookeeper="nowhere:1", database=url if where == "the run" else sqlite_url)
    running = txstream.start(builder.build(), settings=settings, runner_factory=InProcessRunner)
    with pytest.raises(UsageError, match=f"{url} forgets everything when the driver ends.*another one"):
        running.wait(20)
