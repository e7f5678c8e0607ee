"""Storm's own transactional scenarios: what is emitted in which phase, what comes again after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.lists import each
from support.storm import (
    FIRST,
    IN_COMMIT,
    IN_PROCESSING,
    MORE,
    all_rows,
    append,
    check_tables,
    commit_calls,
    emitted,
    expected,
    held,
    joined,
    states,
    storm_source,
    storm_topology,
)

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.topology import Phase, Topology
from txstream.core.fault_points import WRITE_POINTS, Point
from txstream.examples.storm_counts import CountAllInCommit, CountByWord, topology
from txstream.plugins.testing.recorded_calls import CallKind
from txstream.spouts.memory import MemorySpout
from txstream.testing import AttemptState, NotReachedError, TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
COMMITTED, DROPPED, FAILED, LOST, PROCESSED, COMMITTING = (
    AttemptState.COMMITTED,
    AttemptState.DROPPED,
    AttemptState.FAILED,
    AttemptState.LOST,
    AttemptState.PROCESSED,
    AttemptState.COMMITTING,
)


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with storm_source() as spout:
        yield spout


def storm(spout: Any, source: MemorySpout, width: int | None = None, **options: Any) -> TopologyTest:
    return TopologyTest(storm_topology(spout, source, **options), width=width)


# --- the transactional topology ----------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_emitted_in_each_phase_and_what_a_failed_commit_replays(
    source: MemorySpout, width: int
) -> None:
    with storm(TransactionalSpout, source, width) as test:
        test.process(2)
        first, second = test.attempts(1)[0], test.attempts(2)[0]
        assert emitted(first) == {
            "id1": [("elm", 2), ("elm", 3), ("fir", 6), ("may", 4), ("oak", 5), ("yew", 9)],
            "id2": [("elm", 2), ("elm", 3), ("fir", 6), ("may", 4), ("oak", 5), ("yew", 9)],
            "global": [("global", 6)],
            "sum": [("elm", 5), ("fir", 6), ("may", 4), ("oak", 5), ("yew", 9)],
            **dict.fromkeys(IN_COMMIT),
        }
        assert emitted(second, ("global", "sum")) == {
            "global": [("global", 3)],
            "sum": [("ash", 7), ("ivy", 8), ("oak", 1)],
        }
        assert {call.phase for call in test.calls()} == {Phase.PROCESS}, "a committer began before its commit"

        test.commit(1)
        assert emitted(first, IN_COMMIT) == {
            "gcommit": [("gcommit", 6)],
            "count": [("elm", 2), ("fir", 1), ("may", 1), ("oak", 1), ("yew", 1)],
            "count2": [("elm", 2), ("fir", 2), ("may", 2), ("oak", 2), ("yew", 2)],
        }
        assert commit_calls(test, 2) == []

        append(source, MORE)
        third = test.process(3)
        assert emitted(third, ("global", "sum")) == {
            "global": [("global", 7)],
            "sum": [("box", 5), ("gum", 2), ("nut", 7), ("sal", 1), ("tea", 4)],
        }
        assert states(test, 2) == [COMMITTING]

        failed = test.fail(2, at=Point.INSIDE_COMMIT)
        wanted_of_second = {
            "gcommit": [("gcommit", 3)],
            "count": [("ash", 1), ("ivy", 1), ("oak", 1)],
            "count2": [("ash", 2), ("ivy", 2), ("oak", 2)],
        }
        assert emitted(failed, IN_COMMIT) == wanted_of_second, "its committers ran before it failed"
        assert (states(test, 2), states(test, 3)) == ([FAILED], [DROPPED])
        check_tables(test, held(first, FIRST))

        test.process(3)
        for txid in (2, 3):
            old, new = test.attempts(txid)
            assert new.id.attempt > old.id.attempt
            assert new.partitions == old.partitions
            assert emitted(new, IN_PROCESSING) == emitted(old, IN_PROCESSING)
        test.commit(2)
        assert emitted(test.attempts(2)[1], IN_COMMIT) == wanted_of_second
        assert commit_calls(test, 3) == []

        fourth = test.process(4)
        assert emitted(fourth, ("global", "sum")) == {"global": [("global", 2)], "sum": [("sal", 14)]}
        test.commit(3)
        assert test.emitted("gcommit", 3) == [("gcommit", 7)]
        test.commit(4)
        assert emitted(fourth, IN_COMMIT) == {
            "gcommit": [("gcommit", 2)],
            "count": [("sal", 2)],
            "count2": [("sal", 2)],
        }
        assert test.run() == [], "a batch with nothing in it was opened"
        check_tables(test, all_rows(joined(FIRST, MORE)))


def fail_unread(test: TopologyTest) -> None:
    test.open(2)
    test.fail(2)


def fail_behind_another(test: TopologyTest) -> None:
    test.process(2)
    test.fail(2)


def fail_as_the_next_to_commit(test: TopologyTest) -> None:
    test.commit(1)
    test.process(2)
    test.fail(2)


def fail_before_its_commit(test: TopologyTest) -> None:
    test.process(2)
    test.fail(2, at=Point.BEFORE_COMMIT)


def fail_inside_its_commit(test: TopologyTest) -> None:
    test.process(2)
    test.fail(2, at=Point.INSIDE_COMMIT)


def fail_after_its_commit(test: TopologyTest) -> None:
    test.process(2)
    test.fail(2, at=Point.AFTER_COMMIT)


@BOTH
@pytest.mark.parametrize(
    "failure",
    [
        fail_unread,
        fail_behind_another,
        fail_as_the_next_to_commit,
        fail_before_its_commit,
        fail_inside_its_commit,
        fail_after_its_commit,
    ],
)
def test_a_failed_txid_comes_again(
    source: MemorySpout, spout: Any, failure: Callable[[TopologyTest], None]
) -> None:
    """Records that arrive before the replay are in it if the spout is opaque, otherwise in a later txid."""
    with storm(spout, source) as test:
        append(source, {"p1": MORE["p1"]})
        failure(test)
        records = joined(FIRST, {"p1": MORE["p1"]}, {"p2": [("nut", 7)]})
        append(source, {"p2": [("nut", 7)]})
        test.run()
        old, new = test.attempts(2)
        assert (old.state, new.state) == (FAILED, COMMITTED)
        assert new.id.attempt > old.id.attempt
        if spout is TransactionalSpout:
            assert new.partitions == old.partitions
        else:
            assert new.partitions["p2"].end > old.partitions["p2"].end
        for txid in range(1, test.current):
            attempt = test.attempts(txid)[-1]
            assert emitted(attempt) == expected(held(attempt, records))
        check_tables(test, all_rows(records))


@BOTH
@pytest.mark.parametrize("width", [1, 3])
def test_commits_are_in_strict_order_however_many_batches_are_in_work(spout: Any, width: int) -> None:
    records = {f"p{n}": [(f"w{i % 7}", i) for i in range(20)] for n in range(3)}
    with storm_source(records) as source, storm(spout, source, width, max_spout_pending=4) as test:
        test.run()
        in_commit = [call for call in test.calls() if call.phase is Phase.COMMIT]
        assert [call.attempt.txid for call in in_commit] == sorted(call.attempt.txid for call in in_commit)
        for txid in range(1, 11):
            finished = [
                (call.component, call.task)
                for call in commit_calls(test, txid)
                if call.kind is CallKind.FINISH_BATCH
            ]
            # Each task of a committer finishes once, even without tuples. Nothing failed, so none does twice.
            assert sorted(finished) == [
                *(("count", task) for task in range(2)),
                *(("count2", task) for task in range(3)),
                ("gcommit", 0),
            ]
        check_tables(test, all_rows(records))


# --- an empty batch ------------------------------------------------------------------------------------


@each("at", [None, Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
def test_an_opaque_replay_that_finds_nothing_is_counted_as_0(at: Point | None) -> None:
    """What the first attempt stored is gone from the state, and comes back in the next txid."""
    only = {"p0": FIRST["p0"]}
    with storm_source(only) as source, storm(OpaqueSpout, source) as test:
        test.process(1)
        test.fail(1, at=at)
        if at is Point.AFTER_COMMIT:
            check_tables(test, only["p0"][:2])
        source.hide("p0")
        replay = test.commit(1)
        assert replay.number == 2
        assert replay.partitions == {}
        assert emitted(replay) == {
            **{component: [] for component in ("id1", "id2", "sum", "count", "count2")},
            "global": [("global", 0)],
            "gcommit": [("gcommit", 0)],
        }
        assert test.table("storm_totals") == {"global": 0, "gcommit": 0}
        assert test.table("storm_sums") == test.table("storm_counts") == {}
        source.show("p0")
        test.run()
        assert test.emitted_by_txid("gcommit") == {
            1: [("gcommit", 0)],
            2: [("gcommit", 2)],
            3: [("gcommit", 2)],
        }
        check_tables(test, all_rows(only))


def counted(spout: Any, source: MemorySpout) -> Topology:
    """Storm's smallest topology: a global count by a committer of two tasks, one of which gets everything."""
    builder = TransactionalTopologyBuilder("counted", "spout", spout(source), 2)
    builder.set_bolt("count", CountAllInCommit(), 2).global_grouping("spout")
    return builder.build()


@BOTH
def test_a_task_without_tuples_emits_its_0_and_a_restart_counts_only_what_is_new(spout: Any) -> None:
    with (
        MemorySpout(
            "value string", {"a": list("abcd"), "b": list("dc")}, max_records_per_partition=3
        ) as source,
        TopologyTest(counted(spout, source)) as test,
    ):
        test.run()
        assert test.emitted_by_txid("count") == {
            1: [("count", 5), ("count", 0)],
            2: [("count", 1), ("count", 0)],
        }
        assert test.attempts(2)[0].received("count") == {0: 1, 1: 0}
        test.crash()
        source.append("a", "a", "b")
        test.restart()
        assert test.current == 3
        test.run()
        assert test.emitted_by_txid("count")[3] == [("count", 2), ("count", 0)]
        assert test.current == 4


# --- restart ---------------------------------------------------------------------------------------------


PERSIST = (Point.BEFORE_PERSIST, Point.AFTER_PERSIST)
DEATHS = [
    (spout, at)
    for spout in (OpaqueSpout, TransactionalSpout)
    for at in (None, *Point)
    if spout is TransactionalSpout or at not in PERSIST  # an opaque plan is stored with its commit
    if at is not Point.BETWEEN_COMMITS  # there is only one database
]


@pytest.mark.parametrize(("spout", "at"), DEATHS)
def test_a_restart_goes_on_where_the_first_run_ended(
    source: MemorySpout, spout: Any, at: Point | None
) -> None:
    """The driver dies with txid 2 processed or at a point of txid 2. Records arrive before the restart."""
    with storm(spout, source, commit="executors" if at in WRITE_POINTS else "driver") as test:
        test.commit(1)
        if at not in PERSIST:
            test.process(2)
        test.crash(at=at, txid=None if at is None else 2)
        before = test.attempts(2)[-1] if test.attempts(2) else None
        append(source, MORE)
        test.restart()
        committed = at in (Point.AFTER_COMMIT, Point.BEFORE_ADVANCE, Point.AFTER_ADVANCE)
        assert test.current == (3 if committed else 2)
        test.run()
        records = joined(FIRST, MORE)
        if not committed and before is not None:
            after = test.attempts(2)[-1]
            assert before.state is LOST
            assert after.id.attempt > before.id.attempt
            same = emitted(after, IN_PROCESSING) == emitted(before, IN_PROCESSING)
            assert same is (spout is TransactionalSpout), "only an opaque replay may hold other tuples"
        for txid in range(3 if committed else 1, test.current):
            attempt = test.attempts(txid)[-1]
            assert emitted(attempt) == expected(held(attempt, records))
        check_tables(test, all_rows(records))


# --- a partition that is away ----------------------------------------------------------------------------


@pytest.mark.parametrize("at", [None, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
def test_an_opaque_replay_goes_on_without_a_partition_and_its_tuples_come_later(
    source: MemorySpout, at: Point | None
) -> None:
    """The tuples that are away include the only one of its word, which the first attempt may have stored."""
    append(source, MORE)
    records = joined(FIRST, MORE)
    with storm(OpaqueSpout, source) as test:
        test.process(2)
        assert test.attempts(1)[0].partitions.keys() >= {"p0", "p1", "p2"}
        test.fail(1, at=at)
        source.hide("p1", "its broker is gone")
        replayed = test.commit(2)
        for txid in (1, 2):
            assert "p1" not in test.attempts(txid)[-1].partitions
            assert test.attempts(txid)[-1].partitions != test.attempts(txid)[0].partitions
        assert replayed.metas.unavailable.keys() == {"p1"}
        check_tables(test, [row for txid in (1, 2) for row in held(test.attempts(txid)[-1], records)])

        source.show("p1")
        later = test.commit(3)
        assert (later.partitions["p1"].start, later.partitions["p1"].end) == (0, 2)
        test.run()
        for txid in range(1, test.current):
            attempt = test.attempts(txid)[-1]
            assert emitted(attempt) == expected(held(attempt, records))
        check_tables(test, all_rows(records))


def test_a_transactional_replay_waits_for_its_partition_and_holds_the_same_tuples(
    source: MemorySpout,
) -> None:
    with storm(TransactionalSpout, source) as test:
        test.process(2)
        test.fail(1)
        source.hide("p1", "its broker is gone")
        with pytest.raises(NotReachedError, match="it waits for partition p1 since"):
            test.commit(1)
        source.show("p1")
        test.commit(2)
        for txid in (1, 2):
            old, new = test.attempts(txid)
            assert new.partitions == old.partitions
            assert emitted(new, IN_PROCESSING) == emitted(old, IN_PROCESSING)
        check_tables(test, all_rows(FIRST))


# --- a committer right below an opaque spout ---------------------------------------------------------------


def keyed(source: MemorySpout) -> Topology:
    builder = TransactionalTopologyBuilder("keyed", "spout", OpaqueSpout(source), 2, max_spout_pending=2)
    builder.set_committer_bolt("count", CountByWord(), 2).fields_grouping("spout", "word")
    return builder.build()


def test_a_keyed_committer_below_an_opaque_spout_counts_in_the_commit_only() -> None:
    words = {"p0": ["oak", "elm", "ash", "oak"]}
    with (
        MemorySpout("word string", words, max_records_per_partition=2) as source,
        TopologyTest(keyed(source)) as test,
    ):
        test.process(2)
        assert test.calls() == []
        assert sorted(test.commit(1).emitted("count")) == [("elm", 1), ("oak", 1)]
        assert {call.attempt.txid for call in test.calls()} == {1}
        assert sorted(test.commit(2).emitted("count")) == [("ash", 1), ("oak", 1)]


# --- as a user starts it -----------------------------------------------------------------------------------


def test_the_example_is_a_topology_over_kafka() -> None:
    built = topology("amounts", "transactional", prefix="mine")
    assert [component.id for component in built.bolts if component.phase is Phase.COMMIT] == [
        "gcommit",
        "count",
        "store_totals",
        "count2",
        "store_sums",
        "store_counts",
    ]
    assert {bolt.state.table for bolt, _ in built.states} == {"mine_totals", "mine_sums", "mine_counts"}
