"""Topologies of tracked tuples, in this process: trees, anchors, acks, and the three ways without a tree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, assert_type, cast

import pytest
from support.lists import each
from support.tracked import Lines, RichSplit, Split, Upper, words

from txstream import (
    BasicBolt,
    OutputCollector,
    OutputFieldsDeclarer,
    RichBolt,
    SpoutCollector,
    SpoutContext,
    TopologyBuilder,
    Tuple,
)
from txstream.core.errors import BoltError, TupleError
from txstream.core.waiting import Waiting
from txstream.engine.loop.operator_changes import Steering
from txstream.plugins.tracked.tier import SteeredTurns
from txstream.plugins.tracked.turns import Turns
from txstream.testing import ManualClock, TopologyTest, TrackedTest


@each("split", [Split(), RichSplit()])
@each("width", [1, 2])
@each("ackers", [1, 3])
def test_a_line_is_acked_when_all_of_its_words_are(split: Split | RichSplit, width: int, ackers: int) -> None:
    with TrackedTest(words(["a b c", "d", ""], split, ackers=ackers), width=width) as test:
        lines: Lines = test.spout("lines")
        assert test.step()
        assert lines.acked == [0]
        test.run()
        assert sorted(lines.acked) == [0, 1, 2]
        assert sorted(test.emitted("upper")) == [("A",), ("B",), ("C",), ("D",)]
        assert not test.open_messages("lines")
    assert lines.calls == ["open", "activate", "deactivate", "close"]
    assert lines.failed == []


class Pair(RichBolt):
    """Joins two tuples: what it emits descends from both."""

    output = "pair string"

    def __init__(self, *, ack: bool = True) -> None:
        self.ack_them = ack

    def prepare(self, context: Any, collector: Any) -> None:
        super().prepare(context, collector)
        self.held: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self.held.append(tup)
        if len(self.held) == 2:
            self.collector.emit(self.held, ["+".join(one[0] for one in self.held)])
            for one in self.held:
                self.collector.ack(one)
            self.held = []


class FailsOnce(BasicBolt):
    """Fails the tuple with the given word, in the first attempt at it."""

    output = "word string"
    failed: set[str] = set()  # noqa: RUF012 - shared by all instances, as a database would be

    def __init__(self, word: str) -> None:
        self.word = word
        self.failed.clear()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup[0] == self.word and self.word not in self.failed:
            self.failed.add(self.word)
            from txstream import FailedException

            raise FailedException(f"no {self.word} today")
        collector.emit([tup[0]])


def pairs(*, last: Any) -> TopologyBuilder:
    builder = TopologyBuilder("pairs")
    builder.set_spout("lines", TwoAtOnce(["a", "b"]))
    builder.set_bolt("pair", Pair()).global_grouping("lines")
    builder.set_bolt("last", last).shuffle_grouping("pair")
    return builder


class TwoAtOnce(Lines):
    def next_tuple(self) -> None:
        super().next_tuple()
        super().next_tuple()


def test_a_tuple_with_two_anchors_fails_both_of_its_roots_at_once() -> None:
    with TrackedTest(pairs(last=FailsOnce("a+b"))) as test:
        lines = test.spout("lines")
        test.step()
        assert sorted(lines.failed) == [0, 1]
        assert lines.acked == []
        test.run()
        assert sorted(lines.acked) == [0, 1]
        assert test.emitted("last") == [("a+b",)]
        assert test.reasons == {"component 'last': no a+b today": 1}


class Unanchored(RichSplit):
    """What it emits belongs to no tree."""

    def execute(self, tup: Tuple) -> None:
        for word in tup["line"].split():
            self.collector.emit(None, [word])
        self.collector.ack(tup)


class Refuses(BasicBolt):
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        from txstream import FailedException

        raise FailedException("never")


def test_an_unanchored_tuple_may_fail_and_nobody_hears_of_it() -> None:
    with TrackedTest(words(["a b"], Unanchored(), Refuses())) as test:
        test.run()
        assert test.spout("lines").acked == [0]
        assert test.spout("lines").failed == []


def test_a_tuple_without_message_id_is_in_no_tree() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Lines(["a b"], tracked=False))
    builder.set_bolt("refuses", Refuses()).shuffle_grouping("lines")
    with TrackedTest(builder) as test:
        test.run()
        lines = test.spout("lines")
        assert (lines.acked, lines.failed) == ([], [])
        assert test.loop.counts.failed == {"refuses": 1}


def test_without_ackers_the_ack_follows_the_emit() -> None:
    with TrackedTest(words(["a b"], RichSplit(), Refuses(), ackers=0)) as test:
        lines = test.spout("lines")
        test.step()
        assert lines.acked == [0]
        assert lines.failed == []


def test_no_more_trees_of_a_task_are_open_than_max_spout_pending() -> None:
    with TrackedTest(words(["a", "b", "c"], Keeps(), max_spout_pending=2)) as test:
        for _ in range(4):
            test.step()
        assert test.open_messages("lines") == {0, 1}
        assert len(test.spout("lines").waiting) == 1


class Keeps(RichBolt):
    """Forgets to ack."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        """Nothing at all."""


class OpensAndCloses(Lines):
    """Emits from open and close."""

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        super().open(context, collector)
        collector.emit([f"task {context.task_index} of {context.task_count}"], "opened")
        self.in_flight["opened"] = ""

    def close(self) -> None:
        self.collector.emit(["closed"])


def test_the_collector_may_be_used_from_open_and_close() -> None:
    builder = TopologyBuilder("words", settings={"who": "me"})
    builder.set_spout("lines", OpensAndCloses(), 2)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with TrackedTest(builder) as test:
        test.run()
        assert test.spout("lines", 1).acked == ["opened"]
        assert sorted(test.emitted("split"))[:2] == [("0",), ("1",)]
        assert test.spout("lines").context.settings == {"who": "me"}
    assert test.emitted("split").count(("closed",)) == 2


def test_ack_and_fail_come_back_to_the_task_that_emitted() -> None:
    class Named(Lines):
        def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
            super().open(context, collector)
            self.waiting = [(f"{context.task_index}/{number}", "x") for number in range(3)]

    builder = TopologyBuilder("words", ackers=2)
    builder.set_spout("lines", Named(), 3)
    builder.set_bolt("split", FailsOnce("x"), 2).shuffle_grouping("lines")
    with TrackedTest(builder, width=2) as test:
        test.run()
        for task in range(3):
            spout = test.spout("lines", task)
            assert sorted(spout.acked) == [f"{task}/{number}" for number in range(3)]
        assert sum(len(test.spout("lines", task).failed) for task in range(3)) == 1


class TwoStreams(Lines):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("line string")
        declarer.declare("line string", "chosen", direct=True)

    def next_tuple(self) -> None:
        if self.waiting:
            number, line = self.waiting.pop(0)
            self.in_flight[number] = line
            task = self.context.task_ids["chosen"][1]
            self.sent_to.append(self.collector.emit_direct(task, [line], number, "chosen"))


def test_emit_answers_the_ids_of_the_tasks_that_get_the_tuple() -> None:
    """The spout's task has id 0; the others follow in the order of declaration."""
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Lines(["a", "b", "a"]))
    builder.set_bolt("all", Upper_(), 3).all_grouping("lines")
    builder.set_bolt("by", Upper_(), 2).fields_grouping("lines", "line")
    builder.set_bolt("one", Upper_()).global_grouping("lines")
    with TrackedTest(builder) as test:
        sent: list[Sequence[int]] = test.spout("lines").sent_to
        test.loop.spouts[0].next_tuple()
        first = list(sent[0])  # read before the tuple is sent
        test.run()
        assert first == sent[0] == sent[2]
        assert [tasks[:3] for tasks in sent] == [[1, 2, 3]] * 3
        assert all(len(tasks) == 5 and tasks[3] in (4, 5) and tasks[4] == 6 for tasks in sent)
        assert sorted(test.spout("lines").acked) == [0, 1, 2]


def test_a_direct_tuple_goes_to_the_task_that_the_spout_chose() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", TwoStreams(["a"]))
    builder.set_bolt("other", TaskOf(), 3).direct_grouping("lines", "chosen")
    builder.set_bolt("chosen", TaskOf(), 3).direct_grouping("lines", "chosen")
    with TrackedTest(builder, width=3) as test:
        test.run()
        assert test.spout("lines").sent_to == [[5]]
        assert test.spout("lines").acked == [0]
        assert test.emitted("chosen") == [(1, 5)]
        assert test.emitted("other") == []


class Chooses(RichBolt):
    """Sends each line to the first task of "one" and the last of "two"."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("line string", direct=True)

    def execute(self, tup: Tuple) -> None:
        for task in (self.context.task_ids["one"][0], self.context.task_ids["two"][-1]):
            self.collector.emit_direct(task, tup, [tup["line"]])
        self.collector.ack(tup)


def test_a_bolt_sends_a_direct_tuple_to_the_one_task_that_has_the_id() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Lines(["a"]), 2)
    builder.set_bolt("chooses", Chooses()).global_grouping("lines")
    builder.set_bolt("one", TaskOf(), 2).direct_grouping("chooses")
    builder.set_bolt("two", TaskOf(), 2).direct_grouping("chooses")
    with TrackedTest(builder, width=2) as test:
        assert [test.spout("lines", task).context.task_id for task in (0, 1)] == [0, 1]
        test.run()
        assert (test.emitted("one"), test.emitted("two")) == ([(0, 3)] * 2, [(1, 6)] * 2)
        assert test.spout("lines").acked == test.spout("lines", 1).acked == [0]


def test_a_direct_tuple_for_a_task_that_does_not_subscribe_is_an_error() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", TwoStreams([]))
    builder.set_bolt("chosen", TaskOf(), 3).direct_grouping("lines", "chosen")
    with TrackedTest(builder) as test:
        spout = test.loop.spouts[0]
        spout.emit_direct(0, ["a"], None, "chosen")
        with pytest.raises(TupleError, match="for task 0 of 'chosen', whose 3 tasks are 1 to 3"):
            spout.flush()


class Upper_(BasicBolt):  # noqa: N801 - like Upper, for a line
    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        tup["line"].upper()


class TaskOf(BasicBolt):
    output = "task int, id int"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit([self.context.task_index, self.context.task_id])


@each(
    ("values", "stream", "message"),
    [
        (["a", "b"], "default", r"component 'lines' emitted \('a', 'b'\) to stream 'default'"),
        ([7], "default", r"component 'lines' emitted 7 \(int\) in field 'line'"),
        (["a"], "other", r"component 'lines' emitted to stream 'other', but declares 'default'"),
    ],
)
def test_what_a_spout_may_not_emit(values: Any, stream: str, message: str) -> None:
    with TrackedTest(words([])) as test:
        spout = test.loop.spouts[0]

        def emit() -> None:
            spout.emit(values, 1, stream)
            spout.flush()

        with pytest.raises(TupleError, match=message):
            emit()


def test_an_error_in_a_spout_says_whose_it_is() -> None:
    class Broken(Lines):
        def next_tuple(self) -> None:
            raise ZeroDivisionError("by zero")

    builder = TopologyBuilder("words")
    builder.set_spout("lines", Broken())
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    match = r"component 'lines', task 0, next_tuple: ZeroDivisionError: by zero \(in test_tracked"
    with TrackedTest(builder) as test, pytest.raises(BoltError, match=match):
        test.step()


def test_words_are_grouped_by_field_as_in_every_topology() -> None:
    """A word always goes to the same task, whichever line and task it comes from."""

    class Where(Upper):
        output = "word string, task int"

        def execute(self, tup: Tuple, collector: OutputCollector) -> None:
            collector.emit([tup["word"], self.context.task_index])

    with TrackedTest(words(["a b c d e"] * 6, last=Where()), width=2) as test:
        test.run()
        found = test.emitted("upper")
        assert len(found) == 30
        assert len(set(found)) == 5
        assert {task for _, task in found} == {0, 1}


class Listens(Lines):
    """Emits from a thread of its own, which also reads where its tuples go."""

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        super().open(context, collector)
        numbers = range(context.task_index * 300, (context.task_index + 1) * 300)
        self.in_flight = dict.fromkeys(numbers, "")
        self.thread = threading.Thread(
            target=lambda: [list(collector.emit(["a"], number)) for number in numbers]
        )
        self.thread.start()


def test_a_spout_may_emit_from_any_thread() -> None:
    builder = TopologyBuilder("words")
    builder.set_spout("lines", Listens(), 2)
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with TrackedTest(builder) as test:
        spouts: list[Listens] = [test.spout("lines", task) for task in range(2)]
        while any(spout.thread.is_alive() for spout in spouts):
            test.step()
        test.run()
        assert [sorted(spout.acked) for spout in spouts] == [[*range(300)], [*range(300, 600)]]


def test_topology_test_steps_tracked_tuples_too() -> None:
    builder = words(["a b", "c"], Keeps(), message_timeout_seconds=10)
    for topology in (builder, builder.build()):
        with TopologyTest(topology, clock=ManualClock(), width=2) as test:
            assert_type(test, TrackedTest)
            assert type(test) is TrackedTest
            test.run()
            test.fail("lines", 0)
            test.clock.advance(10)
            test.step()
            assert test.spout("lines").failed == [0, 1]


def test_a_test_of_tracked_tuples_has_no_batches() -> None:
    with TopologyTest(words([])) as test:
        for ask in (test.commit, test.crash, lambda: test.current, lambda: test.attempts(1)):
            with pytest.raises(AttributeError, match=r"tracked tuples has no txids.* it has step\(\)"):
                ask()


def test_idle_spouts_are_asked_more_and_more_seldom_until_there_is_a_tuple() -> None:
    test = TrackedTest(words([]))
    posted: list[Callable[[], None]] = []
    waits: list[float] = []

    def after(seconds: float, event: Callable[[], None]) -> None:
        waits.append(seconds)
        posted.append(event)

    workers = SimpleNamespace(post=posted.append, after=after, submit=lambda *_, **__: None, now=lambda: 0.0)
    steering = Steering(test.topology, SteeredTurns())
    waiting = Waiting(lambda _: True)
    ready = SimpleNamespace(
        workers=workers, store=None, runner=None, waiting=waiting, taken=SimpleNamespace(steering=steering)
    )
    turns = Turns(test.loop, cast(Any, ready))
    test.loop.open()
    turns._turn()
    for _ in range(9):
        posted.pop()()
    assert waits == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05, 0.05, 0.05]
    test.spout("lines").waiting.append((0, "a"))
    posted.pop()()
    assert len(waits) == 10, "the next turn waits for nothing"
    posted.pop()()
    assert waits[10:] == [0.001]
