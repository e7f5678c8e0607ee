"""Records that a batch leaves out: in its metas, and in what is read."""

from __future__ import annotations

from typing import Any

import pytest
from support.lists import each

from txstream import BasicBolt, CorruptStateError, MemorySpout, OpaqueSpout, TransactionalTopologyBuilder
from txstream.api.spouts import SpoutContext
from txstream.core.batch_metas import BatchMetas, MetaCodec, pieces
from txstream.core.dead_letters import Excluded
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.messages import WorkOrder
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.memory import MemoryRange
from txstream.testing import Fail

CODEC: MetaCodec[Any] = MetaCodec(MemoryRange)
BATCH: BatchMetas[Any] = BatchMetas(
    {"a": MemoryRange(2, 9), "b": MemoryRange(0, 3)}, {"c": MemoryRange(4, 4)}
)


def bad(partition: str, offset: int) -> Excluded:
    return Excluded(partition, offset, "parse", "ValueError")


def test_a_batch_without_excluded_records_is_stored_as_ever() -> None:
    assert set(CODEC.encode(BATCH)) == {"partitions", "carried"}
    assert CODEC.decode(dict(CODEC.encode(BATCH)), "here").excluded == ()


def test_excluded_records_are_stored_with_the_batch_in_order_and_each_once() -> None:
    without = BATCH.leaving_out([bad("b", 1), bad("a", 8)]).leaving_out([bad("a", 2), bad("b", 1)])
    assert without.excluded == (bad("a", 2), bad("a", 8), bad("b", 1))
    assert CODEC.decode(dict(CODEC.encode(without)), "here") == without
    assert without.positions() == BATCH.positions()
    assert without.excluded_offsets() == {"a": [2, 8], "b": [1]}


def test_a_part_of_a_batch_leaves_out_the_same_records() -> None:
    without = BATCH.leaving_out([bad("a", 2), bad("a", 8), bad("b", 1)])
    assert without.part({"a": MemoryRange(2, 5)}).excluded == (bad("a", 2),)


@each(
    ("excluded", "words"),
    [
        ({}, "must be a JSON array"),
        ([["a", 2, "parse"]], "is \\[partition, offset, component, exception\\]"),
        ([["a", 9, "parse", "E"]], "but not in the batch's ranges"),
        ([["c", 4, "parse", "E"]], "but not in the batch's ranges"),
        ([["a", 3, "parse", "E"], ["a", 2, "parse", "E"]], "are in order"),
        ([["a", 3, "parse", "E"], ["a", 3, "parse", "F"]], "each once"),
    ],
)
def test_excluded_records_that_make_no_sense_are_refused(excluded: Any, words: str) -> None:
    with pytest.raises(CorruptStateError, match=words):
        CODEC.decode({**CODEC.encode(BATCH), "excluded": excluded}, "here")


def test_a_range_is_cut_at_the_records_that_are_left_out() -> None:
    whole = KafkaRange(5, 10, "id", leader_epoch=3)
    assert pieces(whole, [5, 7]) == [
        KafkaRange(6, 7, "id"),
        KafkaRange(8, 10, "id", leader_epoch=3),
    ]
    assert pieces(whole, [9]) == [KafkaRange(5, 9, "id")]
    assert pieces(KafkaRange(5, 6, "id"), [5]) == []


def test_an_order_of_work_carries_the_offsets() -> None:
    attempt = TransactionAttempt(Txid(1), AttemptId(2))
    order = WorkOrder(attempt, 1, [{"a": {"start": 0, "end": 2}}], excluded={"a": [1]})
    assert WorkOrder.from_json(order.to_json()) == order


def test_a_record_that_is_left_out_is_not_read() -> None:
    with MemorySpout("word string", {"p": ["a", "b", "c", Fail(), "e"], "q": ["x", "y"]}) as source:
        rows = read_without(source, {"p": (0, 5), "q": (0, 2)}, {"p": [1, 3], "q": [0]})
    assert rows == ["a", "c", "e", "y"]


def read_without(
    source: MemorySpout, ranges: dict[str, tuple[int, int]], excluded: dict[str, list[int]]
) -> list[str]:
    """Return the words that a Spark task reads of these ranges, through a bolt that keeps them."""

    class Seen(BasicBolt):
        output = "word string"

        def execute(self, tup: Any, collector: Any) -> None:
            collector.emit((tup["word"],))

    builder = TransactionalTopologyBuilder("seen", "words", OpaqueSpout(source))
    builder.set_bolt("seen", Seen()).shuffle_grouping("words")
    plan = compile_topology(builder._build(1), SpoutContext("seen", "words", {}), "0", capture=True)
    metas: BatchMetas[Any] = BatchMetas({name: MemoryRange(*span) for name, span in ranges.items()})
    metas = metas.leaving_out(bad(name, offset) for name, offsets in excluded.items() for offset in offsets)
    runner = InProcessRunner(plan)
    try:
        result = runner.run(TransactionAttempt(Txid(1), AttemptId(1)), metas)
    finally:
        runner.close()
    emitted = [one.tuples for one in result.emitted if one.component == "seen"]
    assert result.records == sum(table.num_rows for table in emitted)
    return sorted(word for table in emitted for word in table["word"].to_pylist())
