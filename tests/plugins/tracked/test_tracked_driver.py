"""A driver of tracked tuples over a ZooKeeper in memory: what it waits for, and what operators have asked."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any, ClassVar, Self, cast

import pytest
from support.kafka_topics import wait_until
from support.tracked import Lines, Split, words

from txstream import RichBolt, SpoutCollector, SpoutContext, TopologyBuilder, Tuple
from txstream.api.bolts import Bolt
from txstream.cli.run_progress import describe
from txstream.core.errors import BoltError
from txstream.engine.commit.state_targets import state_targets
from txstream.engine.loop.report import RunReport
from txstream.engine.loop.workers import ThreadWorkers
from txstream.engine.start.driver import Driver
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.plugins.testing.services import MemoryServices
from txstream.plugins.tracked import turns as module
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.plugins.tracked.report import TrackedReport
from txstream.plugins.tracked.tier import TrackedTier
from txstream.state import StateBackend
from txstream.testing import InProcessRunner, TrackedTest
from txstream.zookeeper import ROOT, TREES, WAITING, Kind, Paths, ProgressStore
from txstream.zookeeper.request_queue import OperatorRequests

ID = "words"


class Waits(Lines):
    """Says that it waits for `waits`, until the test sets it to None."""

    waits: Any = None

    def waiting_for(self) -> str | None:
        self.calls.append("waiting_for")
        return cast("str | None", self.waits)


class Run:
    """A run of `words` in a thread, until it has caught up, and the operators of its topology."""

    def __init__(self, tree: MemoryTree, waits: Any = None, topology: TrackedTopology | None = None) -> None:
        spout = Waits(["a", "b"])
        spout.waits = waits
        topology = topology or words(spout).build()
        self.operator = OperatorRequests(tree, Paths(ROOT, topology.id))
        self.services = MemoryServices(topology, tree, "", InProcessRunner, ThreadWorkers(jobs=2))
        self.tier = TrackedTier(topology, until_caught_up=True)
        self.driver = Driver(self.services, self.tier)
        self.report: RunReport | None = None
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        self.report = self.driver.run()

    def start(self) -> Self:
        self.thread.start()
        wait_until(lambda: self.driver.loop and "open" in self.spout.calls, "the spout is open", 10)
        return self

    @property
    def spout(self) -> Any:
        return self.spouts[0]

    @property
    def spouts(self) -> list[Any]:
        assert self.driver.loop is not None
        return [task.spout for task in self.driver.loop.loop.spouts]

    @property
    def store(self) -> ProgressStore:
        return self.services.store

    def end(self) -> TrackedReport:
        self.thread.join(10)
        assert isinstance(self.report, TrackedReport), "it has ended"
        return self.report


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> MemoryTree:
    """A ZooKeeper in which the topology was run before. A run ends in its first quiet turn."""
    for name, seconds in (("_QUIET_SECONDS", 0.0), ("_WAIT_SECONDS", 0.0), ("_NOTE_SECONDS", 0.05)):
        monkeypatch.setattr(module, name, seconds)
    tree = MemoryTree()
    Run(tree).driver.run()
    return tree


def waits_of(run: Run) -> str:
    return run.driver.progress(0).waiting_for or ""


def noted(run: Run, component: str) -> Counter[str]:
    """Return what `status` shows of a component."""
    note = run.store.notes.get(TREES)
    return Counter() if note is None else Counter(note["components"][component])


def answer_of(run: Run, kind: Kind, body: Any = None) -> Any:
    answer = run.operator.wait_answer(run.operator.ask(kind, body or {}), 10)
    assert answer is not None
    return answer


def test_a_spout_that_waits_has_not_caught_up(tree: MemoryTree) -> None:
    run = Run(tree, "its queue, which does not answer").start()
    told = "its queue, which does not answer (lines) since "
    wait_until(lambda: waits_of(run).startswith(f"waiting for {told}"), "the run to say so", 10)
    wait_until(lambda: run.spout.calls.count("waiting_for") > 5, "some more quiet turns", 10)
    assert run.report is None
    assert describe(run.driver.progress(0)).startswith("2 tuples, 0 trees open, 2 acked, 0 failed")
    assert told in describe(run.driver.progress(0))
    wait_until(lambda: any(told in str(wait) for wait in run.store.notes.get(WAITING) or ()), "the note", 10)
    run.spout.waits = None
    assert run.end().caught_up
    assert not run.store.notes.get(WAITING)


def test_what_a_spout_waits_for_is_text(tree: MemoryTree) -> None:
    with pytest.raises(BoltError, match="component 'lines', task 0: waiting_for returned 5; it returns text"):
        Run(tree, 5).driver.run()


@pytest.mark.parametrize("later", [False, True])
def test_a_paused_topology_begins_paused_and_has_not_caught_up(tree: MemoryTree, later: bool) -> None:
    if not later:  # a former leader has granted it
        former = Run(tree, "its queue").start()
        assert answer_of(former, Kind.PAUSE).refused is None
        former.driver.stop()
        former.end()
    run = Run(tree)
    if later:
        run.operator.ask(Kind.PAUSE, {})
    run.start()
    wait_until(lambda: "waiting for `txstream resume words` since" in waits_of(run), "the pause", 10)
    assert answer_of(run, Kind.PAUSE).told["already"]
    assert run.report is None
    assert set(run.spout.calls) == {"open"}
    assert run.driver.progress(0).records == 0
    (wait,) = run.store.notes.get(WAITING) or ()
    assert wait.because.startswith("paused by ")
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


@pytest.mark.parametrize(
    ("kind", "body", "words"),
    [
        (Kind.TREE, {"txid": 1}, "it tracks tuples, which come in no batches and have no txids"),
        (Kind.STORY, {"txid": 1}, "it tracks tuples, which come in no batches and have no txids"),
        (Kind.STOP, {"at": 3}, "what it does has no txids; leave --at out"),
        (Kind.SCALE, {"split": 3}, "because it has 2 tasks; declare it with .set_num_tasks(3)"),
        (Kind.SCALE, {"lines": 2}, "at most its parallelism of 1; declare it with parallelism=2"),
    ],
)
def test_what_cannot_be_done_with_tracked_tuples_is_refused_in_words_that_fit(
    tree: MemoryTree, kind: Kind, body: Any, words: str
) -> None:
    run = Run(tree, "its queue").start()
    assert words in answer_of(run, kind, body).refused
    run.spout.waits = None
    assert run.end().caught_up


def test_a_corrupt_znode_of_requests_stops_nothing_and_later_ones_are_answered(
    tree: MemoryTree, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tree, "its queue").start()
    asked = Paths(ROOT, ID).asked
    assert answer_of(run, Kind.PAUSE).refused is None
    tree.write(asked, b"{")
    with caplog.at_level(logging.ERROR):
        wait_until(lambda: "what operators ask cannot be read now" in caplog.text, "the log", 10)
    tree.remove(asked)
    assert answer_of(run, Kind.RESUME).refused is None
    run.spout.waits = None
    assert run.end().caught_up


def test_bolts_are_scaled_from_the_next_micro_batch_on(tree: MemoryTree) -> None:
    run = Run(tree, "its queue").start()
    assert answer_of(run, Kind.SCALE, {"split": 1}).told == {"before": {"split": 2}}
    wait_until(lambda: noted(run, "split")["slots"] == 1, "the note", 10)
    assert noted(run, "upper")["slots"] == 2
    assert run.spout.calls.count("open") == 1
    run.spout.waits = None
    run.end()
    later = Run(tree).start()
    assert later.driver.loop is not None
    assert later.driver.loop.loop.slots()["split"] == 1
    later.end()


class Keeps(RichBolt):
    def execute(self, tup: Tuple) -> None:
        """Forgets to ack."""


class Shares(Lines):
    """Each task takes its share of one queue, which all tasks know."""

    queue: ClassVar[set[int]] = set()
    opened: ClassVar[list[str]] = []
    over = False

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        super().open(context, collector)
        self.opened.append(f"{context.task_index} of {context.task_count}")

    def next_tuple(self) -> None:
        context = self.context
        for number in sorted(self.queue):
            if number % context.task_count == context.task_index and number not in self.in_flight:
                self.in_flight[number] = str(number)
                self.collector.emit([str(number)], number)

    def ack(self, message_id: Any) -> None:
        super().ack(message_id)
        self.queue.remove(message_id)

    def fail(self, message_id: Any) -> None:
        self.in_flight.pop(message_id)

    def waiting_for(self) -> str | None:
        return None if self.over else "the test"


def shares(bolt: Bolt, **options: Any) -> TrackedTopology:
    builder = TopologyBuilder("shares", **options)
    builder.set_spout("lines", Shares(), 3)
    builder.set_bolt("bolt", bolt, 2).shuffle_grouping("lines")
    Shares.opened.clear()
    Shares.queue.clear()
    Shares.queue.update(range(6))
    return builder.build()


def test_a_spouts_tasks_are_closed_and_opened_in_another_number(tree: MemoryTree) -> None:
    topology = shares(Split())
    run = Run(tree, topology=topology).start()
    wait_until(lambda: not Shares.queue, "the queue to be empty", 10)
    former = run.spouts
    assert answer_of(run, Kind.SCALE, {"lines": 2}).told == {"before": {"lines": 3}}
    wait_until(lambda: Shares.opened[3:] == ["0 of 2", "1 of 2"], "two tasks", 10)
    assert all(spout.calls[-2:] == ["deactivate", "close"] for spout in former)
    Shares.queue.update(range(6, 10))
    wait_until(lambda: not Shares.queue, "the queue to be empty again", 10)
    wait_until(
        lambda: (noted(run, "lines")["slots"], noted(run, "lines")["acked"]) == (2, 10), "the note", 10
    )
    for spout in run.spouts:
        spout.over = True
    report = run.end()
    assert (report.records, report.acked, report.failed, report.timed_out) == (10, 10, 0, 0)
    later = Run(tree, topology=topology).driver.start()
    assert later is not None
    assert len(later.loop.spouts) == 2


def test_trees_that_are_open_when_a_spouts_tasks_change_come_again_from_their_source() -> None:
    with TrackedTest(shares(Split())) as test:
        loop = test.loop
        loop.ask()
        cut = loop.cut()
        assert cut is not None
        test._runner.slots = {"lines": 1}
        assert loop.changing() == ["lines"]
        loop.change_tasks()
        assert not loop.changing()
        (spout,) = loop.spouts
        loop.finished(cut, loop.run_batch(cut))  # of the former tasks: nobody hears of it
        assert (spout.open, spout.acked, Shares.queue) == (0, 0, set(range(6)))
        loop.activate()
        test.run()
        assert (spout.acked, spout.failed, Shares.queue) == (6, 0, set())
        assert spout.emitted == 12
        assert loop.is_at_rest


def test_open_trees_hold_up_other_spout_tasks_until_they_have_timed_out(tree: MemoryTree) -> None:
    run = Run(tree, topology=shares(Keeps(), message_timeout_seconds=0.5)).start()
    wait_until(lambda: noted(run, "bolt")["messages"] == 6, "the trees to be open", 10)
    assert answer_of(run, Kind.SCALE, {"lines": 1}).refused is None
    told = "waiting for the open trees since"
    wait_until(lambda: waits_of(run).startswith(told) or len(Shares.opened) > 3, "the wait", 10)
    wait_until(lambda: Shares.opened[3:] == ["0 of 1"], "one task", 10)
    Shares.queue.clear()
    run.driver.stop()
    report = run.end()
    assert report.timed_out >= 6
    assert report.timed_out + report.open_trees == report.records


def test_a_topology_of_tracked_tuples_opens_no_database() -> None:
    opened: list[str] = []

    def opening(url: str) -> StateBackend:
        opened.append(url)
        return MemoryBackend(url)

    assert state_targets(words(Waits([])).build(), "sqlite:///default.db", opening) == []
    assert opened == []
