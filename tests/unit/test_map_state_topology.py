"""Committers' own states in whole topologies are exact after failures, crashes and replays."""

from __future__ import annotations

import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.committing import WORDS, word_source
from support.lists import each
from support.map_states import BALANCES, FIELDS, Ledger, bank, check, committed, expected, movements

from txstream.api.bolts import BatchBolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    ServiceUnavailableError,
    StateValueError,
    UsageError,
)
from txstream.core.fault_points import Point
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase, TopologyStates, open_database
from txstream.testing import AttemptState, TopologyTest

RECORDS = {"p0": movements(9), "p1": movements(9, start=20)}
PLACES = [Point.BEFORE_COMMIT, Point.INSIDE_BEGIN, Point.AFTER_BEGIN, Point.INSIDE_COMMIT]
BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout(FIELDS, RECORDS, max_records_per_partition=3) as spout:
        yield spout


def ledger() -> Ledger:
    """Return a bolt whose states are opaque below either spout, so that one may decide about another."""
    return Ledger()


@BOTH
@pytest.mark.parametrize("width", [1, 2])
def test_without_failures(source: MemorySpout, spout: Any, width: int) -> None:
    with TopologyTest(bank(source, ledger(), spout), width=width) as test:
        test.run()
        assert test.current == 4
        check(test, RECORDS)
        with closing(open_database(test.database_url)) as database:
            rows = [database.batch("bank", txid) for txid in (1, 2, 3)]
        tables = [expected(committed(test, RECORDS)[txid : txid + 1]) for txid in range(3)]
    assert rows[0] is not None
    assert rows[0].keys == sum(len(table) for table in tables[0].values())
    assert {row.details["path"] for row in rows if row is not None} == {"executors"}


@BOTH
@pytest.mark.parametrize("at", PLACES)
def test_an_attempt_that_fails_counts_nothing_and_its_replay_once(
    source: MemorySpout, spout: Any, at: Point
) -> None:
    """An opaque replay holds other tuples, because a partition is away."""
    with TopologyTest(bank(source, ledger(), spout), width=2) as test:
        test.commit(1)
        test.crash(at=at, txid=2)
        if spout is OpaqueSpout:
            source.hide("p1")
        test.restart()
        test.crash(at=at, txid=2)
        test.restart()
        test.commit(2)
        source.show("p1")
        check(test, RECORDS)
        test.run()
        check(test, RECORDS)


@BOTH
def test_an_attempt_that_is_committed_is_not_run_again_by_the_next_leader(
    source: MemorySpout, spout: Any
) -> None:
    with TopologyTest(bank(source, ledger(), spout)) as test:
        test.crash(at=Point.AFTER_COMMIT, txid=1)
        calls = len(test.calls(1))
        test.restart()
        assert (test.current, len(test.calls(1))) == (2, calls)
        test.run()
        check(test, RECORDS)


class Flaky(Ledger):
    """One of its two tasks fails in the first attempts, after the other has written."""

    failures: list[Exception] = []  # noqa: RUF012 - shared with the test, since the bolt is pickled

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.context.task_index == 1 and self.failures:
            raise self.failures.pop()


@BOTH
def test_a_task_that_has_written_is_undone_when_another_fails(source: MemorySpout, spout: Any) -> None:
    Flaky.failures = [BatchFailedError("later"), ValueError("out of ink")]
    with TopologyTest(bank(source, Flaky(), spout), width=1) as test:
        test.run()
        assert [attempt.state for attempt in test.attempts(1)][-1] is AttemptState.COMMITTED
        assert len(test.attempts(1)) == 3
        assert isinstance(test.attempts(1)[0].error, BoltError)
        check(test, RECORDS)


def refuse_writes(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[Exception]:
    """Make the database fail tasks' writes with `errors`: before the write if one says so, else after it."""
    left, write = list(errors), TopologyStates.write

    def failing(self: TopologyStates, *arguments: Any, **options: Any) -> int:
        error = left.pop(0) if left else None
        if isinstance(error, ServiceUnavailableError) and "before" in str(error):
            raise error
        rows = write(self, *arguments, **options)
        if error is not None:
            raise error
        return rows

    monkeypatch.setattr(TopologyStates, "write", failing)
    return left


@BOTH
def test_a_write_that_fails_fails_the_attempt_which_then_counts_once(
    source: MemorySpout, spout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = refuse_writes(
        monkeypatch, ServiceUnavailableError("before the first row"), ServiceUnavailableError("answer lost")
    )
    with TopologyTest(bank(source, ledger(), spout), width=2) as test:
        test.run()
        assert left == []
        assert len(test.attempts(1)) == 3
        assert "component 'ledger', task 0: host " in str(test.attempts(1)[0].error)
        check(test, RECORDS)


def test_a_database_that_cannot_be_read_has_the_batch_replayed(
    source: MemorySpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, left = StateDatabase.read, [ServiceUnavailableError("away"), ServiceUnavailableError("away")]

    def failing(self: StateDatabase, *arguments: Any, **options: Any) -> Any:
        if left:
            raise left.pop()
        return read(self, *arguments, **options)

    monkeypatch.setattr(StateDatabase, "read", failing)
    with TopologyTest(bank(source), width=2) as test:
        test.run()
        assert len(test.attempts(1)) == 3
        assert isinstance(test.attempts(1)[0].error, ServiceUnavailableError)
        check(test, RECORDS)


# --- an attempt that goes on though it was given up -----------------------------------------------------


class Slow(Ledger):
    """Calls the test once, from within an attempt."""

    meet: list[Any] = []  # noqa: RUF012 - shared with the test, since the bolt is pickled

    def finish_batch(self) -> None:
        super().finish_batch()
        if self.meet:
            self.meet.pop()()


@BOTH
def test_a_task_of_an_attempt_that_was_superseded_writes_nothing(source: MemorySpout, spout: Any) -> None:
    """While the task works, another attempt of the same batch and the same leader takes the fence."""
    refused: list[str] = []
    with TopologyTest(bank(source, Slow(), spout), width=1) as test:
        test.commit(1)
        before = {name: test.rows(name) for name in ("balances", "seen", "round")}

        def supersede() -> None:
            with closing(sqlite3.connect(test.database_url.removeprefix("sqlite:///"))) as connection:
                connection.execute("UPDATE txstream_fence SET attempt = attempt + 1")
                connection.commit()

        Slow.meet = [supersede]
        with pytest.raises(Exception, match="fence") as caught:
            test.commit(2)
        refused.append(type(caught.value).__name__)
        assert {name: test.rows(name) for name in before} == before
    assert refused == ["StaleAttemptError"]


def test_an_attempt_that_is_too_slow_is_given_up_and_writes_nothing(source: MemorySpout) -> None:
    with TopologyTest(bank(source, Slow()), width=1) as test:
        Slow.meet = [lambda: test.clock.advance(31)]
        test.commit(1)
        assert len(test.attempts(1)) == 2
        check(test, RECORDS)
        test.run()
        check(test, RECORDS)


# --- several databases -------------------------------------------------------------------------------------


class TwoPlaces(Ledger):
    """Balances in one database, the rest in another."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(url=second)
        here = SqlState("balances", key="account string", value="balance bigint", url=first)
        self.states = {**self.states, "balances": here}


@BOTH
@pytest.mark.parametrize("at", [Point.AFTER_BEGIN, Point.INSIDE_COMMIT, Point.BETWEEN_COMMITS])
def test_two_databases_are_exact_when_one_has_a_batch_and_the_other_has_not(
    source: MemorySpout, spout: Any, at: Point, tmp_path: Path
) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    with TopologyTest(bank(source, TwoPlaces(*urls), spout), database=urls[0]) as test:
        test.commit(1)
        for _ in range(2):
            test.crash(at=at, txid=2)
            test.restart()
        test.run()
        check(test, RECORDS)
        keys = []
        for url in urls:
            with closing(open_database(url)) as database:
                keys.append([row.keys for row in database.batches("bank")])
        assert all(count > 0 for counts in keys for count in counts), "each has its own rows in its ledger"


def test_a_second_write_that_fails_undoes_the_first(
    source: MemorySpout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [f"sqlite:///{tmp_path / name}.db" for name in ("first", "second")]
    write, left = TopologyStates.write, [ServiceUnavailableError("the disk is full")]

    def failing(self: TopologyStates, *arguments: Any, **options: Any) -> int:
        if left and "second" in self.display_url:
            raise left.pop()
        return write(self, *arguments, **options)

    monkeypatch.setattr(TopologyStates, "write", failing)
    with TopologyTest(bank(source, TwoPlaces(*urls)), database=urls[0]) as test:
        test.run()
        assert not left
        assert len(test.attempts(1)) == 2
        check(test, RECORDS)


# --- what cannot be stored -------------------------------------------------------------------------------


class Wrong(BatchBolt, Committer):
    """Does something wrong with its state."""

    states = {"balances": BALANCES}  # noqa: RUF012 - as a user would write it
    kept: list[Any] = []  # noqa: RUF012 - the mistake of the test below

    def __init__(self, how: str) -> None:
        self.how = how

    def execute(self, tup: Tuple) -> None: ...

    def finish_batch(self) -> None:
        state = self.context.state("balances")
        match self.how:
            case "null":
                state.update("a", lambda old: None)
            case "key":
                state.get(7)
            case "unknown":
                self.context.state("balance")
            case "foreign":
                state.put("a1", self.context.task_index)
            case "kept":
                if self.kept:
                    self.kept[0].put("a", 1)
                self.kept.append(state)
            case "kept of a failure":
                if self.kept:
                    self.kept[0].put("a", 1)
                self.kept.append(state)
                raise BatchFailedError("later")


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        (
            "null",
            StateValueError,
            r"state 'balances' \(table 'balances'\), key account='a': .* there is no null",
        ),
        ("key", StateValueError, "key account=7: key column 'account' .* cannot hold 7"),
        ("unknown", UsageError, "'keep' declares no state 'balance'; it declares 'balances'"),
        ("foreign", StateValueError, r"key account='a1': its tuples come to task [01], so another task"),
        ("kept", UsageError, "was used outside of its attempt"),
        ("kept of a failure", UsageError, "was used outside of its attempt"),
    ],
)
def test_what_is_wrong_is_told_with_component_state_and_key(
    source: MemorySpout, how: str, kind: type[Exception], message: str
) -> None:
    Wrong.kept = []
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(source))
    builder.set_bolt("keep", Wrong(how), 2).fields_grouping("lines", "account")
    with TopologyTest(builder.build()) as test, pytest.raises(kind, match=message) as caught:
        test.commit(2)
    assert ", component 'keep', task " in str(caught.value)


# --- other semantics -------------------------------------------------------------------------------------


class Tally(BatchBolt, Committer):
    """Counts words in a state of its own, with one update for each word."""

    states = {"words": SqlState("words", key="word string", value="n bigint")}  # noqa: RUF012 - as a user

    def execute(self, tup: Tuple) -> None:
        self.context.state("words").update(tup["word"], lambda old: (old or 0) + 1)


class TallyTwice(Tally):
    """Fails after its first attempt has written."""

    failures: list[Exception] = []  # noqa: RUF012 - shared with the test

    def finish_batch(self) -> None:
        if self.context.task_index == 1 and self.failures:
            raise self.failures.pop()


def tally(source: MemorySpout, spout: Any) -> Topology:
    builder = TransactionalTopologyBuilder("tally", "words", spout(source, max_batch_records=2))
    bolt = TallyTwice()
    bolt.states = {"words": replace(bolt.states["words"], semantics=spout.semantics)}
    builder.set_bolt("tally", bolt, 2).fields_grouping("words", "word")
    return builder.build()


@each("spout", [OpaqueSpout, TransactionalSpout, NonTransactionalSpout])
def test_a_transactional_table_skips_what_it_has_and_a_plain_one_counts_it_twice(spout: Any) -> None:
    TallyTwice.failures = [BatchFailedError("later")]
    with word_source() as source, TopologyTest(tally(source, spout), width=1) as test:
        test.run()
        assert len(test.attempts(1)) == 2
        wrote = test.table("words")
    if spout is NonTransactionalSpout:
        assert sum(wrote.values()) > len(WORDS), "task 0 had written before task 1 failed"
    else:
        assert wrote == Counter(WORDS)


@BOTH
def test_a_cache_is_used_after_each_commit_and_after_a_failure_is_not(
    source: MemorySpout, spout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every word is in every batch, so rows are read only when the cache is empty."""
    read, asked = StateDatabase.read, Counter[int]()

    def counting(self: StateDatabase, spec: Any, keys: Any, *, before: Any) -> Any:
        asked[before] += keys.num_rows
        return read(self, spec, keys, before=before)

    monkeypatch.setattr(StateDatabase, "read", counting)
    bolt = Tally()
    bolt.states = {"words": replace(bolt.states["words"], cache_rows=10)}
    words = MemorySpout("word string", {"p": 5 * ["ash", "elm", "fir", "oak"]}, max_records_per_partition=4)
    builder = TransactionalTopologyBuilder("tally", "words", spout(words))
    builder.set_bolt("tally", bolt, 2).fields_grouping("words", "word")
    with words, TopologyTest(builder.build(), width=1) as test:
        test.commit(2)
        test.fail(3, at=Point.INSIDE_COMMIT)
        test.commit(4)
        assert asked == {1: 4, 3: 4}, "the replay of txid 3 knew nothing, all other attempts everything"
        test.crash()
        test.restart()
        test.run()
        assert asked == {1: 4, 3: 4, 5: 4}, "a new leader begins without"
        assert test.table("words") == dict.fromkeys(["ash", "elm", "fir", "oak"], 5)


def test_nothing_is_logged_of_a_batch_that_goes_well(
    source: MemorySpout, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "txstream"), TopologyTest(bank(source)) as test:
        test.run()
    assert not caplog.records
