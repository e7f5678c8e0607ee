"""`TopologyTest`: crashes, restarts, and steps that cannot reach their goal."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.tables import read_counts
from support.tracked import words
from support.word_topologies import Total, word_topology

from txstream.api.bolts import BasicBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, SpoutContext, TransactionalSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.core.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    DataLostError,
    IdentityMismatchError,
    PartitionUnavailableError,
    UsageError,
)
from txstream.core.fault_points import Point
from txstream.core.transaction import sequence_of
from txstream.spouts.memory import MemoryCoordinator, MemoryRange, MemorySpout
from txstream.testing import Crash, CrashError, Fail, ManualClock, NotReachedError, TopologyTest

LINES = ["a b", "b", "c", "a", "d d", "a"]
ALL_WORDS = {"a": 3, "b": 2, "c": 1, "d": 2}


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    """Three batches of two lines."""
    with MemorySpout("value string", {"p": LINES}) as spout:
        yield spout


@pytest.fixture
def test(source: MemorySpout) -> Iterator[TopologyTest]:
    with TopologyTest(word_topology(source)) as running:
        yield running


def states(test: TopologyTest, txid: int) -> list[str]:
    return [str(attempt.state) for attempt in test.attempts(txid)]


# --- crashes and restarts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "attempts"),
    [
        (Point.BEFORE_PERSIST, ["committed"]),
        (Point.AFTER_PERSIST, ["committed"]),
        (Point.BEFORE_COMMIT, ["lost", "committed"]),
        (Point.INSIDE_COMMIT, ["lost", "committed"]),
        (Point.AFTER_COMMIT, ["committed"]),
        (Point.BEFORE_ADVANCE, ["committed"]),
        (Point.AFTER_ADVANCE, ["committed"]),
    ],
)
def test_a_transactional_topology_recovers_from_a_crash_at_any_point(
    source: MemorySpout, point: Point, attempts: list[str]
) -> None:
    with TopologyTest(word_topology(source, spout=TransactionalSpout)) as test:
        test.commit(1)
        test.crash(at=point, txid=2)
        test.restart()
        test.run()
        assert test.table("words") == ALL_WORDS
        assert states(test, 2) == attempts


def test_a_batch_that_is_held_before_its_commit_can_still_crash_there(test: TopologyTest) -> None:
    test.process(1)
    test.crash(at=Point.BEFORE_COMMIT)
    assert states(test, 1) == ["lost"]
    assert test.table("words") == {}
    test.restart()
    assert test.current == 1


def test_a_plan_that_nothing_persists_cannot_crash_there(source: MemorySpout, test: TopologyTest) -> None:
    with pytest.raises(UsageError, match="only a transactional spout's plan is persisted"):
        test.crash(at=Point.AFTER_PERSIST)
    with TopologyTest(word_topology(source, spout=TransactionalSpout)) as transactional:
        transactional.open(1)
        with pytest.raises(UsageError, match="txid 1 is open, so its plan is persisted"):
            transactional.crash(at=Point.AFTER_PERSIST)


def test_a_dead_driver_takes_no_steps_but_can_be_asked(test: TopologyTest) -> None:
    test.commit(1)
    test.crash()
    for step in (test.open, test.process, test.commit, test.run, test.fail, test.settle, test.crash):
        with pytest.raises(UsageError, match=r"does not run: it was killed; call restart\(\) first"):
            step()
    assert test.current == 2
    assert test.table("words") == {"a": 1, "b": 2}
    assert test.emitted("total", 1) == [(3,)]


def test_a_restart_kills_a_driver_that_lives(test: TopologyTest) -> None:
    test.process(2)
    test.restart()
    assert states(test, 1) == states(test, 2) == ["lost"]
    test.run()
    assert states(test, 1) == ["lost", "committed"]
    assert [attempt.number for attempt in test.attempts(1)] == [1, 2]
    assert test.table("words") == ALL_WORDS


def test_a_restart_may_run_another_version(source: MemorySpout) -> None:
    wide = word_topology(source, spout=TransactionalSpout, max_spout_pending=3)
    with TopologyTest(wide) as test:
        test.process(3)
        test.restart(word_topology(source, spout=TransactionalSpout, max_spout_pending=1))
        test.process(1)
        assert test.phases == {1: "committing"}
        test.run()
        assert test.table("words") == ALL_WORDS
        with pytest.raises(UsageError, match="'other' cannot go on where 'words' was"):
            test.restart(word_topology(source, topology_id="other"))
        with pytest.raises(UsageError, match="begin a new TopologyTest"):
            test.restart(words([]).build())
        with pytest.raises(IdentityMismatchError, match="semantics"):
            test.restart(word_topology(source, spout=OpaqueSpout))


def test_a_marker_kills_the_driver_whichever_txid_reads_it(source: MemorySpout) -> None:
    source.append("q", "x", Crash(), "y")
    with TopologyTest(word_topology(source, max_batch_records=4)) as test:
        with pytest.raises(CrashError, match="partition 'q', position 1"):
            test.process(2)
        assert states(test, 1)[0] == "lost"
        test.restart()
        test.run()
        assert test.table("words") == {**ALL_WORDS, "x": 1, "y": 1}


def test_a_non_transactional_topology_counts_a_crashed_batch_twice(source: MemorySpout) -> None:
    with TopologyTest(word_topology(source, spout=NonTransactionalSpout)) as test:
        test.crash(at=Point.AFTER_COMMIT)
        test.restart()
        test.run()
        assert test.table("words") == {"a": 4, "b": 4, "c": 1, "d": 2}


def test_what_ends_the_run_is_raised_by_the_step_that_meets_it(source: MemorySpout) -> None:
    with TopologyTest(word_topology(source)) as test:
        test.process(2)
        with pytest.raises(DataLostError, match="gone"):
            test.fail(1, DataLostError("gone"))
        assert states(test, 1) == ["failed"]


# --- failures of other kinds -------------------------------------------------------------------------------


def test_an_attempt_that_a_marker_fails_is_replayed_within_the_step(source: MemorySpout) -> None:
    source.append("q", Fail("flaky", times=3), "x")
    with TopologyTest(word_topology(source, max_batch_records=10)) as test:
        batch = test.process(1)
        assert states(test, 1) == ["failed", "failed", "failed", "committing"]
        assert batch.number == 4
        assert all("flaky" in str(attempt.error) for attempt in test.attempts(1)[:3])


def test_an_endless_failure_does_not_make_an_endless_step(source: MemorySpout) -> None:
    source.append("p", Fail("always", times=10**6))
    with (
        TopologyTest(word_topology(source, max_batch_records=10)) as test,
        pytest.raises(NotReachedError, match=r"for txid 1 to be processed, but 101 attempts failed.*always"),
    ):
        test.process(1)


def test_a_bug_in_a_later_txid_is_told_before_it_ends_the_run(source: MemorySpout) -> None:
    with TopologyTest(word_topology(source, max_attempts=1)) as test:
        test.process(1)
        test.fail(2, BoltError("a bug"))
        with pytest.raises(NotReachedError, match=r"which will not be: .* ends with: a bug"):
            test.process(2)
        with pytest.raises(BoltError, match="a bug"):
            test.commit(1)
        assert test.table("words") == {"a": 1, "b": 2}


def test_a_commit_that_is_too_slow_by_the_clock_goes_again(test: TopologyTest) -> None:
    test.process(1)
    test.clock.advance(30)
    assert isinstance(test.attempts(1)[0].error, BatchTimeoutError)
    assert test.commit(1).number == 2
    assert test.table("words") == {"a": 1, "b": 2}


CLOCK = ManualClock()


class Slow(BasicBolt):
    """Takes 20 s by the test's clock for each line "slow", in the first attempt only."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["value"] == "slow" and sequence_of(self.context.attempt.attempt) == 1:
            CLOCK.advance(20)
        collector.emit((tup["value"],))


def slow_topology(source: MemorySpout, bolt: BasicBolt, **options: Any) -> Topology:
    builder = TransactionalTopologyBuilder("slow", "lines", OpaqueSpout(source), **options)
    builder.set_bolt("slow", bolt).shuffle_grouping("lines")
    builder.set_committer_bolt("total", Total()).global_grouping("slow")
    return builder.build()


@pytest.mark.parametrize(("lines", "attempts"), [(1, ["committed"]), (2, ["failed", "committed"])])
def test_a_bolt_may_move_the_clock(lines: int, attempts: list[str]) -> None:
    source = MemorySpout("value string", {"p": ["slow"] * lines})
    with source, TopologyTest(slow_topology(source, Slow()), clock=CLOCK) as test:
        test.commit(1)
        assert states(test, 1) == attempts
        assert all(isinstance(a.error, BatchTimeoutError) for a in test.attempts(1) if a.state == "failed")


# --- sources -----------------------------------------------------------------------------------------------


class LateCoordinator(MemoryCoordinator):
    """Has a row more when it is asked for the third plan."""

    asked = 0
    spout: MemorySpout

    def plan(self, last: Mapping[str, MemoryRange], limit: int) -> Any:
        self.asked += 1
        if self.asked == 3:
            self.spout.append("p", "late")
        return super().plan(last, limit)


class LateSpout(MemorySpout):
    def coordinator(self, context: SpoutContext) -> MemoryCoordinator:
        coordinator = LateCoordinator(self._log, None)
        coordinator.spout = self
        return coordinator


def test_a_patient_test_asks_a_source_again(source: MemorySpout) -> None:
    with (
        LateSpout("value string") as late,
        TopologyTest(word_topology(late)) as test,
        pytest.raises(NotReachedError, match="the source has nothing for it"),
    ):
        test.process(1)
    with LateSpout("value string") as late, TopologyTest(word_topology(late), patience_seconds=20) as test:
        assert test.process(1).emitted("split") == [("late",)]


class PlanFails(MemoryCoordinator):
    def plan(self, last: Mapping[str, MemoryRange], limit: int) -> Any:
        raise PartitionUnavailableError("the registry does not answer")


class PlanFailsSpout(MemorySpout):
    def coordinator(self, context: SpoutContext) -> MemoryCoordinator:
        return PlanFails(self._log, None)


def test_why_a_plan_has_failed_is_told() -> None:
    with (
        PlanFailsSpout("value string", {"p": LINES}) as spout,
        TopologyTest(word_topology(spout)) as test,
        pytest.raises(
            NotReachedError, match=r"waits for the source since .* \(the registry does not answer\)"
        ),
    ):
        test.process(1)


def test_a_partition_that_a_plan_had_to_leave_out_is_told(source: MemorySpout) -> None:
    source.hide("p", "a cable")
    with TopologyTest(word_topology(source)) as test:
        with pytest.raises(NotReachedError, match=r"nothing for it \(p cannot be read: .*a cable\)$"):
            test.process(1)
        source.show("p")
        test.process(1)
        with pytest.raises(NotReachedError, match=r"nothing for it$"):
            test.process(9)


def test_a_partition_that_cannot_be_read_is_told(source: MemorySpout) -> None:
    with TopologyTest(word_topology(source, spout=TransactionalSpout)) as test:
        test.process(1)
        source.hide("p", "a cable")
        test.fail(1)
        with pytest.raises(NotReachedError, match=r"attempt 1\.2 is processing; .*waits for partition p"):
            test.process(1)
        assert str(test.waiting_for).startswith("partition p since")
        with pytest.raises(PartitionUnavailableError, match="a cable"):
            test.run()
        source.show("p")
        test.run()
        assert test.waiting_for is None
        assert test.table("words") == ALL_WORDS


# --- what stays behind -------------------------------------------------------------------------------------

GO = threading.Event()


class Stuck(BasicBolt):
    """Does not end before GO is set."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        GO.wait(60)


def test_a_step_ends_at_its_deadline(source: MemorySpout) -> None:
    GO.clear()
    with TopologyTest(slow_topology(source, Stuck()), deadline_seconds=1.0) as test:
        try:
            with pytest.raises(
                NotReachedError,
                match=r"waited 1 s for txid 1 to be processed, and something still runs: "
                r"txid 1 attempt 1\.1, in execute \(test_testing_ends\.py, line \d+\); .*is processing$",
            ):
                test.process(1)
        finally:
            GO.set()


def test_the_tests_own_database_goes_and_another_stays(source: MemorySpout, tmp_path: Path) -> None:
    with TopologyTest(word_topology(source)) as own:
        own.run()
        path = Path(own.database_url.removeprefix("sqlite:///"))
        assert path.exists()
        assert read_counts(own.database_url, "words") == ALL_WORDS
    assert not path.exists()
    own.close()
    url = f"sqlite:///{tmp_path / 'given.db'}"
    with TopologyTest(word_topology(source), database=url) as given:
        given.run()
    assert read_counts(url, "words") == ALL_WORDS


def test_an_error_of_the_test_ends_the_topology_as_well(source: MemorySpout) -> None:
    before = set(threading.enumerate())
    test = TopologyTest(word_topology(source))

    def use() -> None:
        with test:
            test.process(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        use()
    with pytest.raises(UsageError, match="it was killed"):
        test.commit(1)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread


# --- what cannot be meant ----------------------------------------------------------------------------------


def test_a_test_that_was_not_entered(source: MemorySpout) -> None:
    test = TopologyTest(word_topology(source))
    with pytest.raises(UsageError, match="enter the TopologyTest first"):
        test.commit()
    with pytest.raises(UsageError, match="enter the TopologyTest first"):
        test.table("words")
    test.close()


def test_txids_that_cannot_be(test: TopologyTest) -> None:
    test.commit(1)
    for step in (test.open, test.process, test.commit, test.fail):
        with pytest.raises(UsageError, match=r"there is no txid 0|txid 0 is committed"):
            step(0)
    with pytest.raises(UsageError, match="txid 1 is committed, so it cannot fail; txid 2 is the next one"):
        test.fail(1)
    with pytest.raises(UsageError, match="txid 1 is committed, so it cannot crash"):
        test.crash(at=Point.BEFORE_COMMIT, txid=1)
    with pytest.raises(UsageError, match="cannot fail after-advance; it can before-commit, inside"):
        test.fail(2, at=Point.AFTER_ADVANCE)
    with pytest.raises(UsageError, match="txid 9 was never opened in this test"):
        test.emitted("split", 9)
    assert test.commit(1).state == "committed"


def test_names_that_do_not_exist(test: TopologyTest) -> None:
    batch = test.commit(1)
    with pytest.raises(UsageError, match="there is no component 'spilt'; there are lines, split, count"):
        batch.emitted("spilt")
    for ask in (batch.emitted_by_task, batch.places, batch.received):
        with pytest.raises(UsageError, match="there is no component 'spilt'"):
            ask("spilt")
    with pytest.raises(UsageError, match="component 'split' has no stream 'errors'; it declares 'default'"):
        batch.emitted("split", "errors")
    with pytest.raises(UsageError, match="component 'split' fills no table; 'store' do"):
        batch.deltas("split")
    with pytest.raises(UsageError, match="fills no table 'wrods'; it fills words"):
        test.table("wrods")
    with pytest.raises(UsageError, match="fills no table 'wrods'; it fills words"):
        test.rows("wrods")


def test_a_failed_attempt_has_emitted_nothing_that_is_known(test: TopologyTest) -> None:
    test.open(1)
    failed = test.fail(1, BatchFailedError("why"))
    with pytest.raises(UsageError, match=r"has not been through processing \(it failed: why\)"):
        failed.emitted("split")
