"""How a topology is, in words: one rule for the page, `status`, the metrics and a run's own output."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from support.lists import each

from txstream import (
    BasicBolt,
    BatchFailedError,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    RunProgress,
    SqlState,
    SqlStateBolt,
    TransactionalTopologyBuilder,
    Tuple,
    inspect,
)
from txstream.cli.main import main
from txstream.cli.run_progress import describe
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BatchTimeoutError, BoltError
from txstream.core.failing_batch import FailingBatch, LeftOut, Wait
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.core.waits import wait_until
from txstream.engine.letters.retry_policy import TxidFailures
from txstream.engine.loop.report import BatchTiming, Statistics
from txstream.inspect.health import Health, Word, health
from txstream.inspect.phases import phases
from txstream.settings import Settings
from txstream.testing import InProcessRunner, ManualClock, TopologyTest

NOW = datetime.now(UTC)
AWAY = Wait("the database", NOW, "", "it does not answer")
PAUSE = Wait("`txstream resume words`", NOW, "paused by ann", "")
SEARCH = Wait("what fails in txid 12", NOW - timedelta(seconds=14), "1 of 50,000 records left to try", "")


def failing(*, may_pass: bool) -> FailingBatch:
    attempts = [{"error": "no"}] if may_pass else [{"error": "no", "stays": True}]
    return FailingBatch(Txid(12), attempt_id(1, 4), NOW, {"no": 2}, {}, attempts)


LOOKING = "looking for what fails in txid 12: 1 of 50,000 records left to try, N s so far"
RETRY, DOOMED = failing(may_pass=True), failing(may_pass=False)
LEFT_OUT = LeftOut(11, 3, NOW)
RETRIED = "2 attempts of txid 12 failed"


@each(
    "waits, batch, left_out, told",
    [
        ((), None, None, "healthy"),
        ((), None, LEFT_OUT, "leaving out records: 3 records of txid 11"),
        ((), None, LEFT_OUT._replace(at=NOW - timedelta(hours=1)), "healthy"),
        ((), None, LEFT_OUT._replace(at=None), "healthy"),
        ((SEARCH, AWAY), RETRY, None, f"leaving out records: {LOOKING}"),
        ((PAUSE,), None, LEFT_OUT, "paused"),
        ((), RETRY, LEFT_OUT, f"retrying a batch: {RETRIED}"),
        ((PAUSE,), RETRY, None, f"retrying a batch: {RETRIED}"),
        ((PAUSE, AWAY), RETRY, None, f"waiting for the database since {NOW.astimezone():%H:%M:%S}"),
        ((AWAY,), DOOMED, None, f"failing: {RETRIED}"),
    ],
)
def test_there_is_one_word_for_each_state(
    waits: tuple[Wait, ...], batch: FailingBatch | None, left_out: LeftOut | None, told: str
) -> None:
    if left_out is not None and left_out.at is not None:  # this module may have been imported minutes ago
        left_out = left_out._replace(at=datetime.now(UTC) - (NOW - left_out.at))
    found = health(waits, batch, left_out)
    assert without_seconds(str(found)) == told
    assert str(found.word) in told


def without_seconds(text: str) -> str:
    return re.sub(r"\d+ s so far", "N s so far", text)


def of(error: BaseException, times: int, *, hides_data: bool) -> bool:
    """Whether the next attempt may pass, after so many failures."""
    failures = TxidFailures(hides_data)
    for _ in range(times):
        failures.add(error, TransactionAttempt(Txid(1), attempt_id(1, 1)))
    noted = failures.for_note(lambda meta: meta)
    return FailingBatch(Txid(1), attempt_id(1, 1), NOW, {}, *noted).may_pass


def test_a_batch_is_failing_only_if_its_next_attempt_may_not_help() -> None:
    bug, asked, slow = BoltError("no"), BatchFailedError("later"), BatchTimeoutError("not within 30 s")
    found = {
        (name, times, hides): of(error, times, hides_data=hides)
        for name, error in (("bug", bug), ("asked", asked), ("slow", slow))
        for times in (1, 2, 3)
        for hides in (False, True)
    }
    # With dead letters, the attempt after the first (after the second timeout) looks for records.
    assert {key for key, may_pass in found.items() if not may_pass} == {
        *(("bug", times, False) for times in (1, 2, 3)),
        *(("bug", times, True) for times in (2, 3)),
        *(("slow", times, False) for times in (2, 3)),
        ("slow", 3, True),
    }


class Slow(BasicBolt):
    """Fails at one word, and takes in each trial with it until somebody was told what is looked for."""

    output = "word string"
    test: ClassVar[TopologyTest]
    clock: ClassVar[ManualClock]
    told: ClassVar[list[str]]
    left: ClassVar[int]
    searched: ClassVar[float]
    tuples = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        self.tuples += 1  # so nobody knows what a bad tuple has changed, and an attempt has to search
        if word == "bad":
            if self.left:
                wait_until(self._is_told, 30.0)
            raise ValueError("no word")
        collector.emit((word,))

    def _is_told(self) -> bool:
        self.clock.advance(1.0)
        self.told.append(self.test.waiting_for or "")
        return f"({self.left} of 81 records left to try)" in self.told[-1]


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TopologyTest]:
    words = [f"w{number}" for number in range(40)]
    Slow.clock, Slow.told, Slow.left, Slow.searched = ManualClock(), [], 0, 0.0
    find = InProcessRunner.find

    def noted(runner: Any, attempt: Any, parts: Sequence[BatchMetas[Any]], **options: Any) -> Any:
        Slow.left = sum(meta.records for one in parts for meta in one.partitions.values())
        began = time.perf_counter()
        try:
            return find(runner, attempt, parts, **options)
        finally:
            Slow.searched += time.perf_counter() - began

    monkeypatch.setattr(InProcessRunner, "find", noted)
    with MemorySpout("word string", {"p": [*words, "bad", *words]}) as source:
        builder = TransactionalTopologyBuilder(
            "words",
            "words",
            OpaqueSpout(source),
            dead_letters=DeadLetters(max_share=1.0),
            message_timeout_seconds=1e6,
        )
        builder.set_bolt("slow", Slow()).shuffle_grouping("words")
        state = SqlState("counts", key="word string", value="n bigint")
        builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("slow", "word")
        with TopologyTest(builder, database=f"sqlite:///{tmp_path / 's.db'}", clock=Slow.clock) as test:
            Slow.test = test
            yield test


def test_a_search_says_what_it_looks_for_and_what_is_left_to_try(slow: TopologyTest) -> None:
    slow.run()
    assert slow.table("counts") == {f"w{number}": 2 for number in range(40)}
    assert {one.partition(" since ")[0] for one in Slow.told if one} == {"what fails in txid 1"}
    assert Slow.left == 1, "the workers look through all of the batch, and then through what they have found"
    assert slow.waiting_for is None


def test_the_steps_of_a_batch_add_up_and_the_search_is_one_of_them(
    slow: TopologyTest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow.run()
    url = f"sqlite:///{tmp_path / 's.db'}"
    (one,) = inspect.batches("words", Settings(database=url))
    found, row = phases(one), one.first
    assert {"plan", "failed attempts", "search", "job", "merge"} <= set(found)
    assert Slow.searched <= found["search"] <= Slow.searched + 1.0
    assert row.committed_at is not None
    lasted = found["plan"] + (row.committed_at - row.planned_at).total_seconds()
    assert sum(found.values()) == pytest.approx(lasted, abs=0.05)
    assert main(["show", "words", "1", "--database", url]) == 0
    (line,) = re.findall(r"^seconds +([0-9.]+) s: (.*)$", capsys.readouterr().out, re.MULTILINE)
    told = re.findall(r"([a-z_ ]+?) ([0-9.]+) s", line[1])
    parts = {step.strip(): float(seconds) for step, seconds in told}
    assert sum(parts.values()) == pytest.approx(float(line[0]), abs=0.01)
    assert parts["search"] == pytest.approx(found["search"], abs=0.001)


def test_the_line_of_a_run_has_the_same_words() -> None:
    line = RunProgress("words", 11, {Txid(12): "processing"}, 11, 4000, 2, 9.0, None, None)
    assert describe(line) == "txid 11 committed, 1 open, 4,000 records, 2 failed attempts"
    looking = describe(replace(line, waits=(SEARCH,), waiting_for="it"))
    assert without_seconds(looking).endswith(f", leaving out records: {LOOKING}")
    assert describe(replace(line, failing=RETRY)).endswith(f", retrying a batch: {RETRIED}")
    statistics = Statistics()
    statistics.add(BatchTiming(Txid(11), dead_letters=3), is_recovered=False)
    assert describe(replace(line, left_out=statistics.left_out)).endswith(
        ", leaving out records: 3 records of txid 11"
    )
    assert str(Health(Word.PAUSED)) == "paused"
