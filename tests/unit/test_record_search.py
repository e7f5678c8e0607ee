"""Workers find all bad records of a batch in one job, whichever bolt they make fail, and nothing else of it
leaves them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from txstream import (
    BasicBolt,
    BatchBolt,
    BatchFailedError,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SpoutContext
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.dead_letters import Excluded
from txstream.core.errors import TxstreamError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch import record_search
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.record_search import search_shares
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.memory import MemoryRange

ATTEMPT = TransactionAttempt(Txid(3), AttemptId(7))


class Parse(BasicBolt):
    """Fails at a word that begins with "bad"."""

    output = "word string"
    calls: ClassVar[list[str]] = []

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        word = tup["word"]
        self.calls.append(word)
        if word.startswith("bad"):
            raise ValueError(f"{word} is no word")
        if word == "later":
            raise BatchFailedError("a service is away")
        collector.emit((word,))


class Behind(BasicBolt):
    """Fails, behind an exchange, at a word that begins with "odd"."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"].startswith("odd"):
            raise KeyError(tup["word"])
        collector.emit((tup["word"],))


class Finish(BatchBolt):
    """Fails at the end of its tuples, behind another exchange, with "alone" or with "this" and "that"."""

    output = "word string"

    def prepare(self, context: Any, collector: OutputCollector, batch_id: Any) -> None:
        self.seen: set[str] = set()

    def execute(self, tup: Tuple) -> None:
        self.seen.add(tup["word"])

    def finish_batch(self) -> None:
        if "alone" in self.seen or {"this", "that"} <= self.seen:
            raise RuntimeError("too much")


def plan_of(source: MemorySpout) -> ExecutionPlan:
    builder = TransactionalTopologyBuilder("t", "words", OpaqueSpout(source), parallelism=4)
    builder.set_bolt("parse", Parse(), parallelism=4).shuffle_grouping("words")
    builder.set_bolt("behind", Behind(), parallelism=4).fields_grouping("parse", "word")
    builder.set_bolt("finish", Finish(), parallelism=1).global_grouping("behind")
    return compile_topology(builder._build(1), SpoutContext("t", "words", {}), "0")


def look(
    rows: Mapping[str, Sequence[Any]],
    parts: Sequence[BatchMetas[Any]] = (),
    *,
    most: int = 100,
    seconds: float = 60.0,
) -> list[tuple[str, int, str, str]]:
    """Return partition, offset, component and exception of each record that is found."""
    Parse.calls.clear()
    with MemorySpout("word string", rows) as source:
        whole: BatchMetas[Any] = BatchMetas({name: MemoryRange(0, len(rows[name])) for name in rows})
        runner = InProcessRunner(plan_of(source))
        try:
            found = runner.find(ATTEMPT, parts or [whole], most=most, seconds=seconds)
        finally:
            runner.close()
    return [(one.partition, one.offset, one.error.component or "", one.error.kind or "") for one in found]


def test_all_bad_records_of_all_partitions_are_found_at_once() -> None:
    rows = {"p": ["a"] * 100, "q": ["b", "bad3", "odd2", "c"]}
    rows["p"][3], rows["p"][50], rows["p"][51], rows["p"][99] = "bad1", "odd1", "bad2", "alone"
    assert look(rows) == [
        ("p", 3, "parse", "ValueError"),
        ("p", 50, "behind", "KeyError"),
        ("p", 51, "parse", "ValueError"),
        ("p", 99, "finish", "RuntimeError"),
        ("q", 1, "parse", "ValueError"),
        ("q", 2, "behind", "KeyError"),
    ]


def test_the_error_says_what_that_of_an_attempt_says() -> None:
    with MemorySpout("word string", {"p": ["a", "bad"]}) as source:
        runner = InProcessRunner(plan_of(source))
        whole: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 2)})
        with pytest.raises(TxstreamError) as raised:
            runner.run(ATTEMPT, whole)
        (found,) = runner.find(ATTEMPT, [whole], most=1, seconds=60)
        runner.close()
    assert type(found.error) is type(raised.value)
    assert (found.error.words, found.error.kind) == (raised.value.words, raised.value.kind)
    assert "while processing Tuple(word='bad')" in str(found.error)
    assert found.error.__notes__ == raised.value.__notes__


def test_records_that_fail_only_together_are_not_found() -> None:
    assert look({"p": ["this", "a", "that"]}) == []


def test_what_is_left_out_already_is_not_tried() -> None:
    part: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 4)})
    part = part.leaving_out([Excluded("p", 1, "parse", "ValueError")])
    assert look({"p": ["a", "bad1", "b", "bad2"]}, [part]) == [("p", 3, "parse", "ValueError")]
    assert "bad1" not in Parse.calls


def test_single_records_are_tried_once_each() -> None:
    parts: list[BatchMetas[Any]] = [BatchMetas({"p": MemoryRange(at, at + 1)}) for at in (0, 1, 3)]
    assert look({"p": ["a", "bad1", "bad2", "bad3"]}, parts) == [
        ("p", 1, "parse", "ValueError"),
        ("p", 3, "parse", "ValueError"),
    ]
    assert sorted(Parse.calls) == ["a", "bad1", "bad3"]


def test_the_search_ends_once_it_has_found_enough() -> None:
    assert len(look({"p": [f"bad{number}" for number in range(1000)]}, most=3)) == 3
    assert len(Parse.calls) < 100


def test_without_time_nothing_is_tried() -> None:
    assert look({"p": ["a", "bad"]}, seconds=0) == []
    assert Parse.calls == []


def test_a_failure_that_no_record_causes_ends_the_search() -> None:
    with pytest.raises(BatchFailedError, match="a service is away"):
        look({"p": ["a", "bad", "later", "b"]})


def test_a_healthy_batch_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_search, "_PIECE_RECORDS", 16)
    assert look({"p": [f"w{number}" for number in range(100)]}) == []
    assert sorted(Parse.calls) == sorted(f"w{number}" for number in range(100))


def test_a_large_batch_is_spread_over_its_tasks_in_pieces() -> None:
    codec = MetaCodec(MemoryRange)
    whole: BatchMetas[Any] = BatchMetas({"p": MemoryRange(0, 300_000), "q": MemoryRange(5, 9)})
    with MemorySpout("word string", {"p": [], "q": []}) as source:
        shares = search_shares(plan_of(source), ATTEMPT, [whole], {}, most=1, seconds=1)
    assert len(shares) == 4
    sizes, covered = [], []
    for share in shares:
        (ranges,) = zip(
            *(json.loads(text)["assignments"] for text in json.loads(share)["orders"]), strict=True
        )
        metas = [(name, codec.decode_meta(meta, name)) for one in ranges for name, meta in one.items()]
        assert all(meta.records <= 20_000 for _, meta in metas)
        sizes.append(sum(meta.records for _, meta in metas))
        covered += [(name, meta.start, meta.end) for name, meta in metas]
    assert max(sizes) - min(sizes) <= 20_000
    assert sum(sizes) == 300_004
    assert ("q", 5, 9) in covered
    ends = [end for name, _, end in sorted(covered) if name == "p"]
    assert [start for name, start, _ in sorted(covered) if name == "p"] == [0, *ends[:-1]]
