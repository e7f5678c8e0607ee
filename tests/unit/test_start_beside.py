"""Spark starts beside the rest of a start, which reports its own errors without waiting for Spark."""

from __future__ import annotations

import contextlib
import threading
from types import SimpleNamespace
from typing import Any, Self

import pytest
from support.bolts import word_count
from support.inmemory import MemoryLog
from support.loops import Run, World, wait

from txstream.api.errors import IdentityMismatchError, SchemaError, ServiceUnavailableError
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.engine.start import run_services as module
from txstream.engine.start.run_services import RunServices
from txstream.settings import Settings
from txstream.testing.services import MemoryServices


class Engine:
    """Spark, which is up once `may_start` is set, unless the run ends first."""

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


def test_the_source_is_opened_while_spark_starts(services: RunServices, engine: Engine) -> None:
    with services:
        services.lead(NOTHING, NOTHING)
        wait(engine.begun, "Spark starts")
        services.open_source(services.context())
        engine.may_start.set()
        services.start_engine()
        assert not engine.ended.is_set()
    assert engine.ended.is_set()


def test_a_start_that_fails_does_not_wait_for_spark_and_ends_it(
    services: RunServices, engine: Engine
) -> None:
    with contextlib.suppress(SchemaError), services:
        services.lead(NOTHING, NOTHING)
        wait(engine.begun, "Spark starts")
        raise SchemaError("no such topic")
    assert engine.ended.is_set()
    assert services._starting is not None
    assert services._starting.done(), "a process that it makes later would be left behind"


def test_why_spark_does_not_start_is_told_where_it_is_needed(services: RunServices, engine: Engine) -> None:
    def refuse() -> None:
        raise ServiceUnavailableError("there is no Spark master")

    engine.start = refuse  # type: ignore[method-assign]
    with services:
        services.lead(NOTHING, NOTHING)
        services.open_source(services.context())
        with pytest.raises(ServiceUnavailableError, match="there is no Spark master"):
            services.start_engine()


def test_an_id_of_another_topology_is_told_without_waiting_for_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(MemoryLog({"a": ["the cat"]}))
    Run(world).complete()
    monkeypatch.setattr(MemoryServices, "start_engine", lambda _: pytest.fail("Spark was waited for"))
    world.spout = TransactionalSpout
    with pytest.raises(IdentityMismatchError, match="was first run with other code"):
        Run(world)
