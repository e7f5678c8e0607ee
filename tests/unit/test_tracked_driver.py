"""A driver of tracked tuples over a ZooKeeper in memory: what it waits for, and what operators have asked."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Self, cast

import pytest
from support.kafka_topics import wait_until
from support.tracked import Lines, words

from txstream.api.errors import BoltError
from txstream.api.spouts import SpoutContext
from txstream.batch_metas import MetaCodec
from txstream.cli.run import describe
from txstream.engine.loop.workers import ThreadWorkers
from txstream.engine.tracked import driver as module
from txstream.engine.tracked.driver import TrackedDriver, _NoMeta
from txstream.engine.tracked.report import TrackedReport
from txstream.testing import InProcessRunner
from txstream.transaction import Epoch
from txstream.zookeeper import ROOT, TREES, Kind, MemoryProgress, MemoryTree, Paths
from txstream.zookeeper.request_queue import OperatorRequests

ID = "words"


class Waits(Lines):
    """Says that it waits for `waits`, until the test sets it to None."""

    waits: Any = None

    def waiting_for(self) -> str | None:
        self.calls.append("waiting_for")
        return cast("str | None", self.waits)


class Services:
    """What a driver needs, in this process."""

    def __init__(self, tree: MemoryTree) -> None:
        self.workers = ThreadWorkers(jobs=2)
        self.state = "starting"
        self._tree = tree

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def connect(self) -> None:
        """There is nothing to connect to."""

    def store(self) -> MemoryProgress:
        return MemoryProgress(self._tree, ID, MetaCodec(_NoMeta))

    def asked_before(self) -> Any:
        return self.store().read_requests()

    def context(self) -> SpoutContext:
        return SpoutContext(ID, "lines", {})

    def lead(self, codec: object, plan: object) -> MemoryProgress:
        return self.store()

    def start_engine(self) -> Any:
        return InProcessRunner

    def keep(self, runner: Any) -> Any:
        return runner

    @contextlib.contextmanager
    def beside(self, loop: object) -> Iterator[None]:
        yield


class Run:
    """A run of `words` in a thread, until it has caught up, and the operators of its topology."""

    def __init__(self, tree: MemoryTree, waits: Any = None) -> None:
        spout = Waits(["a", "b"])
        spout.waits = waits
        self.operator = OperatorRequests(tree, Paths(ROOT, ID))
        self.services = Services(tree)
        self.driver = TrackedDriver(words(spout).build(), cast(Any, self.services), until_caught_up=True)
        self.report: TrackedReport | None = None
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        self.report = self.driver.run()

    def start(self) -> Self:
        self.thread.start()
        wait_until(lambda: self.driver.loop and "open" in self.spout.calls, "the spout is open", 10)
        return self

    @property
    def spout(self) -> Any:
        assert self.driver.loop is not None
        return self.driver.loop.spouts[0].spout

    def end(self) -> TrackedReport:
        self.thread.join(10)
        assert self.report is not None, "it has ended"
        return self.report


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    """A ZooKeeper in which the topology was run before. A run ends in its first quiet turn."""
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.0)
    tree = MemoryTree()
    Run(tree).driver.run()
    return tree


def waits_of(run: Run) -> str:
    return run.driver.progress(0).waiting_for or ""


def test_a_spout_that_waits_has_not_caught_up(tree: MemoryTree) -> None:
    run = Run(tree, "its queue, which does not answer").start()
    told = "waiting for its queue, which does not answer (lines) since "
    wait_until(lambda: waits_of(run).startswith(told), "the run to say so", 10)
    wait_until(lambda: run.spout.calls.count("waiting_for") > 5, "some more quiet turns", 10)
    assert run.report is None
    assert describe(run.driver.progress(0)).startswith("2 tuples, 0 trees open, 2 acked, 0 failed")
    assert told in describe(run.driver.progress(0))
    run.driver._note_at = 0.0
    wait_until(lambda: told in str((run.services.store().notes.get(TREES) or {})["waits"]), "the note", 10)
    run.spout.waits = None
    assert run.end().caught_up
    assert (run.services.store().notes.get(TREES) or {})["waits"] is None


def test_what_a_spout_waits_for_is_text(tree: MemoryTree) -> None:
    with pytest.raises(BoltError, match="component 'lines', task 0: waiting_for returned 5; it returns text"):
        Run(tree, 5).driver.run()


@pytest.mark.parametrize("later", [False, True])
def test_a_paused_topology_begins_paused_and_has_not_caught_up(tree: MemoryTree, later: bool) -> None:
    run = Run(tree)
    run.operator.ask(Kind.PAUSE, {})
    if not later:  # a former leader has granted it
        store = run.services.store()
        store.load()
        (request,) = store.read_requests().waiting
        store.claim_epoch(Epoch(0))
        store.answer_request(request, None, {})
    run.start()
    wait_until(lambda: "waiting for `txstream resume words`, paused since" in waits_of(run), "the pause", 10)
    run.operator.ask(Kind.PAUSE, {})
    wait_until(lambda: not run.services.store().read_requests().waiting, "one more turn", 10)
    assert run.report is None
    assert set(run.spout.calls) == {"open"}
    assert run.driver.progress(0).records == 0
    run.operator.ask(Kind.RESUME, {})
    report = run.end()
    assert (report.records, report.acked, report.caught_up) == (2, 2, True)


def test_a_stop_that_was_meant_for_a_former_driver_does_not_end_the_next(tree: MemoryTree) -> None:
    run = Run(tree)
    request = run.operator.ask(Kind.STOP, {})
    report = run.start().end()
    assert (report.caught_up, report.stopped_by) == (True, None)
    answer = run.operator.wait_answer(request, 10)
    assert answer is not None
    assert answer.refused == "the driver that was to stop has ended; this one was started after it"
