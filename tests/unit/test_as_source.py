"""`as_source`: a spout of tracked tuples as the source of a topology that runs in batches."""

from __future__ import annotations

import pickle
from collections import deque
from pathlib import Path
from typing import Any

import pytest
from support.inmemory import CONTEXT, attempt
from support.source_runs import SourceRun, Store, counting

from txstream import BatchFailedError, Spout, SpoutCollector, SpoutContext
from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.errors import DataLostError, TopologyError, TupleError
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.tracked import MessageId
from txstream.batch_metas import BatchMetas
from txstream.spouts.tracked_source import as_source
from txstream.transaction import TransactionAttempt, Txid


class Queue:
    """A queue that redelivers what was not acked when its reader goes away."""

    def __init__(self, *values: str) -> None:
        self.waiting = deque(enumerate(values))
        self.delivered: dict[int, str] = {}
        self.acked: list[int] = []
        self.calls: list[str] = []


QUEUES: dict[str, Queue] = {}


class QueueSpout(Spout):
    output = "value string"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def queue(self) -> Queue:
        return QUEUES[self.name]

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        self.queue.calls.append("open")
        self.collector = collector
        self.queue.waiting.extendleft(reversed(self.queue.delivered.items()))
        self.queue.delivered = {}

    def next_tuple(self) -> None:
        if self.queue.waiting:
            number, value = self.queue.waiting.popleft()
            self.queue.delivered[number] = value
            self.collector.emit([value], number)

    def ack(self, message_id: MessageId) -> None:
        assert isinstance(message_id, int)
        del self.queue.delivered[message_id]
        self.queue.acked.append(message_id)

    def deactivate(self) -> None:
        self.queue.calls.append("deactivate")

    def close(self) -> None:
        self.queue.calls.append("close")


@pytest.fixture
def queue(unique: str) -> Queue:
    QUEUES[unique] = Queue(*"abcabca")
    return QUEUES[unique]


@pytest.fixture
def source(queue: Queue, unique: str) -> NonTransactionalSpout[Any]:
    return NonTransactionalSpout(as_source(QueueSpout(unique), batch_records=2))


def test_messages_are_acked_when_their_batch_is_committed(
    queue: Queue, source: NonTransactionalSpout[Any]
) -> None:
    store = Store()
    acked: list[list[int]] = []
    store.table.before = lambda attempt: acked.append(list(queue.acked))
    SourceRun(counting(source, max_spout_pending=1), store, until=4).complete()
    assert store.totals("value", "times") == {"a": 3, "b": 2, "c": 2}
    assert len(acked) == 4
    for number, before in enumerate(acked):
        # Beside the next batch: a batch is acked by the time when the one after the next commits.
        assert 2 * (number - 1) <= len(before) <= 2 * number
    assert queue.calls == ["open", "deactivate", "close"]


def test_a_failed_batch_is_replayed_from_memory(queue: Queue, source: NonTransactionalSpout[Any]) -> None:
    store = Store()
    failed: list[TransactionAttempt] = []

    def fail_once(attempt: TransactionAttempt) -> None:
        if attempt.txid == 2 and not failed:
            failed.append(attempt)
            raise BatchFailedError("once")

    store.table.before = fail_once
    SourceRun(counting(source, max_spout_pending=3), store, until=4).complete()
    assert failed
    assert store.totals("value", "times") == {"a": 3, "b": 2, "c": 2}
    assert queue.calls.count("open") == 1


def test_another_driver_gets_again_what_was_not_acked(
    queue: Queue, source: NonTransactionalSpout[Any]
) -> None:
    store = Store()
    SourceRun(counting(source, max_spout_pending=1), store, until=2).complete()
    taken = len(queue.acked) + len(queue.delivered)
    again = len(queue.delivered)
    SourceRun(counting(source, max_spout_pending=1), store, until=2 + (7 - taken + again + 1) // 2).complete()
    totals = store.totals("value", "times")
    assert set(totals) == set("abc")
    assert sum(totals.values()) >= 7
    assert sorted({*queue.acked, *queue.delivered}) == list(range(7))


def opened(source: NonTransactionalSpout[Any]) -> tuple[Any, Any]:
    """The driver's side of a source, and a worker's."""
    shipped = pickle.loads(pickle.dumps(source.source))
    return source.source.coordinator(CONTEXT), shipped.emitter(CONTEXT)


def plan(coordinator: Any, last: BatchMetas[Any]) -> BatchMetas[Any]:
    return BatchMetas.from_plan(last.positions(), coordinator.plan(last.positions(), 1000))


def rows(emitter: Any, metas: BatchMetas[Any], txid: int) -> list[str]:
    return [
        value
        for name, meta in metas.partitions.items()
        for batch in emitter.emit(attempt(txid), name, meta)
        for value in batch.column(0).to_pylist()
    ]


def test_the_same_transaction_holds_the_same_rows_until_it_is_committed(
    queue: Queue, source: NonTransactionalSpout[Any]
) -> None:
    coordinator, emitter = opened(source)
    nothing: BatchMetas[Any] = BatchMetas({})
    first = plan(coordinator, nothing)
    second = plan(coordinator, first)
    assert plan(coordinator, nothing) == first
    assert plan(coordinator, first) == second
    assert rows(emitter, second, 2) == ["c", "a"]
    assert rows(emitter, first, 1) == ["a", "b"] == rows(emitter, first, 1)
    coordinator.cleanup_before(Txid(2))
    assert queue.acked == [0, 1]
    assert rows(emitter, second, 2) == ["c", "a"]
    with pytest.raises(DataLostError, match=r"the rows of .* are gone: .* was another driver's"):
        rows(emitter, first, 1)
    folder = Path(next(iter(second.partitions.values())).meta["folder"])
    coordinator.close()
    assert not folder.exists()


def test_a_value_that_does_not_fit_is_named(queue: Queue, source: NonTransactionalSpout[Any]) -> None:
    queue.waiting.appendleft((99, 5))  # type: ignore[arg-type]
    coordinator, _ = opened(source)
    with pytest.raises(TupleError, match=r"emitted 5 \(int\) in field 'value'"):
        plan(coordinator, BatchMetas({}))


class TwoStreams(QueueSpout):
    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare("value string")
        declarer.declare("value string", stream="more")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: as_source("orders"), "as_source takes a Spout of tracked tuples, not str"),  # type: ignore[arg-type]
        (lambda: as_source(QueueSpout("q"), batch_records=0), "batch_records is 0"),
        (lambda: as_source(TwoStreams("q")), "declares the streams default, more; as a source it must have"),
        (lambda: OpaqueSpout(as_source(QueueSpout("q"))), "use NonTransactionalSpout, not OpaqueSpout"),
        (lambda: TransactionalSpout(as_source(QueueSpout("q"))), "cannot read a batch again after a restart"),
    ],
)
def test_what_cannot_be_meant_is_refused(make: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        make()
