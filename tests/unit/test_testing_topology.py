"""`TopologyTest`: a topology goes exactly as far as the test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.word_topologies import word_topology

from txstream.api.errors import BatchTimeoutError, BoltError, UsageError
from txstream.coordinator import Phase
from txstream.engine.points import Point
from txstream.spouts.memory import MemorySpout
from txstream.testing import AttemptState, NotReachedError, TopologyTest

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
    assert test.phases == {1: Phase.PROCESSING}
    assert attempt.state is AttemptState.PROCESSING
    assert attempt.partitions["p"].records == 2
    assert test.calls() == []


def test_a_txid_is_processed_and_held_before_its_commit(test: TopologyTest) -> None:
    attempt = test.process(1)
    assert attempt.emitted("split") == [("a",), ("b",), ("b",)]
    assert sorted(attempt.emitted("count")) == [("a", 1), ("b", 2)]
    assert test.phases == {1: Phase.COMMITTING}
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
    assert test.phases == {1: Phase.COMMITTING, 2: Phase.PROCESSED}
    test.process(3)
    assert test.phases == {2: Phase.COMMITTING, 3: Phase.PROCESSED}
    assert test.table("words") == {"a": 1, "b": 2}


def test_a_later_txid_may_be_processed_before_an_earlier_one(test: TopologyTest) -> None:
    test.process(2, alone=True)
    assert test.phases == {1: Phase.PROCESSING, 2: Phase.PROCESSED}
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
    assert test.phases == {1: Phase.COMMITTING}
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


@pytest.mark.parametrize("point", [p for p in Point if "persist" not in p])
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
