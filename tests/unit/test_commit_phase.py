"""The commit phase of user-written committers: errors, timeouts, replays, states and databases."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.committing import (
    BATCHES,
    WORDS,
    Custody,
    Trouble,
    Troubled,
    TroubledCommitter,
    check_tables,
    committing,
    meeting,
    state,
    watch_runners,
    word_source,
)
from support.lists import each
from support.storm import states

from txstream.api.bolts import BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Phase, Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    StateValueError,
    TopologyError,
)
from txstream.core.fault_points import Point
from txstream.plugins.testing.recorded_calls import CallKind
from txstream.spouts.memory import MemorySpout
from txstream.state import TopologyStates, open_database, place_of
from txstream.testing import AttemptState, NotReachedError, TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
COMMITTED, DROPPED, FAILED = AttemptState.COMMITTED, AttemptState.DROPPED, AttemptState.FAILED


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with word_source() as spout:
        yield spout


@pytest.fixture
def custody(monkeypatch: pytest.MonkeyPatch) -> Custody:
    return watch_runners(monkeypatch)


# --- errors of committers ------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("component", ["upper", "lower"])
@pytest.mark.parametrize("method", ["prepare", "execute", "finish_batch"])
def test_a_committers_exception_tells_where_and_this_and_all_later_attempts_go_again(
    source: MemorySpout, component: str, method: str, width: int
) -> None:
    trouble = Trouble(component, method, ValueError("out of ink"))
    with TopologyTest(committing(source), width=width) as test, meeting(trouble):
        test.process(2)
        assert trouble.met == 0, "a call of the commit phase came before its time"
        test.commit(1)
        failed = test.attempts(1)[0]
        error = failed.error
        assert isinstance(error, BoltError)
        assert str(error).startswith(f"{failed.id}, component '{component}', task ")
        assert ": ValueError: out of ink (in committing.py, line " in str(error)
        assert ("while processing Tuple(word=" in str(error)) is (method == "execute")
        assert f", in {method}" in "".join(error.__notes__)
        assert states(test, 1) == [FAILED, COMMITTED]
        assert states(test, 2)[0] is DROPPED
        assert test.attempts(1)[1].id.attempt > failed.id.attempt
        check_tables(test, BATCHES[:1])
        test.run()
        check_tables(test, BATCHES)


@BOTH
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_a_bug_in_the_commit_phase_ends_the_topology_after_max_attempts(
    source: MemorySpout, spout: Any, max_attempts: int
) -> None:
    trouble = Trouble("lower", "finish_batch", KeyError("elm"), times=max_attempts, txid=2)
    with TopologyTest(committing(source, spout, max_attempts=max_attempts)) as test, meeting(trouble):
        with pytest.raises(BoltError, match=r"component 'lower', task \d: KeyError: 'elm'") as caught:
            test.commit(3)
        last = test.attempts(2)[-1]
        assert str(caught.value).startswith(f"{last.id}, ")
        assert states(test, 2) == max_attempts * [FAILED]
        check_tables(test, BATCHES[:1])
        test.restart()
        assert test.current == 2
        test.run()
        check_tables(test, BATCHES)


def test_a_committers_batch_failed_error_is_told_once_and_replayed_without_limit(
    source: MemorySpout, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = Trouble("upper", "finish_batch", BatchFailedError("the printer is busy"), times=9, txid=2)
    topology = committing(source, max_attempts=2)
    with caplog.at_level(logging.INFO, "txstream"), TopologyTest(topology) as test, meeting(trouble):
        test.run()
        assert states(test, 2) == [*9 * [FAILED], COMMITTED]
        check_tables(test, BATCHES)
        with closing(open_database(test.database_url)) as database:
            row = database.batch(topology.id, 2)
        assert row is not None
        assert "component 'upper', task 0: the printer is busy" in str(row.error)
    told = [record for record in caplog.records if "the printer is busy" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING", *8 * ["INFO"]]
    assert all(record.exc_info is None for record in told)


def test_an_error_in_the_data_of_a_state_below_a_committer_ends_the_topology_at_once(
    source: MemorySpout,
) -> None:
    class NoWord(BatchBolt, Committer):
        output = "word string, n bigint"

        def execute(self, tup: Tuple) -> None:
            self.collector.emit((None, 1))

    builder = TransactionalTopologyBuilder("null-key", "words", OpaqueSpout(source))
    builder.set_bolt("late", NoWord()).global_grouping("words")
    builder.set_bolt("store", SqlStateBolt(state("counts"))).fields_grouping("late", "word")
    with TopologyTest(builder.build()) as test:
        with pytest.raises(
            StateValueError, match=r"component 'store', task 0: key column 'word'.*got a null"
        ):
            test.commit(1)
        assert states(test, 1) == [FAILED]


# --- a committer below a committer ------------------------------------------------------------------------


@BOTH
def test_a_committer_below_a_committer_is_in_the_same_commit_and_fails_it_whole(
    source: MemorySpout, spout: Any, custody: Custody
) -> None:
    trouble = Trouble("lower", "execute", BatchFailedError("later"), txid=1)
    with TopologyTest(committing(source, spout)) as test, meeting(trouble):
        test.run()
        failed, committed = test.attempts(1)
        assert custody.committed.count(failed.id) == custody.committed.count(committed.id) == 1
        assert len(custody.committed) == 4, "one commit of each attempt that came so far"

        def finished(attempt: Any) -> list[str]:
            return [
                call.component
                for call in test.calls(1)
                if (call.attempt, call.phase) == (attempt.id, Phase.COMMIT)
                and call.kind is CallKind.FINISH_BATCH
            ]

        assert finished(failed) in (["upper"], ["upper", "upper"]), "it failed below them"
        assert finished(committed) == ["upper", "upper", "lower", "lower"]
        check_tables(test, BATCHES)


# --- time ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("component", "done"), [("plain", "processed"), ("upper", "through its commit phase")]
)
def test_an_attempt_that_is_too_slow_is_given_up_and_what_it_does_later_counts_nothing(
    source: MemorySpout, spout: Any, component: str, done: str, custody: Custody
) -> None:
    """The slow bolt goes on after its attempt is given up, and finishes."""
    with TopologyTest(committing(source, spout)) as test:

        def is_slow() -> None:
            test.clock.advance(29)
            assert not custody.cancelled
            test.clock.advance(1)
            custody.wait_until(lambda: bool(custody.cancelled), "the attempt to be cancelled")

        with meeting(Trouble(component, "finish_batch", is_slow, txid=1)):
            test.commit(1)
            slow, new = test.attempts(1)
            assert isinstance(slow.error, BatchTimeoutError)
            assert f"{slow.id} was not {done} within 30 s (message_timeout_seconds)" in str(slow.error)
            assert (slow.state, new.state) == (FAILED, COMMITTED)
            assert custody.cancelled >= {slow.id}
            check_tables(test, BATCHES[:1])
            test.run()
            check_tables(test, BATCHES)


@pytest.mark.parametrize("component", ["plain", "upper"])
def test_a_bolt_that_hangs_costs_its_attempt_and_says_where_it_is(
    source: MemorySpout, component: str, custody: Custody, caplog: pytest.LogCaptureFixture
) -> None:
    """The bolt never goes on while the topology runs. The next attempt is committed beside it."""
    hangs, let_go = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        assert let_go.wait(60)

    def time_passes() -> None:
        assert hangs.wait(60)
        test.clock.advance(30)

    trouble = Trouble(component, "finish_batch", hang, txid=1)
    with TopologyTest(committing(source)) as test, meeting(trouble), ThreadPoolExecutor(1) as pool:
        try:
            passing = pool.submit(time_passes)
            test.run()
            passing.result()
            assert states(test, 1) == [FAILED, COMMITTED]
            hanging, _ = test.attempts(1)
            assert isinstance(hanging.error, BatchTimeoutError)
            check_tables(test, BATCHES)
        finally:
            let_go.set()
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    about = [
        getattr(record, "about", None)
        for record in caplog.records
        if (text := record.getMessage()).startswith(f"{hanging.id}, in finish_batch (committing.py, line ")
        and text.endswith("was cancelled and still runs; what it does from now on is not used")
    ]
    assert about, told
    assert {*about} == {hanging.id}, "the attempt, for lines of JSON"
    assert any("(message_timeout_seconds)" in text for text in told), "a person is told of the timeout"


def test_a_test_ends_though_a_bolt_hangs(source: MemorySpout) -> None:
    let_go = threading.Event()
    test = TopologyTest(committing(source), deadline_seconds=2.0)
    trouble = Trouble("upper", "finish_batch", lambda: assert_set(let_go), txid=1)
    try:
        with (
            pytest.raises(NotReachedError, match=r"still runs: txid 1 attempt .* in finish_batch \(commit"),
            test,
            meeting(trouble),
        ):
            test.commit(1)
    finally:
        let_go.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(60)


def test_past_its_bolts_a_commit_waits_for_its_database_as_long_as_it_takes(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = TopologyStates.commit
    with TopologyTest(committing(source, max_spout_pending=1)) as test:

        def slow(self: TopologyStates, *arguments: Any, **options: Any) -> None:
            test.clock.advance(1000)
            commit(self, *arguments, **options)

        monkeypatch.setattr(TopologyStates, "commit", slow)
        test.run()
        assert [states(test, txid) for txid in (1, 2, 3)] == 3 * [[COMMITTED]]
        check_tables(test, BATCHES)


# --- states below, beside and none -----------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("at", [Point.BEFORE_COMMIT, Point.INSIDE_COMMIT, Point.AFTER_COMMIT])
def test_states_below_and_beside_a_committer_are_exact_after_failures_in_the_commit(
    source: MemorySpout, spout: Any, at: Point
) -> None:
    trouble = Trouble("lower", "finish_batch", ValueError("once"), txid=2, task=1)
    with TopologyTest(committing(source, spout)) as test, meeting(trouble):
        test.process(2)
        test.fail(1, at=at)
        check_tables(test, BATCHES[:1] if at is Point.AFTER_COMMIT else [])
        test.fail(1, at=at)
        test.commit(2)
        check_tables(test, BATCHES[:2])
        test.fail(3, at=at)
        test.crash(at=at, txid=3)
        test.restart()
        test.run()
        check_tables(test, BATCHES)
        assert states(test, 1) == [FAILED, FAILED, COMMITTED]


def without_state(source: MemorySpout, spout: Any) -> Topology:
    builder = TransactionalTopologyBuilder("stateless", "words", spout(source, max_batch_records=2), 2)
    builder.set_committer_bolt("only", Troubled(), 2).fields_grouping("words", "word")
    return builder.build()


@BOTH
def test_a_topology_without_a_state_has_its_fence_and_ledger_in_the_default_database(
    source: MemorySpout, spout: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'default.db'}"
    trouble = Trouble("only", "finish_batch", BatchFailedError("later"), txid=2)
    with TopologyTest(without_state(source, spout), database=url) as test, meeting(trouble):
        test.commit(1)
        test.crash(at=Point.AFTER_COMMIT, txid=2)
        with closing(open_database(url)) as database:
            fence, rows = database.read_fence("stateless"), database.batches("stateless")
        attempts = [test.attempts(1)[-1].id, test.attempts(2)[-1].id]
        assert fence is not None
        assert fence.attempt == attempts[1].attempt
        assert [(row.txid, row.attempt, row.status, row.keys) for row in rows] == [
            (attempt.txid, attempt.attempt, "committed", 0) for attempt in attempts
        ]
        before = len(test.calls(2))
        test.restart()
        assert test.current == 3, "the ledger tells that txid 2 is committed"
        test.run()
        assert len(test.calls(2)) == before, "what is committed ran again"
        emitted = test.emitted_by_txid("only")
        assert {txid: sorted(rows) for txid, rows in emitted.items()} == {
            txid: sorted(Counter(batch).items()) for txid, batch in enumerate(BATCHES, 1)
        }


# --- several databases -------------------------------------------------------------------------------------


def stored(url: str, table: str) -> dict[str, int]:
    """Return what a table holds, read by a plain connection."""
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        return dict(connection.execute(f"SELECT word, n FROM {table}"))


def two_databases(source: MemorySpout, spout: Any, first: str | None, second: str | None) -> Topology:
    """One table name in two databases: how often each word came, and in how many batches."""
    builder = TransactionalTopologyBuilder(
        "two-databases", "words", spout(source, max_batch_records=2), 2, max_spout_pending=2
    )
    builder.set_committer_bolt("upper", Troubled(), 2).fields_grouping("words", "word")
    builder.set_bolt("lower", TroubledCommitter(), 2).fields_grouping("upper", "word")
    builder.set_bolt("one", SqlStateBolt(state("counts", first))).fields_grouping("upper", "word")
    builder.set_bolt("two", SqlStateBolt(state("counts", second))).fields_grouping("lower", "word")
    return builder.build()


@BOTH
def test_two_states_with_one_table_name_in_two_databases_get_their_own_deltas(
    source: MemorySpout, spout: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second database refuses txid 2 once, after the first has committed it."""
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    commit = TopologyStates.commit
    refused: list[Any] = []

    def refusing(self: TopologyStates, batch: Any, **options: Any) -> None:
        if batch.attempt.txid == 2 and "second" in self.display_url and not refused:
            refused.append(batch.attempt)
            assert stored(urls[0], "counts") == Counter(WORDS[:4])
            raise BatchFailedError("the disk is full")
        commit(self, batch, **options)

    monkeypatch.setattr(TopologyStates, "commit", refusing)
    with TopologyTest(two_databases(source, spout, None, urls[1]), database=urls[0]) as test:
        test.run()
        assert refused == [test.attempts(2)[0].id]
        assert states(test, 2) == [FAILED, COMMITTED]
        committed = test.attempts(2)[1]
        assert (committed.deltas("one"), committed.deltas("two")) == ([("oak", 2)], [("oak", 1)])
        assert stored(urls[0], "counts") == Counter(WORDS)
        assert stored(urls[1], "counts") == Counter(word for batch in BATCHES for word in set(batch))


@pytest.mark.parametrize("default_is_first", [True, False])
def test_two_states_with_one_table_in_one_database_are_refused_however_it_is_named(
    source: MemorySpout, tmp_path: Path, default_is_first: bool
) -> None:
    """Only a run knows the default database."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    places = (None, url) if default_is_first else (url, None)
    test = TopologyTest(two_databases(source, OpaqueSpout, *places), database=url)
    with pytest.raises(TopologyError, match="components 'one' and 'two' both write table 'counts'"), test:
        pass


def test_one_database_spelled_in_two_ways_has_one_fence_and_one_ledger(
    source: MemorySpout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    builder = TransactionalTopologyBuilder("t", "words", OpaqueSpout(source, max_batch_records=2))
    for table, url in (("a", "sqlite:///state.db"), ("b", f"sqlite:///{tmp_path / 'state.db'}")):
        counted = SqlState(table, key="word string", value="n bigint", url=url)
        builder.set_bolt(table, SqlStateBolt(counted, n=Count())).fields_grouping("words", "word")
    with TopologyTest(builder.build()) as test:
        test.run()
    for table in ("a", "b"):
        assert stored(f"sqlite:///{tmp_path / 'state.db'}", table) == Counter(WORDS)


@each(
    ("one", "other", "same"),
    [
        ("postgresql://host/x", "postgresql+psycopg://me@HOST:5432/x?sslmode=require", True),
        ("postgresql://host/x", "postgresql://host/y", False),
        ("postgresql://host/x", "postgresql://host:5433/x", False),
        ("sqlite:///a.db", "sqlite:///./b/../a.db", True),
        ("sqlite:///a.db", "sqlite:///b.db", False),
        ("no url", "no url", True),
    ],
)
def test_what_urls_mean_the_same_database(one: str, other: str, same: bool) -> None:
    assert (place_of(one) == place_of(other)) is same
