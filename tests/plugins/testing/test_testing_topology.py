"""`TopologyTest`: a topology goes exactly as far as the test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.bolts import Split
from support.word_topologies import word_topology

from txstream.api.bolts import BasicBolt, BatchBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import BatchTimeoutError, BoltError, TopologyError, UsageError
from txstream.core.fault_points import WRITE_POINTS, Point
from txstream.spouts.memory import MemorySpout
from txstream.testing import Attempt, AttemptState, NotReachedError, TopologyTest

LINES = ["a b", "b", "c", "a", "d d", "a"]


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    """Three batches of two lines."""
    with MemorySpout("value string", {"p": LINES}) as spout:
        yield spout


@pytest.fixture
def test(source: MemorySpout) -> Iterator[TopologyTest]:
    with TopologyTest(word_topology(source)) as running:
        yield running


def states(test: TopologyTest, txid: int) -> list[AttemptState]:
    return [attempt.state for attempt in test.attempts(txid)]


# --- steps -------------------------------------------------------------------------------------------


def test_nothing_happens_before_the_first_step(test: TopologyTest) -> None:
    assert test.current == 1
    assert test.phases == {}
    assert test.calls() == []


def test_a_txid_is_opened_and_held_before_its_source_is_read(test: TopologyTest) -> None:
    attempt = test.open()
    assert test.phases == {1: BatchPhase.PROCESSING}
    assert attempt.state is AttemptState.PROCESSING
    assert attempt.partitions["p"].records == 2
    assert test.calls() == []


def test_a_txid_is_processed_and_held_before_its_commit(test: TopologyTest) -> None:
    attempt = test.process(1)
    assert attempt.emitted("split") == [("a",), ("b",), ("b",)]
    assert sorted(attempt.emitted("count")) == [("a", 1), ("b", 2)]
    assert test.phases == {1: BatchPhase.COMMITTING}
    assert test.table("words") == {}
    with pytest.raises(
        UsageError, match=r"has not been through the commit of its bolts \(it is committing\)"
    ):
        attempt.emitted("total")


def test_a_txid_is_committed_and_the_next_one_is_not_opened(test: TopologyTest) -> None:
    attempt = test.commit(1)
    assert attempt.state is AttemptState.COMMITTED
    assert attempt.emitted("total") == [(3,)]
    assert test.table("words") == {"a": 1, "b": 2}
    assert test.current == 2
    assert test.phases == {}
    assert test.attempts(2) == []


def test_as_many_txids_are_open_as_may_be_and_what_is_before_them_commits(test: TopologyTest) -> None:
    test.process(2)
    assert test.phases == {1: BatchPhase.COMMITTING, 2: BatchPhase.PROCESSED}
    test.process(3)
    assert test.phases == {2: BatchPhase.COMMITTING, 3: BatchPhase.PROCESSED}
    assert test.table("words") == {"a": 1, "b": 2}


def test_a_later_txid_may_be_processed_before_an_earlier_one(test: TopologyTest) -> None:
    test.process(2, alone=True)
    assert test.phases == {1: BatchPhase.PROCESSING, 2: BatchPhase.PROCESSED}
    with pytest.raises(UsageError, match=r"has not been through processing \(it is processing\)"):
        test.emitted("split", 1)
    test.commit(2)
    assert test.emitted_by_txid("total") == {1: [(3,)], 2: [(2,)]}


def test_run_commits_all_that_there_is(test: TopologyTest, source: MemorySpout) -> None:
    assert [attempt.txid for attempt in test.run()] == [1, 2, 3]
    assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}
    assert test.phases == {}
    source.append("p", "e")
    assert [attempt.txid for attempt in test.run()] == [4]
    assert test.run() == []


# --- failures ----------------------------------------------------------------------------------------


def test_what_fails_in_processing_goes_again_with_all_later_ones(test: TopologyTest) -> None:
    test.commit(1)
    test.process(3)
    failed = test.fail(2, "a reason")
    assert str(failed.error) == "a reason"
    assert states(test, 2) == [AttemptState.FAILED]
    assert states(test, 3) == [AttemptState.DROPPED]
    assert test.phases == {}
    test.process(3)
    assert states(test, 2) == [AttemptState.FAILED, AttemptState.COMMITTING]
    assert states(test, 3) == [AttemptState.DROPPED, AttemptState.PROCESSED]
    test.run()
    assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}


def test_what_is_processed_but_not_current_can_fail(test: TopologyTest) -> None:
    test.process(2)
    test.fail(2)
    assert test.phases == {1: BatchPhase.COMMITTING}
    test.commit(2)
    assert states(test, 1) == [AttemptState.COMMITTED]
    assert states(test, 2) == [AttemptState.FAILED, AttemptState.COMMITTED]


@pytest.mark.parametrize("point", [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
def test_an_attempt_fails_at_a_point_of_its_commit(test: TopologyTest, point: Point) -> None:
    failed = test.fail(1, "at a point", at=point)
    assert failed.state is AttemptState.FAILED
    assert states(test, 1) == [AttemptState.FAILED]
    assert test.table("words") == ({"a": 1, "b": 2} if point is Point.AFTER_COMMIT else {})
    test.commit(1)
    assert test.table("words") == {"a": 1, "b": 2}


def test_an_attempt_is_too_slow_exactly_when_the_clock_passes_its_timeout(test: TopologyTest) -> None:
    test.open(1)
    test.clock.advance(29)
    assert states(test, 1) == [AttemptState.PROCESSING]
    test.clock.advance(1)
    assert states(test, 1)[0] is AttemptState.FAILED
    assert isinstance(test.attempts(1)[0].error, BatchTimeoutError)
    test.commit(1)
    assert test.table("words") == {"a": 1, "b": 2}


def test_a_bug_ends_the_topology_after_its_last_attempt(source: MemorySpout) -> None:
    source.append("p", 7 * "x ")
    with TopologyTest(word_topology(source, max_attempts=2)) as test:
        test.fail(1, BoltError("a bug"))
        with pytest.raises(BoltError, match="a bug"):
            test.fail(1, BoltError("a bug"))
        with pytest.raises(UsageError, match=r"does not run: it ended with BoltError\('a bug'\)"):
            test.process(1)
        test.restart()
        test.commit(1)


# --- crashes -----------------------------------------------------------------------------------------


def test_a_crash_leaves_what_is_stored_and_a_restart_goes_on_there(test: TopologyTest) -> None:
    test.commit(1)
    test.process(3)
    test.crash()
    assert states(test, 2) == [AttemptState.LOST]
    assert test.table("words") == {"a": 1, "b": 2}
    test.restart()
    assert test.current == 2
    test.run()
    assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}


@pytest.mark.parametrize(
    "point", [p for p in Point if "persist" not in p and p not in (*WRITE_POINTS, Point.BETWEEN_COMMITS)]
)
def test_a_crash_at_any_point_of_a_commit_is_recovered(test: TopologyTest, point: Point) -> None:
    test.crash(at=point)
    test.restart()
    committed = point in (Point.AFTER_COMMIT, Point.BEFORE_ADVANCE, Point.AFTER_ADVANCE)
    assert test.current == (2 if committed else 1)
    assert states(test, 1) == [AttemptState.COMMITTED if committed else AttemptState.LOST]
    test.run()
    assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}


# --- what cannot be ----------------------------------------------------------------------------------


def test_a_step_for_which_the_source_has_nothing_is_told(test: TopologyTest, source: MemorySpout) -> None:
    test.run()
    with pytest.raises(
        NotReachedError,
        match=r"waited for txid 4 to be processed.*txid 4 is not open: the source has nothing for it",
    ):
        test.process()
    source.append("p", "more")
    assert test.process().emitted("split") == [("more",)]


def test_a_builder_whose_topology_has_no_committer_yet() -> None:
    builder = TransactionalTopologyBuilder(
        "part", "lines", OpaqueSpout(MemorySpout("value string", {"p": LINES}), max_batch_records=4)
    )
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    with pytest.raises(TopologyError, match="no committer"):
        builder.build()
    with TopologyTest(builder) as test:
        assert test.process(1).emitted("split") == [(word,) for line in LINES[:4] for word in line.split()]
        test.fail(1)
        test.commit(1)
        test.crash(at=Point.AFTER_COMMIT)
        test.restart(builder)
        test.run()
        assert sum(map(len, test.emitted_by_txid("split").values())) == sum(
            len(line.split()) for line in LINES
        )


# --- what is seen ------------------------------------------------------------------------------------


def test_an_attempt_tells_what_it_read_emitted_and_received(source: MemorySpout) -> None:
    source.append("q", "b b")
    topology = word_topology(source, max_batch_records=10, parallelism=3)
    with TopologyTest(topology, width=3) as test:
        batch = test.commit(1)
        assert {name: meta.records for name, meta in batch.partitions.items()} == {"p": 6, "q": 1}
        assert batch.records == 7
        assert sorted(batch.emitted("lines")) == sorted([*((line,) for line in LINES), ("b b",)])
        by_task = batch.emitted_by_task("count")
        assert [row for rows in by_task.values() for row in rows] == batch.emitted("count")
        assert [batch.emitted("count", task=task) for task in by_task] == list(by_task.values())
        assert len({word for rows in by_task.values() for word, _ in rows}) == 4
        assert batch.emitted("count", task=99) == []
        assert set(batch.received("split")) == {0, 1, 2}
        assert sum(batch.received("split").values()) == 7
        assert batch.received("total") == {0: 10}
        assert sorted(batch.deltas("store")) == [("a", 3), ("b", 4), ("c", 1), ("d", 2)]


def test_slots_change_between_two_batches_and_stay_changed_after_a_restart(source: MemorySpout) -> None:
    topology = word_topology(source, parallelism=1, count_tasks=4)
    with TopologyTest(topology, width=4) as test:

        def slots(attempt: Attempt) -> int:
            return len({place.slot for place in attempt.places("count")})

        assert slots(test.process(1)) == 1
        test.scale({"count": 3})
        assert slots(test.process(2)) == 3
        with pytest.raises(UsageError, match=r"count.* 4"):
            test.scale({"count": 5})
        test.crash()
        test.restart()
        assert {slots(attempt) for attempt in test.run()} == {3}
        assert test.table("words") == {"a": 3, "b": 2, "c": 1, "d": 2}


def test_deltas_are_known_before_the_commit(test: TopologyTest) -> None:
    assert sorted(test.process(1).deltas("store")) == [("a", 1), ("b", 2)]


def test_a_table_has_all_its_rows(test: TopologyTest) -> None:
    test.commit(1)
    assert {(row["word"], row["n"], row["prev_n"], row["txid"]) for row in test.rows("words")} == {
        ("a", 1, None, 1),
        ("b", 2, None, 1),
    }


def test_what_was_emitted_is_that_of_the_last_attempt_that_got_so_far(test: TopologyTest) -> None:
    test.process(2)
    test.fail(1)
    test.open(1)
    assert test.emitted("split", 1) == [("a",), ("b",), ("b",)]
    with pytest.raises(UsageError, match="has not been through the commit of its bolts"):
        test.emitted("total", 1)
    assert test.emitted_by_txid("total") == {}
    assert list(test.emitted_by_txid("split")) == [1, 2]


# --- the order of calls ------------------------------------------------------------------------------


def storm_example(source: MemorySpout) -> Topology:
    """A -> B (committer) -> C -> D (committer), and A -> C: the example of Storm's documentation."""
    builder = TransactionalTopologyBuilder("storm", "lines", OpaqueSpout(source))
    builder.set_bolt("A", Pass()).shuffle_grouping("lines")
    builder.set_committer_bolt("B", Pass()).shuffle_grouping("A")
    builder.set_bolt("C", Pass()).shuffle_grouping("A").shuffle_grouping("B")
    builder.set_committer_bolt("D", Pass()).shuffle_grouping("C")
    return builder.build()


class Pass(BatchBolt):
    """Emits each of its tuples, and one more when its batch is finished."""

    output = "value string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit(tup.values)

    def finish_batch(self) -> None:
        self.collector.emit((f"end of {self.context.component}",))


def test_the_order_of_calls_in_storms_example(source: MemorySpout) -> None:
    with TopologyTest(storm_example(source)) as test:
        test.process(1)
        calls = [str(call) for call in test.calls(1)]
        assert calls == [
            "process A[0] prepare",
            "process A[0] execute x6",
            "process A[0] finish_batch",
        ]
        test.commit(1)
        in_commit = test.calls(1)[3:]
        assert {call.phase for call in in_commit} == {"commit"}
        finishes = [call.component for call in in_commit if call.kind == "finish_batch"]
        assert finishes == ["B", "C", "D"]
        executed = {
            name: sum(call.tuples for call in in_commit if call.component == name) for name in ("B", "C", "D")
        }
        assert executed == {"B": 7, "C": 7 + 8, "D": 7 + 8 + 1}
        assert test.calls(1, component="C") == [call for call in test.calls() if call.component == "C"]
        assert test.calls(2) == []


def test_calls_of_attempts_that_failed_are_there(test: TopologyTest) -> None:
    test.process(1)
    test.fail(1)
    test.commit(1)
    first, second = test.attempts(1)
    kinds = [call.kind for call in test.calls(1, component="split") if call.attempt == first.id]
    assert kinds == ["prepare", "execute"]
    assert kinds == [call.kind for call in test.calls(1, component="split") if call.attempt == second.id]
    assert {call.attempt for call in test.calls(1, component="total")} == {second.id}


def test_an_error_shows_the_users_code_first_as_in_a_run(source: MemorySpout) -> None:
    source.append("p", None)
    builder = TransactionalTopologyBuilder("buggy", "lines", OpaqueSpout(source), max_attempts=1)
    builder.set_bolt("buggy", Buggy()).shuffle_grouping("lines")
    builder.set_committer_bolt("end", Pass()).shuffle_grouping("buggy")
    with TopologyTest(builder.build()) as test, pytest.raises(BoltError) as caught:
        test.run()
    assert "AttributeError" in str(caught.value)
    assert "(in test_testing_topology.py, line" in str(caught.value)
    assert "recording" not in "".join(caught.value.__notes__)


class Buggy(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["value"].strip(),))
