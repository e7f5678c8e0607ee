"""A bug that makes each record of a live topology fail ends the run, though no batch has many of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.core.errors import TooManyDeadLettersError
from txstream.engine.letters.window import AGE, RECORDS
from txstream.state.sql.database import StateDatabase
from txstream.testing import TopologyTest
from txstream.zookeeper import Kind

BOTH = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])


class Parse(BasicBolt):
    """Fails at what begins with "bad". It is left out in the first attempt."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"].startswith("bad"):
            raise ValueError(tup["word"])
        collector.emit((tup["word"],))


class Counts(Parse):
    """Counts its tuples, so a bad one takes a search."""

    tuples = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self.tuples += 1
        super().execute(tup, collector)


class Mended(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit((tup["word"],))


FIRST = pytest.mark.parametrize("first", [Parse(), Counts()], ids=["at once", "searched"])


def topology(
    source: MemorySpout, spout: Any, first: Any, limits: DeadLetters, batch: int = 1, pending: int = 1
) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder(
        "words",
        "words",
        spout(source, max_batch_records=batch),
        dead_letters=limits,
        max_attempts=3,
        max_spout_pending=pending,
    )
    builder.set_bolt("parse", first).shuffle_grouping("words")
    state = SqlState("counts", key="word string", value="n bigint")
    store = builder.set_committer_bolt("store", SqlStateBolt(state, n=Count()))
    store.fields_grouping("parse", "word")
    return builder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.db"


@contextmanager
def running(path: Path, words: list[str], **given: Any) -> Iterator[tuple[TopologyTest, Callable[..., Any]]]:
    with (
        MemorySpout("word string", {"p": words}) as source,
        TopologyTest(topology(source, **given), database=f"sqlite:///{path}") as test,
    ):
        yield test, lambda **changed: topology(source, **{**given, **changed})


def execute(path: Path, statement: str, *values: Any) -> list[Any]:
    connection = sqlite3.connect(path)
    found = connection.execute(statement, values).fetchall()
    connection.commit()
    connection.close()
    return found


def dead(path: Path) -> int:
    return int(execute(path, "SELECT count(*) FROM txstream_dead_letter WHERE status = 'dead'")[0][0])


@BOTH
@FIRST
def test_a_bug_that_fails_each_record_ends_a_run_of_small_batches(spout: Any, first: Any, path: Path) -> None:
    words = ["a"] * 20 + ["bad"] * 50
    with running(path, words, spout=spout, first=first, limits=DeadLetters(max_per_batch=10)) as (test, _):
        with pytest.raises(TooManyDeadLettersError) as ended:
            test.run()
        assert dead(path) == 10
        assert test.table("counts") == {"a": 20}
        told = str(ended.value)
        today = f"{datetime.now(UTC):%Y-%m-%d}"
        for said in (
            "txid 31", "with 1 record of this batch, 11 of the last 31 records", f"since {today}",
            "at most 10 may", "ValueError in component 'parse'",
            "`txstream dead-letters retry words`", "--dead-letters N",
        ):  # fmt: skip
            assert said in told, said


@BOTH
@FIRST
def test_two_bad_records_of_the_first_three_end_no_run_and_a_hundred_and_one_do(
    spout: Any, first: Any, path: Path
) -> None:
    words = ["a", "bad", "bad", *["bad"] * 99]
    with running(path, words, spout=spout, first=first, limits=DeadLetters(), batch=3) as (test, _):
        test.commit(1)
        assert (dead(path), test.table("counts")) == (2, {"a": 1})
        with pytest.raises(TooManyDeadLettersError, match=r"101 of the last 102 records.*at most 100 may"):
            test.run()
        assert dead(path) == 98


@BOTH
@FIRST
def test_batches_side_by_side_count_together(spout: Any, first: Any, path: Path) -> None:
    limits = DeadLetters(max_per_batch=10)
    with running(path, ["bad"] * 50, spout=spout, first=first, limits=limits, pending=3) as (test, _):
        with pytest.raises(TooManyDeadLettersError):
            test.run()
        assert 8 <= dead(path) <= 10


@BOTH
def test_a_restart_does_not_forget_and_what_was_retried_no_longer_counts(spout: Any, path: Path) -> None:
    words = ["bad"] * 12 + ["a"]
    limits = DeadLetters(max_per_batch=10)
    with running(path, words, spout=spout, first=Parse(), limits=limits) as (test, again):
        for txid in range(1, 11):
            test.commit(txid)
        for _ in range(2):
            test.restart(again())
            with pytest.raises(TooManyDeadLettersError, match="11 of the last 11 records"):
                test.run()
            assert dead(path) == 10
        test.restart(again(first=Mended()))
        test._control.driver.requests.ask(Kind.RETRY, {})
        test.run()
        assert (dead(path), test.table("counts")) == (0, {"a": 1, "bad": 12})


@BOTH
def test_what_was_retried_no_longer_counts(spout: Any, path: Path) -> None:
    limits = DeadLetters(max_per_batch=3)
    with (
        MemorySpout("word string", {"p": ["bad"] * 3}) as source,
        TopologyTest(topology(source, spout, Parse(), limits), database=f"sqlite:///{path}") as test,
    ):
        test.run()
        test.restart(topology(source, spout, Mended(), limits))
        test._control.driver.requests.ask(Kind.RETRY, {})
        test.settle()
        test.commit()
        assert dead(path) == 0
        test.restart(topology(source, spout, Parse(), limits))
        source.append("p", *[("bad",)] * 3)
        test.run()
        assert dead(path) == 3
        source.append("p", ("bad",))
        with pytest.raises(TooManyDeadLettersError, match="4 of the last 10 records"):
            test.run()


@BOTH
def test_the_share_is_of_the_window(spout: Any, path: Path) -> None:
    limits = DeadLetters(max_per_batch=2, max_share=0.1)
    words = (["a"] * 9 + ["bad"]) * 5 + ["bad"]
    with running(path, words, spout=spout, first=Parse(), limits=limits, batch=10) as (test, _):
        with pytest.raises(TooManyDeadLettersError, match=r"6 of the last 51 records.*at most 5 may"):
            test.run()
        assert dead(path) == 5


@BOTH
@pytest.mark.parametrize(
    ("records", "age", "counts"),
    [
        (RECORDS - 1, 2 * AGE, True),
        (RECORDS, AGE + timedelta(minutes=1), False),
        (RECORDS, AGE - timedelta(minutes=1), True),
    ],
)
def test_the_window_is_ten_thousand_records_and_ten_minutes(
    spout: Any, records: int, age: timedelta, counts: bool, path: Path
) -> None:
    limits = DeadLetters(max_per_batch=2, max_share=0.0001)
    words = ["bad", "bad", "a", "bad"]
    with running(path, words, spout=spout, first=Parse(), limits=limits) as (test, again):
        for txid in range(1, 4):
            test.commit(txid)
        test.crash()
        # The two bad ones long ago; since then, so many records.
        then = datetime.now(UTC) - age
        at = then.replace(tzinfo=None).isoformat(" ")
        execute(path, "UPDATE txstream_batch SET committed_at = ?", at)
        execute(path, "UPDATE txstream_batch SET tuples = ? WHERE txid = 3", records - 1)
        test.restart(again())
        if counts:
            with pytest.raises(TooManyDeadLettersError, match="3 of the last"):
                test.run()
        else:
            test.run()
        assert dead(path) == (2 if counts else 3)


@BOTH
def test_a_batch_that_leaves_nothing_out_asks_nothing(
    spout: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    batches = StateDatabase.batches

    def noted(self: StateDatabase, *given: Any, **options: Any) -> Any:
        asked.append(options)
        return batches(self, *given, **options)

    with running(path, ["a", "b", "bad"], spout=spout, first=Parse(), limits=DeadLetters()) as (test, _):
        test.process(2)
        monkeypatch.setattr(StateDatabase, "batches", noted)
        test.commit(2)
        assert not asked
        test.commit(3)
        assert len(asked) == 1
