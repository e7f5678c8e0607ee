"""What a tuple costs in a Python bolt: CPU time of one task's runtime, without Spark or a source.

    python benchmarks/bolts.py [--tuples N] [--chunk N]

Each line does what the one before does and a little more, so the differences are the costs of reading a
field, of emitting, and of types. The stopwatch runs once for each chunk, so `--chunk 1` shows its cost. The
last line does the same work by column.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import txstream
from txstream.api.bolts import Bolt
from txstream.api.spouts import SpoutContext
from txstream.api.tuples import Chunk, Tuple
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.batch.stage import Stopwatch, TaskRuntime
from txstream.engine.batch.worker_process import WorkerProcess

WORDS = pa.schema([("word", pa.string()), ("n", pa.int64())])


class Nothing(txstream.BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        """Do nothing: this measures the loop alone."""


class ReadsOne(Nothing):
    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        tup["word"]


class EmitsSame(Nothing):
    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        collector.emit((tup["word"],))


class OneLine(Nothing):
    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        collector.emit((tup["word"].upper(),))


class TwoColumns(Nothing):
    output = "word string, n bigint"

    def execute(self, tup: Tuple, collector: txstream.OutputCollector) -> None:
        collector.emit((tup["word"].upper(), tup["n"]))


@txstream.bolt(output="word string")
def yields(tup: Tuple) -> Any:
    yield tup["word"].upper()


@txstream.bolt(output="word string")
def returns(tup: Tuple) -> str:
    return tup["word"].upper()  # type: ignore[no-any-return]


class InColumns(txstream.BasicBolt):
    output = "word string, n bigint"

    def execute_batch(self, batch: pa.RecordBatch, collector: txstream.OutputCollector) -> None:
        word = pc.utf8_upper(batch.column("word"))
        collector.emit_batch(batch.set_column(0, "word", word))


BOLTS: dict[str, Bolt] = {
    "execute(tup, collector): nothing": Nothing(),
    '  tup["word"]': ReadsOne(),
    '  emit((tup["word"],))': EmitsSame(),
    '  emit((tup["word"].upper(),))': OneLine(),
    '  emit((tup["word"].upper(), tup["n"]))': TwoColumns(),
    "@bolt: return": returns,
    "@bolt: yield": yields,
    "execute_batch: utf8_upper": InColumns(),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tuples", type=int, default=500_000)
    parser.add_argument("--chunk", type=int, default=50_000)
    options = parser.parse_args()
    words = [f"word{number % 9973}" for number in range(options.tuples)]
    batch = pa.RecordBatch.from_pydict({"word": words, "n": range(options.tuples)}, WORDS)
    chunks = [batch.slice(first, options.chunk) for first in range(0, options.tuples, options.chunk)]
    for what, bolt in BOLTS.items():
        seconds = min(measured(bolt, chunks) for _ in range(3))
        each = seconds / options.tuples
        print(f"{what:40s} {1e9 * each:8,.0f} ns  {1 / each:14,.0f} a second")


def measured(bolt: Bolt, chunks: list[pa.RecordBatch]) -> float:
    """Return the CPU seconds of one task for all chunks. What it emits is dropped."""
    builder = txstream.TransactionalTopologyBuilder(
        "bench", "words", txstream.OpaqueSpout(txstream.MemorySpout(WORDS, {"p0": []}))
    )
    builder.set_bolt("bolt", bolt).local_or_shuffle_grouping("words")
    builder.set_bolt("end", End()).local_or_shuffle_grouping("bolt")
    plan = compile_topology(builder.build(), SpoutContext("bench", "words", {}), "0")
    attempt = TransactionAttempt(Txid(1), attempt_id(1, 1))
    send: Callable[..., None] = lambda *_: None  # noqa: E731 - nobody reads what it sends
    task = TaskRuntime(plan.bolts[0], 0, 0, attempt, WorkerProcess(plan), send, Stopwatch())
    started = time.process_time()
    for chunk in chunks:
        task.receive(Chunk(chunk, "words"))
    task.finish()
    return time.process_time() - started


class End(txstream.BatchBolt, txstream.Committer):
    def execute(self, tup: Tuple) -> None:
        """Do nothing: this bolt is here because a topology needs a committer."""


if __name__ == "__main__":
    main()
