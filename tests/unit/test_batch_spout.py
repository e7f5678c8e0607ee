"""`BatchSpout`: the unpartitioned contract, as the engine sees it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from support.inmemory import CONTEXT, attempt
from support.lists import each

from txstream.api.bolts import OutputCollector
from txstream.api.schema import parse_schema
from txstream.api.spouts import OpaqueSpout, PartitionCoordinator, SpoutContext, TransactionalSpout
from txstream.core.batch_metas import BatchMetas, MetaCodec
from txstream.core.errors import (
    CorruptStateError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    TopologyError,
    TupleError,
    UsageError,
)
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.spouts.batch_spouts import BATCH_PARTITION, BatchCollector, BatchSpout, BatchTransaction


@dataclass(frozen=True)
class Block:
    """The numbers `first` to `first` + `count` - 1."""

    first: int
    count: int
    tags: list[str] = field(default_factory=list)


class Numbers(BatchSpout[Block]):
    """Blocks of five numbers, up to `end`. Copies share `calls`, the record of what happened."""

    output = "n bigint, word string"
    batch_meta_type = Block

    def __init__(self, end: int = 12) -> None:
        self.end = end
        self.calls: list[Any] = []
        self.away = False

    def open(self, context: SpoutContext) -> None:
        self.calls.append(("open", context.component))
        self.connection = object()

    def initialize_transaction(self, txid: Txid, previous_meta: Block | None) -> Block | None:
        self.calls.append((txid, previous_meta))
        if self.away:
            raise PartitionUnavailableError("the numbers are away")
        first = 0 if previous_meta is None else previous_meta.first + previous_meta.count
        count = min(5, self.end - first)
        return Block(first, count) if count else None

    def emit_batch(self, attempt: TransactionAttempt, meta: Block, collector: OutputCollector) -> None:
        for n in range(meta.first, meta.first + meta.count):
            collector.emit((n, f"{attempt.txid}"))

    def cleanup_before(self, txid: Txid) -> None:
        self.calls.append(("cleanup", txid))

    def close(self) -> None:
        self.calls.append("close")


def step(
    coordinator: PartitionCoordinator[Any], last: BatchMetas[Any], *, replay: bool = False
) -> BatchMetas[Any] | None:
    """Plan as the loop does, and pass the plan through JSON. Return None if no transaction is opened."""
    metas = BatchMetas.from_plan(last.positions(), coordinator.plan(last.positions(), 1000))
    if not metas.has_work and not replay:
        return None
    codec: MetaCodec[Any] = MetaCodec(BatchTransaction)
    return codec.decode(json.loads(json.dumps(codec.encode(metas))), "stored")


def emitted(spout: BatchSpout[Any], txid: int, metas: BatchMetas[Any]) -> list[dict[str, Any]]:
    emitter = pickle.loads(pickle.dumps(spout)).emitter(CONTEXT)
    return [
        row
        for name, meta in metas.partitions.items()
        for batch in emitter.emit(attempt(txid), name, meta)
        for row in batch.to_pylist()
    ]


def test_transactions_follow_each_other() -> None:
    spout = Numbers()
    coordinator = spout.coordinator(CONTEXT)
    last: BatchMetas[Any] = BatchMetas()
    numbers = []
    txid = 0
    while (metas := step(coordinator, last)) is not None:
        txid += 1
        assert metas.partitions[BATCH_PARTITION].txid == txid
        numbers += [row["n"] for row in emitted(spout, txid, metas)]
        last = metas
    assert numbers == list(range(12))
    assert spout.calls == [
        ("open", "lines"),
        (1, None),
        (2, Block(0, 5)),
        (3, Block(5, 5)),
        (4, Block(10, 2)),
    ]


def test_a_replay_is_asked_again_with_the_same_txid() -> None:
    spout = Numbers()
    coordinator = spout.coordinator(CONTEXT)
    first = step(coordinator, BatchMetas())
    assert first is not None
    spout.calls.clear()
    step(coordinator, first)
    step(coordinator, first, replay=True)
    assert spout.calls == [(2, Block(0, 5)), (2, Block(0, 5))]


def test_a_replay_that_finds_nothing_still_counts_as_a_transaction() -> None:
    """An opaque replay may be empty: its txid is used up, and the place is kept."""
    spout = Numbers(end=10)
    coordinator = spout.coordinator(CONTEXT)
    one = step(coordinator, BatchMetas())
    assert one is not None
    opened = spout.coordinator(CONTEXT)
    opened._spout.end = 5  # type: ignore[attr-defined]  # what txid 2 held has gone
    two = step(opened, one, replay=True)
    assert two is not None
    assert not two.has_work
    assert emitted(spout, 2, BatchMetas(two.positions())) == []
    opened._spout.end = 10  # type: ignore[attr-defined]
    three = step(opened, two)
    assert three is not None
    assert three.partitions[BATCH_PARTITION] == BatchTransaction(3, {"first": 5, "count": 5, "tags": []})


def test_an_empty_first_transaction_has_no_previous_one() -> None:
    spout = Numbers(end=0)
    coordinator = spout.coordinator(CONTEXT)
    assert step(coordinator, BatchMetas()) is None
    one = step(coordinator, BatchMetas(), replay=True)
    assert one is not None
    step(coordinator, one)
    assert spout.calls[-1] == (2, None)


def test_an_outage_is_raised_since_a_plan_that_leaves_it_out_would_lose_count() -> None:
    spout = Numbers()
    spout.away = True
    with pytest.raises(PartitionUnavailableError, match="the numbers are away"):
        spout.coordinator(CONTEXT).plan({}, 10)


def test_driver_calls_are_passed_on_and_each_copy_is_closed() -> None:
    spout = Numbers()
    coordinator = spout.coordinator(CONTEXT)
    assert coordinator.is_ready()
    coordinator.cleanup_before(Txid(3))
    coordinator.close()
    spout.emitter(CONTEXT).close()
    assert spout.calls == [("open", "lines"), ("cleanup", 3), "close", ("open", "lines"), "close"]
    assert not hasattr(spout, "connection"), "opened on a copy: what is shipped has no connection"


@pytest.mark.parametrize("error", [PartitionUnavailableError("away"), ServiceUnavailableError("away")])
def test_an_outage_puts_cleaning_up_off(error: Exception) -> None:
    class Away(Numbers):
        def cleanup_before(self, txid: Txid) -> None:
            self.calls.append(("cleanup", txid))
            if txid == 2:
                raise error

    spout = Away()
    coordinator = spout.coordinator(CONTEXT)
    coordinator.cleanup_before(Txid(2))
    coordinator.cleanup_before(Txid(3))
    assert spout.calls[1:] == [("cleanup", 2), ("cleanup", 3)]


def test_a_bug_in_cleaning_up_is_told() -> None:
    class Wrong(Numbers):
        def cleanup_before(self, txid: Txid) -> None:
            raise KeyError(txid)

    with pytest.raises(KeyError):
        Wrong().coordinator(CONTEXT).cleanup_before(Txid(2))


def test_without_an_end_there_is_no_catching_up() -> None:
    coordinator = Numbers().coordinator(CONTEXT)
    with pytest.raises(TopologyError, match=r"Numbers has no end.*override targets\(\)"):
        coordinator.targets()
    with pytest.raises(TopologyError, match="Numbers cannot tell whether it has caught up"):
        coordinator.reached({}, {})
    assert coordinator.lag_records({}, {}) is None


class Ending(Numbers):
    def targets(self) -> Mapping[str, Any]:
        return {"end": self.end}

    def reached(self, previous_meta: Block | None, targets: Mapping[str, Any]) -> bool:
        return self.lag_records(previous_meta, targets) == 0

    def lag_records(self, previous_meta: Block | None, targets: Mapping[str, Any]) -> int:
        done = 0 if previous_meta is None else previous_meta.first + previous_meta.count
        return int(targets["end"]) - done


def test_an_end() -> None:
    coordinator = Ending().coordinator(CONTEXT)
    targets = coordinator.targets()
    last: BatchMetas[Any] = BatchMetas()
    lags = [coordinator.lag_records(last.positions(), targets)]
    while not coordinator.reached(last.positions(), targets):
        metas = step(coordinator, last)
        assert metas is not None
        last = metas
        lags.append(coordinator.lag_records(last.positions(), targets))
    assert lags == [12, 7, 2, 0]


@pytest.mark.parametrize("semantics", [OpaqueSpout, TransactionalSpout])
def test_a_semantics_can_be_put_on_it(semantics: Any) -> None:
    spout = semantics(Numbers())
    assert spout.output == parse_schema("n bigint, word string")
    assert spout.source.meta_type is BatchTransaction


# --- mistakes -------------------------------------------------------------------------------------------


def test_the_meta_type_must_be_a_frozen_dataclass() -> None:
    with pytest.raises(TopologyError, match="must be a frozen dataclass"):

        class Wrong(Numbers):
            batch_meta_type = dict  # type: ignore[assignment]


def test_the_meta_type_has_its_own_name() -> None:
    with pytest.raises(TopologyError, match="Wrong sets meta_type; for a BatchSpout it is called batch_meta"):

        class Wrong(Numbers):
            meta_type = Block


def test_the_meta_type_must_be_there() -> None:
    class Wrong(BatchSpout[Block]):
        output = "n bigint"

        def initialize_transaction(self, txid: Txid, previous_meta: Block | None) -> Block | None:
            return None

        def emit_batch(self, attempt: TransactionAttempt, meta: Block, collector: OutputCollector) -> None:
            pass

    with pytest.raises(TopologyError, match="Wrong has no batch_meta_type"):
        Wrong().coordinator(CONTEXT)


@each(
    ("answer", "message"),
    [
        ({"first": 1}, "answered {'first': 1}; it must be a Block or None"),
        (5, "it must be a Block or None"),
        (Block(1, "many"), "cannot be stored as JSON: .*'count' of a Block must be int"),  # type: ignore[arg-type]
        (Block(1, 2, {3}), "cannot be stored as JSON"),  # type: ignore[arg-type]
        (Block(1, 2, [("a", "b")]), "comes back from JSON as"),  # type: ignore[list-item]
    ],
)
def test_a_meta_that_cannot_be_stored_is_refused_at_once(answer: Any, message: str) -> None:
    class Wrong(Numbers):
        def initialize_transaction(self, txid: Txid, previous_meta: Block | None) -> Block | None:
            return answer  # type: ignore[no-any-return]

    with pytest.raises(TopologyError, match=message):
        Wrong().coordinator(CONTEXT).plan({}, 10)


def test_emit_batch_must_not_be_a_generator() -> None:
    class Wrong(Numbers):
        def emit_batch(self, attempt: Any, meta: Any, collector: Any) -> Any:
            yield from ()

    emitter = Wrong().emitter(CONTEXT)
    with pytest.raises(TopologyError, match=r"Wrong\.emit_batch returned a generator; it must emit by its"):
        list(emitter.emit(attempt(1), BATCH_PARTITION, BatchTransaction(1, {"first": 0, "count": 1})))


def test_a_stored_meta_of_another_kind() -> None:
    with pytest.raises(CorruptStateError, match="the meta of txid 7: unknown field last in a Block"):
        Numbers().coordinator(CONTEXT).plan({BATCH_PARTITION: BatchTransaction(7, {"last": 0})}, 10)
    codec = MetaCodec(BatchTransaction)
    for wrong in ({"txid": 0, "meta": {}}, {"txid": 1}, {"txid": True, "meta": {}}):
        with pytest.raises(CorruptStateError):
            codec.decode_meta(wrong, "here")


# --- what is emitted ------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> BatchCollector:
    return BatchCollector("numbers", parse_schema("n bigint, word string"))


def test_rows_and_batches_keep_their_order(
    collector: BatchCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txstream.spouts.batch_spouts._FLUSH_ROWS", 2)
    row = [1, "a"]
    collector.emit(row)
    row[0] = 99
    collector.emit((2, None))
    collector.emit((3, "c"))
    schema = parse_schema("n bigint, word string")
    collector.emit_batch(pa.record_batch([pa.array([4]), pa.array(["d"])], schema=schema))
    collector.emit_batch(pa.record_batch([[], []], schema=schema))
    collector.emit((5, "e"))
    batches = collector.finish()
    assert [batch.num_rows for batch in batches] == [2, 1, 1, 1]
    assert [n for batch in batches for n in batch.to_pydict()["n"]] == [1, 2, 3, 4, 5]


def test_nothing_emitted(collector: BatchCollector) -> None:
    assert collector.finish() == []


def test_a_collector_is_of_no_use_once_its_batch_is_finished(collector: BatchCollector) -> None:
    collector.finish()
    with pytest.raises(UsageError, match="used a collector outside of its attempt"):
        collector.emit((1, "late"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            (1,),
            r"emitted \(1,\) to stream 'default', which takes a tuple of 2 field\(s\): n bigint, word string",
        ),
        ("ab", "emitted 'ab' to stream 'default', which takes a tuple"),
        ({"n": 1, "word": "a"}, "which takes a tuple"),
        (5, "emitted 5 to stream 'default'"),
        ((1.5, "a"), r"emitted 1.5 \(float\) in field 'n' of stream 'default', which is declared as bigint"),
        ((1, 2), r"emitted 2 \(int\) in field 'word' of stream 'default', which is declared as string"),
    ],
)
def test_wrong_values(collector: BatchCollector, values: Any, message: str) -> None:
    with pytest.raises(TupleError, match=message):
        emit_all(collector, (1, "ok"), values)


def emit_all(collector: BatchCollector, *rows: Any) -> None:
    for row in rows:
        collector.emit(row)
    collector.finish()


def test_wrong_streams_and_batches(collector: BatchCollector) -> None:
    with pytest.raises(TupleError, match="emitted to stream 'other', but declares 'default'"):
        collector.emit((1, "a"), "other")
    with pytest.raises(TupleError, match="emitted directly to stream 'default', which is not declared with"):
        collector.emit_direct(0, (1, "a"))
    with pytest.raises(
        TupleError, match="emitted a batch of n bigint to stream 'default', which is declared"
    ):
        collector.emit_batch(pa.record_batch([pa.array([1])], names=["n"]))
