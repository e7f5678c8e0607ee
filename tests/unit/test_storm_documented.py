"""Storm's documented example of committers: A -> B (committer) -> C -> D (committer), and A -> C."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.storm import commit_calls, states

from txstream.api.bolts import BatchBolt, Committer, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import TransactionalSpout
from txstream.api.topology import Phase, Topology
from txstream.api.tuples import Tuple
from txstream.core.fault_points import Point
from txstream.plugins.testing.recorded_calls import CallKind
from txstream.spouts.memory import MemorySpout
from txstream.testing import AttemptState, TopologyTest

COMMITTED, DROPPED, FAILED, PROCESSED, COMMITTING = (
    AttemptState.COMMITTED,
    AttemptState.DROPPED,
    AttemptState.FAILED,
    AttemptState.PROCESSED,
    AttemptState.COMMITTING,
)


class Relay(BatchBolt):
    """Emits its own name once for each tuple, then once more when the batch is finished."""

    output = "name string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((self.context.component,))

    def finish_batch(self) -> None:
        self.collector.emit((self.context.component,))


class RelayInCommit(Relay, Committer):
    """The same bolt, in the commit phase."""


class Collect(Relay):
    """Emits the names that it got, when the batch is finished."""

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.names: list[str] = []

    def execute(self, tup: Tuple) -> None:
        self.names.append(tup["name"])

    def finish_batch(self) -> None:
        for name in self.names:
            self.collector.emit((name,))


def documented(source: MemorySpout, parallelism: int = 1) -> Topology:
    """A -> B (committer) -> C -> D (committer), and A -> C."""
    builder = TransactionalTopologyBuilder(
        "documented", "spout", TransactionalSpout(source, max_batch_records=1), max_spout_pending=3
    )
    builder.set_bolt("A", Relay(), parallelism).shuffle_grouping("spout")
    builder.set_bolt("B", RelayInCommit(), parallelism).shuffle_grouping("A")
    builder.set_bolt("C", Collect(), parallelism).shuffle_grouping("A").shuffle_grouping("B")
    builder.set_committer_bolt("D", Collect(), parallelism).shuffle_grouping("C")
    return builder.build()


@pytest.fixture
def three_lines() -> Iterator[MemorySpout]:
    with MemorySpout("value string", {"p0": ["one", "two", "three"]}) as spout:
        yield spout


@pytest.mark.parametrize("tasks", [1, 3])
def test_the_order_of_calls_in_the_documented_example(three_lines: MemorySpout, tasks: int) -> None:
    with TopologyTest(documented(three_lines, tasks), width=tasks) as test:
        test.process(1)
        calls = test.calls(1)
        assert {(call.phase, call.component) for call in calls} == {(Phase.PROCESS, "A")}
        assert [call.kind for call in calls if call.kind is not CallKind.PREPARE] == [
            CallKind.EXECUTE,
            *tasks * [CallKind.FINISH_BATCH],
        ]
        committed = test.commit(1)
        calls = commit_calls(test, 1)
        assert {call.component for call in calls} == {"B", "C", "D"}
        assert test.calls(1)[-len(calls) :] == calls

        def places(component: str, kind: CallKind) -> list[int]:
            found = [(call.component, call.kind) for call in calls]
            return [place for place, call in enumerate(found) if call == (component, kind)]

        # B and C get A's tuples. C gets B's, the last of them once B is finished; D gets C's likewise.
        for above, below in (("B", "C"), ("C", "D")):
            finished, finished_below = (places(name, CallKind.FINISH_BATCH) for name in (above, below))
            assert len(finished) == len(finished_below) == tasks
            assert places(above, CallKind.EXECUTE)[-1] < finished[-1]
            assert finished[-1] < places(below, CallKind.EXECUTE)[-1]
            assert finished[-1] < finished_below[0]
        assert places("D", CallKind.FINISH_BATCH)[-1] == len(calls) - 1
        from_a, from_b = 1 + tasks, 1 + tasks + tasks  # one tuple for each received, and one for each task
        assert [sum(committed.received(name).values()) for name in "ABCD"] == [
            1,
            from_a,
            from_a + from_b,
            from_a + from_b,
        ]
        assert sorted(committed.emitted("D")) == from_a * [("A",)] + from_b * [("B",)]


def test_three_batches_in_flight_commit_one_after_the_other(three_lines: MemorySpout) -> None:
    with TopologyTest(documented(three_lines)) as test:
        test.process(3)
        assert {call.component for call in test.calls()} == {"A"}, "all three are processed, none committed"
        test.commit(3)
        calls = test.calls()
        of_each = len(commit_calls(test, 1))
        assert of_each >= 9
        assert [call.attempt.txid for call in calls[-3 * of_each :]] == [
            *of_each * [1],
            *of_each * [2],
            *of_each * [3],
        ]
        assert {call.phase for call in calls[-3 * of_each :]} == {Phase.COMMIT}


def test_the_next_batch_is_processed_while_one_is_held_in_its_commit(three_lines: MemorySpout) -> None:
    with TopologyTest(documented(three_lines)) as test:
        test.process(2)
        assert states(test, 1) == [COMMITTING]
        assert states(test, 2) == [PROCESSED]
        test.fail(1, at=Point.INSIDE_COMMIT)
        test.commit(3)
        # The commit-phase calls of a txid's last attempt come after all of the txid before it.
        last = [
            call
            for call in test.calls()
            if call.phase is Phase.COMMIT and call.attempt == test.attempts(call.attempt.txid)[-1].id
        ]
        txids = [call.attempt.txid for call in last]
        assert txids == sorted(txids)
        assert set(txids) == {1, 2, 3}
        assert states(test, 1) == [FAILED, COMMITTED]
        assert states(test, 2) == [DROPPED, COMMITTED]
        assert len(commit_calls(test, 2)) == len(txids) / 3, "a dropped attempt was committed"
