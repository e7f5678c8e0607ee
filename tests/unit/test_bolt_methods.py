"""What a bolt's methods may be and return: nothing that they yield or return is lost silently."""

from __future__ import annotations

import contextlib
import functools
import queue
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.bolts import CountByHand, Passing, Split, chain, compiled, failure, run, word_count
from support.inmemory import MemoryLog, attempt
from support.lists import each

import txstream
from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, DataFrameBolt, OutputCollector
from txstream.api.spouts import OpaqueSpout
from txstream.api.tuples import Chunk, Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import BatchFailedError, BoltError, TopologyError, UsageError
from txstream.engine.letters.retry_policy import Verdict, judge
from txstream.spouts.memory import MemorySpout
from txstream.testing import InProcessRunner, TopologyTest, run_bolt

LOG = MemoryLog({"a": ["the cat"]})


class Words(BatchBolt):
    """A correct bolt; subclasses change one method."""

    output = "word string"

    def execute(self, tup: Tuple) -> None:
        self.collector.emit((tup["value"],))


def _yielding(self: Any, extra: str, tup: Tuple, collector: OutputCollector) -> Iterator[tuple[str]]:
    yield (tup["value"] + extra,)


class ExecuteYields(Passing):
    def execute(self, tup: Tuple, collector: OutputCollector) -> Iterator[Any]:  # type: ignore[override]
        yield tup.values


class ExecuteIsAsync(Passing):
    async def execute(self, tup: Tuple, collector: OutputCollector) -> None:  # type: ignore[override]
        collector.emit(tup.values)


class ExecuteYieldsAsync(Passing):
    async def execute(  # type: ignore[override]
        self, tup: Tuple, collector: OutputCollector
    ) -> AsyncIterator[Any]:
        yield tup.values


class ExecuteIsPartial(Passing):
    execute = functools.partialmethod(_yielding, "!")


class BatchExecuteYields(Words):
    def execute(self, tup: Tuple) -> Iterator[Any]:  # type: ignore[override]
        yield (tup["value"],)


class ChunkYields(Words):
    def execute_chunk(self, chunk: Chunk) -> Iterator[Any]:  # type: ignore[override]
        yield from chunk.tuples()


class FinishYields(CountByHand):
    def finish_batch(self) -> Iterator[Any]:  # type: ignore[override]
        yield from self.counts.items()


class FinishIsAsync(CountByHand):
    async def finish_batch(self) -> None:  # type: ignore[override]
        pass


class PrepareYields(Words):
    def prepare(self, *given: Any) -> Iterator[None]:  # type: ignore[override]
        super().prepare(*given)
        yield


class BatchOfRowsYields(BasicBolt):
    output = "value string"

    def execute_batch(  # type: ignore[override]
        self, batch: pa.RecordBatch, collector: OutputCollector
    ) -> Iterator[Any]:
        yield batch


class Neither(BasicBolt):
    output = "value string"


class TransformIsAsync(DataFrameBolt):
    output = "value string"

    async def transform(self, df: Any) -> Any:
        return df


@each(
    ("bolt", "message"),
    [
        (ExecuteYields(), "ExecuteYields.execute is a generator"),
        (ExecuteIsAsync(), "ExecuteIsAsync.execute is async"),
        (ExecuteYieldsAsync(), "ExecuteYieldsAsync.execute is async"),
        (ExecuteIsPartial(), "ExecuteIsPartial.execute is a generator"),
        (BatchExecuteYields(), "BatchExecuteYields.execute is a generator"),
        (ChunkYields(), "ChunkYields.execute_chunk is a generator"),
        (FinishYields(), "FinishYields.finish_batch is a generator"),
        (FinishIsAsync(), "FinishIsAsync.finish_batch is async"),
        (PrepareYields(), "PrepareYields.prepare is a generator"),
        (TransformIsAsync(), "TransformIsAsync.transform is async"),
        (BatchOfRowsYields(), "BatchOfRowsYields.execute_batch is a generator"),
        (Neither(), "Neither has neither execute nor execute_batch; override one of them"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Bolt) else "",
)
def test_what_would_do_nothing_is_refused_when_the_topology_is_built(bolt: Bolt, message: str) -> None:
    with pytest.raises(TopologyError, match=f"^component 'b0': {message}"):
        chain(LOG, bolt)
    with pytest.raises(TopologyError, match=f"^component 'bolt': {message}"):
        run_bolt(bolt, ["x"], "value string")


def test_a_committer_that_yields_is_refused_too() -> None:
    builder = txstream.TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySpout("value string")))
    builder.set_committer_bolt("size", FinishYields()).global_grouping("lines")
    with pytest.raises(TopologyError, match=r"'size': FinishYields\.finish_batch is a generator"):
        builder.build()


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that hides what it wraps."""

    def call(*given: Any) -> Any:
        return function(*given)

    return call


class HiddenGenerator(Passing):
    execute = wrapped(ExecuteYields.execute)


class HiddenCoroutine(Passing):
    execute = wrapped(ExecuteIsAsync.execute)


class ReturnsRows(Passing):
    def execute(self, tup: Tuple, collector: OutputCollector) -> list[Any]:  # type: ignore[override]
        return [tup.values]


class ReturnsNoRows(Passing):
    def execute(self, tup: Tuple, collector: OutputCollector) -> list[Any]:  # type: ignore[override]
        return []


class BatchReturnsRow(Words):
    def execute(self, tup: Tuple) -> Any:
        return tup.values


class ReturnsRowUnderChunk(BatchReturnsRow):
    def execute_chunk(self, chunk: Chunk) -> None:
        super().execute_chunk(chunk)


class BatchReturnsBatch(BasicBolt):
    output = "word string"

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> Any:
        return batch


class ChunkReturnsRows(Words):
    def execute_chunk(self, chunk: Chunk) -> Any:
        return chunk.batch


class FinishReturnsRows(CountByHand):
    def finish_batch(self) -> Any:
        return list(self.counts.items())


class PrepareReturns(Words):
    def prepare(self, *given: Any) -> Any:
        return wrapped(PrepareYields.prepare)(self, *given)


WRONG_RESULTS = [
    (HiddenGenerator(), r"HiddenGenerator.execute returned a generator"),
    (HiddenCoroutine(), r"HiddenCoroutine.execute returned a coroutine"),
    (ReturnsRows(), r"ReturnsRows.execute returned \[\('x',\)\]"),
    (ReturnsNoRows(), r"ReturnsNoRows.execute returned \[\]"),
    (BatchReturnsRow(), r"BatchReturnsRow.execute returned \('x',\)"),
    (ReturnsRowUnderChunk(), r"ReturnsRowUnderChunk.execute returned \('x',\)"),
    (ChunkReturnsRows(), r"ChunkReturnsRows.execute_chunk returned pyarrow.RecordBatch"),
    (BatchReturnsBatch(), r"BatchReturnsBatch.execute_batch returned pyarrow.RecordBatch"),
    (PrepareReturns(), r"PrepareReturns.prepare returned a generator"),
]


@pytest.mark.filterwarnings("error")
@each(
    ("bolt", "message"),
    WRONG_RESULTS,
    ids=lambda value: type(value).__name__ if isinstance(value, Bolt) else "",
)
def test_any_result_but_none_fails_the_attempt_as_a_bug(bolt: Bolt, message: str) -> None:
    message = f"component 'b0', task 0: {message}"
    with pytest.raises(BoltError, match=message) as caught:
        run_bolt(bolt, ["x"], "word string", component="b0")
    assert judge(caught.value) is Verdict.BUG
    topology = chain(MemoryLog({"a": ["x"]}), bolt, parallelism=1, output="word string")
    with TopologyTest(topology) as test:
        with pytest.raises(BoltError, match=message):
            test.process(1)
        assert test.current == 1


def test_rows_that_finish_batch_returns_fail_the_attempt() -> None:
    error = failure(word_count(LOG, FinishReturnsRows(), parallelism=1), LOG)
    assert type(error) is BoltError
    assert "component 'count', task 0: FinishReturnsRows.finish_batch returned [('the', 1), " in str(error)
    assert "emit tuples by the collector, and return None" in str(error)


# --- methods that nobody calls ----------------------------------------------------------------------------


class CamelCase(CountByHand):
    def finishBatch(self) -> None:  # noqa: N802 - as in Storm
        pass


class Process(Passing):
    def process(self, tup: Tuple) -> None:
        pass


class Capital(CountBolt):
    def Execute(self, tup: Tuple) -> None:  # noqa: N802 - the mistake
        pass


class Finish(CountByHand):
    def finish(self) -> None:
        pass


class Misspelt(CountByHand):
    def finish_bach(self) -> None:
        pass


class Cleanup(Passing):
    def cleanup(self) -> None:
        pass


class BasicWithFinish(Passing):
    def finish_batch(self) -> None:
        pass


class FrameWithExecute(DataFrameBolt):
    output = "value string"

    def execute(self, tup: Tuple) -> None:
        pass


@each(
    ("bolt", "message"),
    [
        (CamelCase(), "CamelCase.finishBatch is never called; did you mean finish_batch?"),
        (Process(), "Process.process is never called; did you mean execute?"),
        (Capital("value"), "Capital.Execute is never called; did you mean execute?"),
        (Finish(), "Finish.finish is never called; did you mean finish_batch?"),
        (Misspelt(), "Misspelt.finish_bach is never called; did you mean finish_batch?"),
        (Cleanup(), "Cleanup.cleanup is never called; did you mean close_worker?"),
        (
            BasicWithFinish(),
            "BasicWithFinish.finish_batch is never called, because it is a BasicBolt; a BatchBolt has",
        ),
        (
            FrameWithExecute(),
            "FrameWithExecute.execute is never called, because it is a DataFrameBolt; a BasicBolt or",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Bolt) else "",
)
def test_a_method_that_is_called_almost_like_a_contracts_is_a_warning(bolt: Bolt, message: str) -> None:
    builder = txstream.TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySpout("value string")))
    builder.set_bolt("near", bolt).shuffle_grouping("lines")
    builder.set_committer_bolt("size", Words()).global_grouping("lines")
    with pytest.warns(txstream.TopologyWarning) as caught:
        builder.build()
    (warning,) = caught
    assert str(warning.message).startswith(f"component 'near': {message}")
    assert warning.filename == __file__


class Helpers(CountByHand):
    """A bolt with helper methods, which its own methods call."""

    def execute(self, tup: Tuple) -> None:
        self.process(tup)

    def process(self, tup: Tuple) -> None:
        super().execute(tup)

    def finish_batch(self) -> None:
        ends: list[Callable[[], None]] = [lambda: self.finish()]
        ends[0]()

    def finish(self) -> None:
        super().finish_batch()

    def _execute(self) -> None:
        pass

    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def prepared(self) -> bool:
        return True


def test_methods_of_a_bolts_own_are_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topology = word_count(LOG, Helpers(), parallelism=1)
        assert topology.bolts
        run(topology, LOG)


# --- collectors that are kept ----------------------------------------------------------------------------

KEPT: list[OutputCollector] = []


class Keeps(Words):
    """Emits with the first collector that any of its instances got."""

    def prepare(self, *given: Any) -> None:
        super().prepare(*given)
        KEPT.append(self.collector)

    def execute(self, tup: Tuple) -> None:
        KEPT[0].emit((tup["value"],))


class KeepsAndFails(Keeps):
    def finish_batch(self) -> None:
        raise BatchFailedError("the first time")


@pytest.mark.parametrize("bolt", [Keeps(), KeepsAndFails()], ids=["finished", "failed"])
def test_a_collector_that_is_kept_past_its_attempt_is_an_error(bolt: Keeps) -> None:
    KEPT.clear()
    log = MemoryLog({"a": ["x"]})
    runner = InProcessRunner(compiled(chain(log, bolt, parallelism=1)))
    with contextlib.suppress(BatchFailedError):
        runner.run(attempt(1), BatchMetas(log.everything()))
    with pytest.raises(UsageError, match="component 'b0' used a collector outside of its attempt"):
        runner.run(attempt(2), BatchMetas(log.everything()))


@each("how", ["emit", "emit_batch", "emit_direct"])
def test_a_collector_is_of_no_use_after_finish_batch(how: str) -> None:
    instance: Any = run_bolt(Words(), ["x"], "value string").instance
    given: dict[str, tuple[Any, ...]] = {
        "emit": (("y",),),
        "emit_batch": (pa.record_batch({"word": ["y"]}),),
        "emit_direct": (0, ("y",)),
    }
    with pytest.raises(UsageError, match="component 'bolt' used a collector outside of its attempt"):
        getattr(instance.collector, how)(*given[how])


class Holding(Passing):
    def __init__(self, what: Callable[[], Any]) -> None:
        self.kept = {"deep": [what()]}


@each(
    "what", [threading.Lock, threading.RLock, threading.Event, queue.Queue, socket.socket, lambda: iter_of(3)]
)
def test_a_bolt_that_holds_a_lock_or_a_connection_is_refused_when_it_is_built(
    what: Callable[[], Any],
) -> None:
    with pytest.raises(TopologyError, match=r"component 'b0' cannot be shipped .* open them in prepare\(\)"):
        chain(LOG, Holding(what))


def iter_of(number: int) -> Iterator[int]:
    yield from range(number)


def test_what_can_be_shipped_is_built_with_or_without_a_name_of_its_own() -> None:
    """Plain pickling knows no lambda, module or local class; the engine's takes them."""

    class Local(Passing):
        def __init__(self, *kept: Any) -> None:
            self.kept = kept

    for kept in ((lambda: 1,), (queue,), (Local,)):
        compiled(chain(LOG, Split(), Local(*kept)))
