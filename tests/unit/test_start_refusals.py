"""What is only asked of ZooKeeper, databases and source is refused before Spark starts."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest
import sqlalchemy as sa
from support.bolts import word_count
from support.inmemory import MemoryLog
from support.loops import Run, World
from support.upgrading import ROWS, counts, storing

from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.cli.context import Cli
from txstream.cli.run_progress import shown_progress
from txstream.core.errors import (
    CorruptStateError,
    IdentityMismatchError,
    ProgressMismatchError,
    SchemaError,
    ServiceUnavailableError,
    StateTableError,
)
from txstream.core.waiting import RunAbortedError
from txstream.engine.loop.report import RunProgress
from txstream.engine.start import run_services as module
from txstream.engine.start.run_services import RunServices
from txstream.plugins.testing.services import MemoryServices
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest


class Engine:
    """Spark, which is up at once if it `may_start`, and otherwise starts until the run ends."""

    def __init__(self) -> None:
        self.begun, self.may_start, self.ended = (threading.Event() for _ in range(3))
        self.services: Any = None

    def start(self) -> None:
        self.begun.set()
        while not self.may_start.wait(0.01):
            if self.services.workers.pause(0):
                raise ServiceUnavailableError("Spark was given up")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def services(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> RunServices:
    """The services of a run, without ZooKeeper."""
    leadership = SimpleNamespace(acquire=lambda **_: None, release=lambda: None)
    monkeypatch.setattr(module, "Leadership", lambda *_: leadership)
    monkeypatch.setattr(module, "ZooKeeperProgress", lambda *_, **__: None)
    topology = word_count(MemoryLog({}), spout=OpaqueSpout, parallelism=1)
    made: Any = RunServices(topology, Settings(), runner_factory=lambda plan: pytest.fail("not made here"))
    made._engine, made._zookeeper, engine.services = engine, None, made
    return made  # type: ignore[no-any-return]


NOTHING: Any = None
PLAN: Any = SimpleNamespace(fed={"tuples": None})  # no Spark task stays for it


def test_spark_starts_once_the_source_is_open_and_ends_with_the_run(
    services: RunServices, engine: Engine
) -> None:
    engine.may_start.set()
    with services:
        services.lead(NOTHING, PLAN)
        services.open_source(services.context())
        assert not engine.begun.is_set()
        services.start_engine()
        assert engine.begun.is_set()
        assert not engine.ended.is_set()
    assert engine.ended.is_set()


def test_a_start_that_fails_before_does_not_start_spark(services: RunServices, engine: Engine) -> None:
    with contextlib.suppress(SchemaError), services:
        services.lead(NOTHING, PLAN)
        raise SchemaError("no such topic")
    assert not engine.begun.is_set()


def test_what_a_standby_waits_for_is_said_once(
    services: Any, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, lines of progress say the state."""
    said, now = "topology 'word-count' was run by one:7, which has ended; then this run takes over", [0.0]
    services._stands_by(said)
    with shown_progress(Cli(), lambda: now[0]) as show:
        now[0] = 60.0
        show(RunProgress("word-count", 0, {}, 0, 0, 0, 60.0, services.state, None))
    assert caplog.messages == [said]
    # Logging may print the warning there too, if another test has left it without handlers.
    said_there = [line for line in capsys.readouterr().err.splitlines() if line != said]
    assert said_there == ["word-count: waiting to take over"]


def test_a_run_that_is_stopped_while_spark_starts_is_no_failure_of_spark(
    services: RunServices, engine: Engine
) -> None:
    with services:
        services.lead(NOTHING, PLAN)
        services.workers.interrupt()
        with pytest.raises(RunAbortedError, match="stopped while Spark started"):
            services.start_engine()


def test_why_spark_does_not_start_is_told(services: RunServices, engine: Engine) -> None:
    def refuse() -> None:
        raise ServiceUnavailableError("there is no Spark master")

    engine.start = refuse  # type: ignore[method-assign]
    with services:
        services.lead(NOTHING, PLAN)
        services.open_source(services.context())
        with pytest.raises(ServiceUnavailableError, match="there is no Spark master"):
            services.start_engine()


def test_an_id_of_another_topology_is_told_before_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MemoryLog({"a": ["the cat"]}))
    Run(world).complete()
    monkeypatch.setattr(MemoryServices, "start_engine", lambda _: pytest.fail("Spark was started"))
    world.spout = TransactionalSpout
    with pytest.raises(IdentityMismatchError, match="was first run with other code"):
        Run(world)


def executed(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(sa.text(statement))
    engine.dispose()


def names(url: str) -> list[str]:
    engine = sa.create_engine(url)
    try:
        return sa.inspect(engine).get_table_names()
    finally:
        engine.dispose()


def test_a_table_of_somebody_elses_is_told_before_spark_starts_and_nothing_is_made(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    executed(sqlite_url, "CREATE TABLE counts (word TEXT)")
    monkeypatch.setattr(MemoryServices, "start_engine", lambda _: pytest.fail("Spark was started"))
    with (
        MemorySpout("word string, x bigint", {"p": ROWS}) as source,
        pytest.raises(StateTableError, match="'counts' exists and was not created by txstream"),
        TopologyTest(storing(source, OpaqueSpout, counts()), database=sqlite_url),
    ):
        raise AssertionError("it started")
    assert names(sqlite_url) == ["counts"]


def test_what_a_later_run_does_not_find_is_told_before_spark_starts(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MemorySpout("word string, x bigint", {"p": ROWS}) as source:
        topology = storing(source, OpaqueSpout, counts())
        with TopologyTest(topology, database=sqlite_url) as test:
            test.run()
            executed(sqlite_url, "DROP TABLE counts")
            monkeypatch.setattr(MemoryServices, "start_engine", lambda _: pytest.fail("Spark was started"))
            with pytest.raises(CorruptStateError, match="is gone; restore it"):
                test.restart()
        other = TopologyTest(topology, database=sqlite_url)  # the same id in another ZooKeeper
        with pytest.raises(ProgressMismatchError, match="is not in ZooKeeper"), other:
            raise AssertionError("it started")
