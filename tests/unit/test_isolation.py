"""A batch that fails because of single records commits without them; each is in exactly one place."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.lists import each

from txstream import (
    BasicBolt,
    BatchBolt,
    BatchFailedError,
    BoltError,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    StateValueError,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
    custom,
)
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BatchTimeoutError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.record_search import FailingRecord
from txstream.engine.letters.isolation import Isolated, Isolation
from txstream.engine.letters.retry_policy import AttemptTime
from txstream.engine.letters.rows import _headers
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.memory import MemoryRange
from txstream.state.registry import open_database
from txstream.testing import ManualClock, TopologyTest

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
ALL = DeadLetters(max_per_batch=100, max_share=1.0)
WORDS = [f"w{number % 7}" for number in range(60)]


class Parse(BasicBolt):
    """Fails at each word that begins with "bad". It counts its tuples, so nobody knows what a bad one has
    changed, and an attempt has to search (`test_leaving_out` has the others)."""

    output = "word string"
    calls: ClassVar[Counter[str]] = Counter()
    tuples = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        self.tuples += 1
        self.calls[word] += 1
        if word.startswith("bad"):
            raise ValueError(f"{word} is no word")
        if word.startswith("later") and self.calls[word] == 1:
            raise BatchFailedError("a service is away for a moment")
        if word.startswith("once") and self.calls[word] == 1:
            raise ValueError("once")
        if word.startswith("twice") and self.calls[word] <= 2:
            raise ValueError("twice")
        collector.emit((word,))


class Together(BatchBolt):
    """Fails at the end of a batch that holds both of two words, or the word "alone"."""

    output = "word string"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        self.collector = collector
        self.seen: set[str] = set()

    def execute(self, tup: Tuple) -> None:
        self.seen.add(tup["word"])
        self.collector.emit((tup["word"],))

    def finish_batch(self) -> None:
        if {"this", "that"} <= self.seen or "alone" in self.seen:
            raise RuntimeError("too much")


def topology(
    source: MemorySpout,
    spout: type[OpaqueSpout[Any] | TransactionalSpout[Any]] = OpaqueSpout,
    dead_letters: DeadLetters | None = ALL,
    *,
    batch: int = 500,
    pending: int = 2,
) -> Topology:
    builder = TransactionalTopologyBuilder(
        "words",
        "words",
        spout(source, max_batch_records=batch),
        dead_letters=dead_letters,
        max_attempts=3,
        max_spout_pending=pending,
    )
    builder.set_bolt("parse", Parse()).shuffle_grouping("words")
    builder.set_bolt("together", Together(), parallelism=2).fields_grouping("parse", "word")
    state = SqlState("counts", key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("together", "word")
    return builder.build()


WORKERS = pytest.mark.parametrize("workers_look", [True, False], ids=["workers look", "trials only"])


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, workers_look: bool) -> list[str]:
    """The calls of the runner in which a batch, or a part of it, was processed. Unless `workers_look`, the
    job in which they should ends, as with a bolt that kills its process."""
    calls: list[str] = []
    run, find = InProcessRunner.run, InProcessRunner.find

    def noted_run(*given: Any) -> Any:
        calls.append("run")
        return run(*given)

    def noted_find(*given: Any, **options: Any) -> Any:
        calls.append("find")
        if not workers_look:
            raise BoltError("a worker process ended")
        return find(*given, **options)

    monkeypatch.setattr(InProcessRunner, "run", noted_run)
    monkeypatch.setattr(InProcessRunner, "find", noted_find)
    return calls


@pytest.fixture
def database(tmp_path: Path) -> str:
    Parse.calls.clear()
    return f"sqlite:///{tmp_path / 'state.db'}"


@contextmanager
def running(
    rows: Mapping[str, Sequence[Any]],
    database: str,
    spout: type[OpaqueSpout[Any] | TransactionalSpout[Any]] = OpaqueSpout,
    dead_letters: DeadLetters | None = ALL,
    *,
    batch: int = 500,
) -> Iterator[TopologyTest]:
    """A topology over these rows, by partition, batch by batch."""
    with MemorySpout("word string", rows) as source:
        given = topology(source, spout, dead_letters, batch=batch)
        with TopologyTest(given, database=database) as test:
            yield test


def dead(url: str) -> list[tuple[Any, ...]]:
    """Return txid, place, component, exception and word of each dead letter."""
    opened = open_database(url)
    try:
        return [
            (
                one.txid,
                one.place,
                one.letter.component,
                one.letter.exception,
                json.loads(one.letter.value or b"{}")["word"],
            )
            for one in opened.dead_letters("words")
        ]
    finally:
        opened.close()


def counted_words(words: Sequence[str], *without: str) -> dict[str, int]:
    return dict(Counter(word for word in words if word not in without))


@BOTH
@WORKERS
def test_bad_records_are_dead_and_all_others_counted(spout: Any, database: str, runner: list[str]) -> None:
    words = [*WORDS]
    words[3], words[31], words[32] = "bad1", "bad2", "bad3"
    with running({"p": words, "q": ["x", "bad4", "y"]}, database, spout, batch=40) as test:
        test.run()
        assert test.table("counts") == counted_words([*words, "x", "y"], "bad1", "bad2", "bad3")
    assert Counter(word for *_, word in dead(database)) == Counter(["bad1", "bad2", "bad3", "bad4"])
    assert {row[2:4] for row in dead(database)} == {("parse", "ValueError")}
    assert {row[1] for row in dead(database)} == {"p@3", "p@31", "p@32", "q@1"}


@pytest.mark.parametrize("workers_look", [True])
def test_one_attempt_finds_all_bad_records(database: str, runner: list[str]) -> None:
    words = ["bad1", *WORDS, "bad2", *WORDS, "alone"]
    with running({"p": words, "q": ["bad3", "x"], "r": ["y"]}, database) as test:
        test.run()
        assert len(test.attempts(1)) == 2
    assert runner == ["run", "find", "find", "run"]
    assert [row[1] for row in dead(database)] == ["p@0", "p@122", "p@61", "q@0"]


@pytest.mark.parametrize("workers_look", [True])
def test_a_record_that_fails_by_itself_in_one_job_only_is_not_dead(database: str, runner: list[str]) -> None:
    with running({"p": ["twice"]}, database) as test:
        test.run()
        assert test.table("counts") == {"twice": 1}
    assert runner == ["run", "find", "find", "run"]
    assert dead(database) == []


def test_workers_that_took_too_long_are_not_asked_again_for_that_batch() -> None:
    asked: list[AttemptId] = []

    def find(attempt: TransactionAttempt, parts: Sequence[Any], *, most: int) -> list[FailingRecord]:
        asked.append(attempt.attempt)
        raise BatchFailedError("cancelled")

    isolation: Isolation[str] = Isolation(ALL, lambda attempt, metas: "processed", print, find)
    batch: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 3)})

    def run(txid: int, attempt: int, *, is_wanted: Callable[[], bool]) -> Isolated[str]:
        return isolation.run(TransactionAttempt(Txid(txid), AttemptId(attempt)), batch, is_wanted)

    with pytest.raises(BatchFailedError):  # an outage: the next attempt may ask again
        run(1, 1, is_wanted=lambda: True)
    with pytest.raises(BatchFailedError):  # given up meanwhile
        run(1, 2, is_wanted=lambda: len(asked) < 2)
    assert run(1, 3, is_wanted=lambda: True).processed == "processed"
    assert asked == [1, 2]
    with pytest.raises(BatchFailedError):
        run(2, 4, is_wanted=lambda: True)
    assert asked == [1, 2, 4]


def test_message_and_traceback_are_the_bolts_own(database: str) -> None:
    with running({"p": ["bad", "b"]}, database) as test:
        test.run()
    opened = open_database(database)
    (row,) = opened.dead_letters("words")
    opened.close()
    assert row.letter.message.startswith("ValueError: bad is no word (in test_isolation.py, line ")
    assert "while processing" not in row.letter.message
    assert 'raise ValueError(f"{word} is no word")' in row.letter.traceback


def test_without_the_setting_the_run_ends_as_ever(database: str) -> None:
    with running({"p": ["a", "bad"]}, database, dead_letters=None) as test:
        with pytest.raises(BoltError, match="bad is no word"):
            test.run()
        assert len(test.attempts(1)) == 3
    assert dead(database) == []


def test_a_record_that_fails_in_finish_batch_is_found(database: str) -> None:
    with running({"p": [*WORDS, "alone", *WORDS]}, database) as test:
        test.run()
        assert test.table("counts") == counted_words([*WORDS, *WORDS])
    assert dead(database) == [(1, "p@60", "together", "RuntimeError", "alone")]


def test_records_that_fail_only_together_are_not_dead(database: str) -> None:
    with (
        MemorySpout("word string", {"p": ["this", "a", "that"]}) as source,
        TopologyTest(of_one_task(source), database=database) as test,
        pytest.raises(BoltError, match="too much"),
    ):
        test.run()
    assert dead(database) == []


def of_one_task(source: MemorySpout) -> Topology:
    builder = TransactionalTopologyBuilder(
        "words", "words", OpaqueSpout(source), dead_letters=ALL, max_attempts=3
    )
    builder.set_bolt("together", Together()).global_grouping("words")
    state = SqlState("counts", key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("together", "word")
    return builder.build()


def test_a_service_that_was_away_for_a_moment_makes_no_dead_letter(database: str) -> None:
    with running({"p": ["later", "once", "a"]}, database) as test:
        test.run()
        assert test.table("counts") == {"later": 1, "once": 1, "a": 1}
    assert dead(database) == []


@WORKERS
def test_above_the_limit_the_run_ends_with_the_first_error_and_nothing_is_dead(
    database: str, runner: list[str]
) -> None:
    with (
        MemorySpout("word string", {"p": ["bad1", "a", "bad2", "b"]}) as source,
        TopologyTest(topology(source, dead_letters=DeadLetters(max_per_batch=1)), database=database) as test,
        pytest.raises(BoltError, match="bad1 is no word") as raised,
    ):
        test.run()
    assert any("more records of the batch fail by themselves" in note for note in raised.value.__notes__)
    assert dead(database) == []


@WORKERS
def test_the_limits_of_a_small_batch_are_exact(database: str, runner: list[str]) -> None:
    bad = [f"bad{number}" for number in range(11)]
    with running({"p": [*WORDS, *bad[:10]]}, database, dead_letters=DeadLetters()) as test:
        test.run()
        assert test.table("counts") == counted_words(WORDS)
    assert len(dead(database)) == 10
    with (
        running({"p": [*WORDS, *bad]}, f"{database}2", dead_letters=DeadLetters()) as test,
        pytest.raises(BoltError, match="bad0 is no word"),
    ):
        test.run()
    assert dead(f"{database}2") == []


def test_a_healthy_batch_is_processed_once(database: str) -> None:
    with running({"p": ["a", "b"]}, database) as test:
        test.run()
    assert Parse.calls == {"a": 1, "b": 1}


@BOTH
def test_a_value_that_no_state_takes_is_found(spout: Any, database: str) -> None:
    with MemorySpout("word string", {"p": ["a", None, "b"]}) as source:
        builder = TransactionalTopologyBuilder(
            "words", "words", spout(source), dead_letters=ALL, max_attempts=3
        )
        state = SqlState("counts", key="word string", value="n bigint")
        builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("words", "word")
        with TopologyTest(builder, database=database) as test:
            test.run()
            assert test.table("counts") == {"a": 1, "b": 1}
    assert dead(database) == [(1, "p@1", "store", "StateValueError", None)]


class Hangs(BasicBolt):
    """Hangs at the word "hangs" until the test is over. At "slow" it hangs four times, and then never again.
    While it hangs, and does nothing else, the clock goes past one message timeout after the other."""

    output = "word string"
    clock: ClassVar[ManualClock]
    over: ClassVar[threading.Event]
    hung: ClassVar[Counter[str]] = Counter()
    calls: ClassVar[int] = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        Hangs.calls = call = Hangs.calls + 1
        if word == "hangs" or (word == "slow" and self.hung[word] < 4):
            self.hung[word] += 1
            while not self.over.wait(0.05):  # what was ended has some turns to end
                if call == Hangs.calls:
                    self.clock.advance(16)
        collector.emit((word,))


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManualClock]:
    monkeypatch.setattr(Hangs, "clock", ManualClock(), raising=False)
    monkeypatch.setattr(Hangs, "over", threading.Event(), raising=False)
    Hangs.hung.clear()
    yield Hangs.clock
    Hangs.over.set()


@contextmanager
def of_hanging(words: Sequence[str], spout: Any, database: str, clock: ManualClock) -> Iterator[TopologyTest]:
    with MemorySpout("word string", {"p": words}) as source:
        builder = TransactionalTopologyBuilder(
            "words", "words", spout(source), dead_letters=ALL, message_timeout_seconds=30
        )
        builder.set_bolt("hangs", Hangs()).shuffle_grouping("words")
        state = SqlState("counts", key="word string", value="n bigint")
        builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("hangs", "word")
        with TopologyTest(builder, database=database, clock=clock) as test:
            yield test
            Hangs.over.set()


@BOTH
def test_a_record_at_which_a_bolt_hangs_is_dead_once_the_batch_has_timed_out_twice(
    spout: Any, database: str, hanging: ManualClock
) -> None:
    words = ["a", "b", "c", "a", "b", "hangs", "a", "c"]
    with of_hanging(words, spout, database, hanging) as test:
        test.run()
        assert test.table("counts") == counted_words(words, "hangs")
        assert len(test.attempts(1)) > 2
    assert dead_places(database) == [("p@5", "", "BatchTimeoutError")]


def isolation_of(hangs: Callable[[set[int]], bool], tried: list[set[int]]) -> Isolation[str]:
    """A search over records of partition p, in which the trial of a part may hang until it is ended."""

    def process(attempt: TransactionAttempt, metas: BatchMetas[Any]) -> str:
        left_out = {one.offset for one in metas.excluded}
        part = set(range(metas.partitions["p"].start, metas.partitions["p"].end)) - left_out
        tried.append(part)
        if hangs(part):
            assert isolation.end_trial(attempt)
            assert not isolation.end_trial(attempt)
            raise BatchFailedError("cancelled")
        return "processed"

    def find(attempt: TransactionAttempt, parts: Sequence[Any], *, most: int) -> list[FailingRecord]:
        process(attempt, parts[0])
        return []

    isolation: Isolation[str] = Isolation(ALL, process, lambda _: None, find)
    return isolation


def search(isolation: Isolation[str], records: int) -> Isolated[str]:
    batch: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, records)})
    return isolation.run(TransactionAttempt(Txid(1), AttemptId(3)), batch, lambda: True)


def test_a_record_that_hangs_is_found_by_halving_and_tried_once_more_at_the_end() -> None:
    tried: list[set[int]] = []
    found = search(isolation_of(lambda part: 5 in part, tried), 8)
    assert [(one.record.offset, one.record.exception) for one in found.found] == [(5, "BatchTimeoutError")]
    assert tried[-2:] == [{0, 1, 2, 3, 4, 6, 7}, {5}]
    assert len(tried) == 11  # workers, the whole, two for each of three halvings, and the record twice more


@each("bad", [0, 1, 30, 31, 61])
def test_a_hanging_record_of_62_is_found_in_the_time_of_five_trials(bad: int) -> None:
    tried: list[set[int]] = []
    waited: list[float] = []

    def hangs(part: set[int]) -> bool:
        if bad in part:
            share = isolation.share(TransactionAttempt(Txid(1), AttemptId(3)))
            waited.append(1.0 if share is None else share)
        return bad in part

    isolation = isolation_of(hangs, tried)
    batch: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 62)})
    found = isolation.run(TransactionAttempt(Txid(1), AttemptId(3)), batch, lambda: True, hangs=True)
    assert [one.record.offset for one in found.found] == [bad]
    assert set(range(62)) - {bad} in tried
    assert tried.count({bad}) == 3
    assert waited[-3:] == [1.0] * 3, "the verdict is of whole trials"
    assert sum(waited) <= 5 - len(waited) / 20, "it is looked at twenty times a trial"


def test_a_trial_costs_its_timeout_without_the_time_of_a_cold_start() -> None:
    time = AttemptTime(30.0, 30.0)
    time.ended(BatchTimeoutError("it hung"))
    assert (time.seconds, time.of_trial(None)) == (60.0, 60.0)
    assert (time.of_trial(1.0), time.of_trial(0.2)) == (30.0, 6.0)


def test_a_record_that_hangs_no_more_once_the_others_have_passed_is_not_dead() -> None:
    tried: list[set[int]] = []
    found = search(isolation_of(lambda part: 5 in part and len(tried) < 11, tried), 8)
    assert found.found == []
    assert tried[-1] == set(range(8))


def test_a_batch_of_which_everything_hangs_is_replayed() -> None:
    tried: list[set[int]] = []
    with pytest.raises(BatchTimeoutError):
        search(isolation_of(lambda _: True, tried), 1000)
    assert len(tried) < 30


def test_a_service_that_hung_for_some_time_makes_no_dead_letter(database: str, hanging: ManualClock) -> None:
    words = ["slow", "a"]
    with of_hanging(words, OpaqueSpout, database, hanging) as test:
        test.run()
        assert test.table("counts") == counted_words(words)
    assert dead_places(database) == []


def whole(stored: int, new: int) -> int:
    if 13 in (stored, new):
        raise ValueError("not with 13")
    return stored + new


@BOTH
@pytest.mark.parametrize("commit", ["driver", "executors"])
def test_a_value_that_is_refused_only_within_the_commit_is_found(
    spout: Any, commit: Any, database: str
) -> None:
    """A custom reducer takes it as the first of its batch, and fails once it meets the stored value."""
    rows = [("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 13), ("c", 13), ("b", 5)]
    with MemorySpout("word string, n bigint", {"p": rows}) as source:
        builder = TransactionalTopologyBuilder(
            "words", "words", spout(source, max_batch_records=3), dead_letters=ALL, commit=commit
        )
        state = SqlState("sums", key="word string", value="n bigint")
        store = builder.set_committer_bolt("store", SqlStateBolt(state, n=custom(whole, None)), parallelism=2)
        store.fields_grouping("words", "word")
        with TopologyTest(builder, database=database) as test:
            if spout is TransactionalSpout and commit == "executors":
                # Shares of the batch may be written already, and no attempt of it could take them back.
                with pytest.raises(StateValueError, match="not with 13"):
                    test.run()
                assert dead_places(database) == []
                return
            test.run()
            assert test.table("sums") == {"a": 8, "b": 7, "c": 13}
            assert len(test.attempts(2)) == 2
    assert dead_places(database) == [("p@4", "store", "StateValueError")]


@BOTH
def test_records_that_a_database_refuses_only_together_end_the_run(spout: Any, database: str) -> None:
    rows = [("a", 1), ("b", 1), ("b", 6), ("b", 7)]
    with MemorySpout("word string, n bigint", {"p": rows}) as source:
        builder = TransactionalTopologyBuilder(
            "words", "words", spout(source, max_batch_records=2), dead_letters=ALL
        )
        state = SqlState("sums", key="word string", value="n bigint")
        store = builder.set_committer_bolt("store", SqlStateBolt(state, n=custom(whole, None)))
        store.fields_grouping("words", "word")
        with TopologyTest(builder, database=database) as test:
            with pytest.raises(StateValueError, match="not with 13"):
                test.run()
            assert test.table("sums") == {"a": 1, "b": 1}
    assert dead_places(database) == []


def dead_places(url: str) -> list[tuple[str, str, str]]:
    opened = open_database(url)
    found = [(one.place, one.letter.component, one.letter.exception) for one in opened.dead_letters("words")]
    opened.close()
    return found


def test_a_source_that_is_not_kafka_gives_a_records_place_as_text(database: str) -> None:
    with running({"p": ["a", "bad1"]}, database) as test:
        test.run()
    opened = open_database(database)
    (one,) = opened.dead_letters("words")
    opened.close()
    kafkas = one.letter.topic, one.letter.partition, one.letter.timestamp_ms
    assert (one.place, one.letter.offset, kafkas) == ("p@1", 1, (None, None, None))


def test_each_reason_is_logged_once_with_its_count(database: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with running({"p": ["bad1", "a", "bad2", "b", "alone"]}, database) as test:
        test.run()
    told = [record.getMessage() for record in caplog.records if "dead letter" in record.getMessage()]
    assert [one.partition("; search ")[0] for one in told] == [
        "txid 1: 2 dead letters: ValueError in component 'parse'",
        "txid 1: 1 dead letter: RuntimeError in component 'together'",
    ]


@BOTH
@pytest.mark.parametrize("point", ["process", "commit"])
def test_a_crash_in_an_isolating_attempt_leaves_each_record_in_one_place(
    spout: Any, point: str, database: str
) -> None:
    with running({"p": ["a", "bad1", "b", "bad2"]}, database, spout) as test:
        test.process(1)
        if point == "commit":
            test.commit(1)
        test.crash()
        test.restart()
        test.run()
        assert test.table("counts") == {"a": 1, "b": 1}
    assert [row[1] for row in dead(database)] == ["p@1", "p@3"]


def test_headers_are_kept_as_json() -> None:
    kept = _headers([{"key": "trace", "value": b"\x00\xff"}, {"key": "none", "value": None}])
    assert json.loads(kept) == [["trace", base64.b64encode(b"\x00\xff").decode()], ["none", None]]


def test_after_a_batch_with_bad_records_the_next_ones_are_searched_at_once(database: str) -> None:
    """Until one has none. So a topic with bad records all along it costs no failed attempt for each batch."""
    words = ["a", "bad1", "a", "bad2", "bad3", "a", "a", "bad4", "a", "a", "a", "bad5"]
    with (
        MemorySpout("word string", {"p": words}) as source,
        TopologyTest(topology(source, batch=2, pending=1), database=database) as test,
    ):
        test.run()
        assert [len(test.attempts(txid)) for txid in range(1, 7)] == [2, 1, 1, 1, 1, 2]
        assert test.table("counts") == {"a": 7}
    assert [row[1] for row in dead(database)] == ["p@1", "p@3", "p@4", "p@7", "p@11"]


def test_a_batch_with_bad_records_is_forgotten_after_a_minute(database: str) -> None:
    with (
        MemorySpout("word string", {"p": ["a", "bad1", "a", "bad2"]}) as source,
        TopologyTest(topology(source, batch=2, pending=1), database=database) as test,
    ):
        test.run()
        test.clock.advance(59)
        source.append("p", "a", "bad3")
        test.run()
        test.clock.advance(61)
        source.append("p", "a", "bad4")
        test.run()
        assert [len(test.attempts(txid)) for txid in range(1, 5)] == [2, 1, 1, 2]
