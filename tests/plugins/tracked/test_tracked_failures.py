"""What makes trees of tracked tuples fail, so that they come again; and misuse of a collector."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
from support.lists import each
from support.tracked import Lines, LosingRunner, RichSplit, Split, Upper, words

from txstream import (
    BasicBolt,
    BatchFailedError,
    OutputCollector,
    RichBolt,
    TopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SpoutContext
from txstream.core.errors import BoltError, UsageError
from txstream.core.transaction import Epoch
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.plugins.tracked.loop import TrackedLoop
from txstream.testing import InProcessRunner, ManualClock, TrackedTest


@pytest.mark.parametrize("component", ["split", "upper"])
def test_a_tuple_that_is_lost_between_two_tasks_leaves_its_tree_open_until_it_times_out(
    component: str, caplog: pytest.LogCaptureFixture
) -> None:
    lost = {"split": {"line": "a b"}, "upper": {"word": "b"}}[component]

    def is_lost(to: str, tup: dict[str, Any]) -> bool:
        return to == component and tup == lost

    made: list[LosingRunner] = []

    def runner(plan: ExecutionPlan) -> LosingRunner:
        made.append(LosingRunner(plan, is_lost))
        return made[0]

    topology = words(["a b", "c d"], message_timeout_seconds=10)
    with TrackedTest(topology, width=2, runner=runner) as test:
        lines: Lines = test.spout("lines")
        test.run()
        assert made[0].lost == [lost]
        assert lines.acked == [1]
        assert test.open_messages("lines") == {0}
        test.clock.advance(9.9)
        test.run()
        assert lines.failed == []
        test.clock.advance(0.2)
        test.run()
        assert lines.failed == [0]
        assert lines.acked == [1, 0]
    assert "1 tree of 'lines' timed out and will be replayed: no component holds them" in caplog.text


@pytest.mark.parametrize("ackers", [1, 2])
def test_an_acker_that_dies_loses_nothing(ackers: int) -> None:
    made = words(["a"] * 4, Keeps(), message_timeout_seconds=10, ackers=ackers)
    with TrackedTest(made) as test:
        lines: Lines = test.spout("lines")
        for _ in range(4):
            test.step()
        for acker in range(ackers):
            test.lose_acker(acker)
        assert len(test.open_messages("lines")) == 4
        test.clock.advance(10)
        test.step()
        assert sorted(lines.failed) == [0, 1, 2, 3]


def test_an_acker_that_dies_before_the_acks_come_lets_the_trees_time_out_and_come_again() -> None:
    with TrackedTest(words(["a b"], message_timeout_seconds=10)) as test:
        lines: Lines = test.spout("lines")
        test.loop.spouts[0].next_tuple()
        cut = test.loop.cut()
        assert cut is not None
        result = test.loop.run_batch(cut)
        test.lose_acker()
        test.loop.finished(cut, result)
        assert lines.acked == []
        test.clock.advance(10)
        test.run()
        assert (lines.failed, lines.acked) == ([0], [0])


def test_the_ackers_take_a_step_of_time_only_when_one_is_due() -> None:
    """Otherwise they forget every tree within three turns, and each comes again when its time is over."""
    with TrackedTest(words(["a b"], message_timeout_seconds=10)) as test:
        test.clock.advance(6)
        test.loop.expire()
        test.loop.spouts[0].next_tuple()
        cut = test.loop.cut()
        assert cut is not None
        for _ in range(5):
            test.loop.expire()
        test.loop.finished(cut, test.loop.run_batch(cut))
        assert test.spout("lines").acked == [0]


class Joins(RichBolt):
    """Emits one tuple that descends from all of the task's tuples."""

    output = "word string"

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self.held.append(tup)

    def cleanup(self) -> None:
        if self.held:
            self.collector.emit(self.held, ["+".join(one[0] for one in self.held)])
        for one in self.held:
            self.collector.ack(one)


def test_two_anchors_of_one_tree_count_once() -> None:
    """Otherwise the tuple's id would cancel itself, and the tree would be acked though the tuple was lost."""

    def is_lost(to: str, tup: dict[str, Any]) -> bool:
        return to == "upper" and tup == {"word": "a+b"}

    builder = TopologyBuilder("words", message_timeout_seconds=10)
    builder.set_spout("lines", Lines(["a b"]))
    builder.set_bolt("split", RichSplit()).shuffle_grouping("lines")
    builder.set_bolt("join", Joins()).global_grouping("split")
    builder.set_bolt("upper", Upper(), 2).fields_grouping("join", "word")
    made: list[LosingRunner] = []

    def runner(plan: ExecutionPlan) -> LosingRunner:
        made.append(LosingRunner(plan, is_lost))
        return made[0]

    with TrackedTest(builder, width=2, runner=runner) as test:
        lines: Lines = test.spout("lines")
        test.step()
        assert made[0].lost == [{"word": "a+b"}]
        assert (lines.acked, lines.failed) == ([], [])
        test.clock.advance(10.1)
        test.run()
        assert (lines.acked, lines.failed) == ([0], [0])
        assert test.emitted("upper") == [("A+B",)]


def test_a_message_after_the_tree_has_ended_changes_nothing() -> None:
    with TrackedTest(words(["a b", "c"], message_timeout_seconds=10)) as test:
        lines: Lines = test.spout("lines")
        test.loop.spouts[0].next_tuple()
        cut = test.loop.cut()
        assert cut is not None
        result = test.loop.run_batch(cut)
        test.loop.finished(cut, result)
        assert lines.acked == [0]
        test.loop.running = cut  # the same answer once more, after the tree has ended
        test.loop.spouts[0].next_tuple()
        test.loop.finished(cut, result)
        test.run()
        assert lines.acked == [0, 1]
        assert lines.failed == []


class DiesOnce(BasicBolt):
    """Has a bug that strikes in the first attempt at a word."""

    output = "word string"
    died: set[str] = set()  # noqa: RUF012 - shared by all instances, as a database would be

    def __init__(self) -> None:
        self.died.clear()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "b" and "b" not in self.died:
            self.died.add("b")
            raise ZeroDivisionError("by zero")
        collector.emit([tup["word"]])


def test_a_task_that_dies_fails_the_trees_of_its_micro_batch_and_no_others() -> None:
    with TrackedTest(words(["a", "b", "c"], last=DiesOnce())) as test:
        lines: Lines = test.spout("lines")
        test.run()
        assert lines.failed == [1]
        assert sorted(lines.acked) == [0, 1, 2]
        (reason,) = test.reasons
        assert reason.startswith("component 'upper': ZeroDivisionError: by zero")


class AlwaysDies(BasicBolt):
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        raise ZeroDivisionError("by zero")


def test_a_bug_that_comes_again_and_again_ends_the_topology() -> None:
    with TrackedTest(words(["a"], last=AlwaysDies(), max_attempts=3)) as test:
        with pytest.raises(BoltError, match=r"micro-batch 3, component 'upper', task \d: ZeroDivisionError"):
            test.run()
        assert test.spout("lines").failed == [0, 0]


class DiesAtFirst(Upper):
    """Dies of a word when it comes for the first time."""

    died: set[str] = set()  # noqa: RUF012 - shared by all instances, as a database would be

    def __init__(self, *words: str) -> None:
        self.words = words
        self.died.clear()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] in self.words and tup["word"] not in self.died:
            self.died.add(tup["word"])
            raise ZeroDivisionError("by zero")
        super().execute(tup, collector)


def test_failures_with_a_success_between_them_are_not_in_a_row() -> None:
    with TrackedTest(words(["a", "b", "c"], last=DiesAtFirst("a", "c"), max_attempts=2)) as test:
        test.run()
        assert test.spout("lines").failed == [0, 2]
        assert sorted(test.spout("lines").acked) == [0, 1, 2]


class Fails(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        if tup["word"] == "b":
            self.collector.fail(tup, "b is not for us")
        else:
            self.collector.ack(tup)


def test_a_failed_tuple_fails_its_tree_as_soon_as_the_micro_batch_is_over() -> None:
    with TrackedTest(words(["a b", "c"], last=Fails())) as test:
        lines: Lines = test.spout("lines")
        test.step()
        assert lines.failed == [0]
        test.step()
        assert lines.acked == [1]
        assert test.reasons == {"component 'upper': b is not for us": 1}


class Keeps(RichBolt):
    """Forgets to ack."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        """Nothing at all."""


def test_a_bolt_that_forgets_to_ack_is_named_at_once_and_when_its_trees_time_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with TrackedTest(words(["a b", "c"], last=Keeps(), message_timeout_seconds=10)) as test:
        test.step()
        told = "component 'upper' ended micro-batch 1 without having acked or failed tuples of 1 tree"
        assert told in caplog.text
        test.step()
        caplog.clear()
        test.clock.advance(10)
        test.step()
        assert (
            "2 trees of 'lines' timed out and will be replayed: component 'upper' holds most of them (2)"
            in (caplog.text)
        )
        assert test.loop.counts.timed_out == {"upper": 2}
        assert test.spout("lines").failed == [0, 1]


def test_a_full_window_that_nobody_empties_is_told(caplog: pytest.LogCaptureFixture) -> None:
    made = words(["a", "b", "c"], last=Keeps(), max_spout_pending=2, message_timeout_seconds=30)
    with TrackedTest(made) as test:
        test.run()
        assert test.loop.stuck is None
        test.clock.advance(10)
        test.step()
        told = "the pending window of 'lines' is full: 2 open trees, and none ends before it times out; "
        assert test.loop.stuck == f"{told}component 'upper' holds most of them"
        assert told in caplog.text
        test.clock.advance(20)
        test.step()
        assert test.loop.stuck is None


class AcksTwice(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.ack(tup)
        self.collector.ack(tup)


class FailsWhatItAcked(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.ack(tup)
        self.collector.fail(tup)


class AnchorsToAcked(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.ack(tup)
        self.collector.emit([tup], ["late"])


class AcksLate(RichBolt):
    output = "word string"
    kept: list[Tuple] = []  # noqa: RUF012 - kept from one micro-batch to the next

    def execute(self, tup: Tuple) -> None:
        for one in self.kept:
            self.collector.ack(one)
        self.kept.append(tup)


class AcksNothing(RichBolt):
    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.ack("a")  # type: ignore[arg-type]


@each(
    ("bolt", "message"),
    [
        (AcksTwice(), r"component 'split' acked a tuple that it had acked already: Tuple\(line='a'\)"),
        (
            FailsWhatItAcked(),
            r"component 'split' failed a tuple that it had acked already: Tuple\(line='a'\)",
        ),
        (
            AnchorsToAcked(),
            r"component 'split' emitted a tuple anchored to one that it had acked already: .*emit first",
        ),
        (AcksLate(), r"component 'split' acked a tuple of an earlier micro-batch, or of another bolt: "),
        (AcksNothing(), r"component 'split' acked 'a', which is no Tuple"),
    ],
)
def test_misuse_ends_the_topology_with_an_error_that_names_the_bolt(bolt: RichBolt, message: str) -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Lines(["a", "b"]))
    builder.set_bolt("split", bolt).shuffle_grouping("lines")
    with TrackedTest(builder) as test, pytest.raises(UsageError, match=message):
        test.run()


def test_a_spout_that_dies_gets_from_its_source_what_was_open() -> None:
    """Its source redelivers: the next driver's spout begins with what the first one had not acked."""
    with TrackedTest(words(["a b", "c"], RichSplit(), Keeps())) as test:
        test.run()
        left = test.spout("lines").in_flight
        assert left == {0: "a b", 1: "c"}
    with TrackedTest(words(list(left.values()), RichSplit())) as test:
        test.run()
        assert sorted(test.emitted("upper")) == [("A",), ("B",), ("C",)]


def test_a_micro_batch_that_takes_too_long_is_given_up_and_its_trees_come_again() -> None:
    clock = ManualClock()

    class Slow(Split):
        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            super().execute(tup, collector)

    with TrackedTest(words(["a"], Slow(), message_timeout_seconds=10), clock=clock) as test:
        lines: Lines = test.spout("lines")
        test.loop.spouts[0].next_tuple()
        cut = test.loop.cut()
        assert cut is not None
        result = test.loop.run_batch(cut)
        clock.advance(10)
        test.loop.expire()
        assert lines.failed == [0]
        assert test.loop.running is None
        test.loop.finished(cut, result)  # too late
        assert lines.acked == []
        test.run()
        assert lines.acked == [0]
        assert test.reasons == {"the batch was not processed within 10 s (message_timeout_seconds)": 1}


def test_a_runs_first_micro_batches_and_those_after_a_timeout_have_the_warm_up_on_top() -> None:
    """A timeout ends the workers. With less time than they need to start, no tree would ever be acked."""
    topology = words(["a", "b"], message_timeout_seconds=30, max_spout_pending=1).build()
    context = SpoutContext("words", "lines", {})
    plan = compile_topology(topology, context, "1")
    runner, clock = InProcessRunner(plan), ManualClock()
    loop = TrackedLoop(topology, plan, runner, context, clock, Epoch(1), warm_up_seconds=20)
    loop.open()
    for seconds, is_in_time in ((50, False), (50, False), (50, True), (30, False), (50, True)):
        loop.ask()
        cut = loop.cut()
        assert cut is not None
        clock.advance(seconds - 0.5)
        loop.expire()
        assert loop.running is cut
        if is_in_time:
            loop.finished(cut, runner.feed(cut.order, cut.messages))
        clock.advance(0.5)
        loop.expire()
        assert loop.running is None
    late = "the batch was not processed within"
    assert loop.counts.reasons == {
        f"{late} 50 s (message_timeout_seconds and the workers' warm-up)": 2,
        f"{late} 30 s (message_timeout_seconds)": 1,
    }


def test_the_kit_fails_an_open_tree_by_its_message_id() -> None:
    with TrackedTest(words(["a"], Keeps())) as test:
        test.step()
        test.fail("lines", 0)
        assert test.spout("lines").failed == [0]
        with pytest.raises(UsageError, match="no tree of 'lines' with message id 0 is open"):
            test.fail("lines", 0)
        with pytest.raises(UsageError, match="has no spout 'pages'"):
            test.fail("pages", 0)


def test_only_ids_balance_a_tree() -> None:
    """An ack of the right tuple under another id leaves the tree open."""
    with TrackedTest(words(["a"])) as test:
        test.loop.spouts[0].next_tuple()
        cut = test.loop.cut()
        assert cut is not None
        result = test.loop.run_batch(cut)
        (tracked,) = result.tracked
        assert tracked.acks is not None
        roots, values = tracked.acks
        tracked.acks = (roots, values ^ np.uint64(1))
        test.loop.finished(cut, result)
        assert test.spout("lines").acked == []
        assert test.open_messages("lines") == {0}


def test_a_failure_that_was_expected_never_ends_the_topology(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with TrackedTest(words(["a"], max_attempts=1)) as test:
        for _ in range(3):
            test.loop.spouts[0].next_tuple()
            cut = test.loop.cut()
            assert cut is not None
            test.loop.broke(cut, BatchFailedError("an executor was lost"))
        assert test.spout("lines").failed == [0, 0, 0]
        test.run()
        assert test.spout("lines").acked == [0]
