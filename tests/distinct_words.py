"""Bolts in a module that is shipped to executors. It is at the top level, as a user's would be."""

from __future__ import annotations

import threading
from typing import Any

import txstream
from txstream.core.transaction import sequence_of


class DistinctWords(txstream.BatchBolt):
    """Emits each word of the batch once, which is right only if all tuples of a word come to one task."""

    output = "word string, batches bigint"

    def prepare(self, context: Any, collector: txstream.OutputCollector, batch_id: Any) -> None:
        self.collector = collector
        self.words: set[str] = set()

    def execute(self, tup: txstream.Tuple) -> None:
        self.words.add(tup["word"])

    def finish_batch(self) -> None:
        for word in sorted(self.words):
            self.collector.emit((word, 1))


class StuckOnce(DistinctWords):
    """The run's fifth attempt never ends by itself; every other one is well. The first ones, before any batch
    has been processed, would have the workers' warm-up on top of the message timeout."""

    def finish_batch(self) -> None:
        if sequence_of(self.attempt.attempt) == 5:
            threading.Event().wait()
        super().finish_batch()

    def prepare(self, context: Any, collector: txstream.OutputCollector, batch_id: Any) -> None:
        super().prepare(context, collector, batch_id)
        self.attempt: txstream.TransactionAttempt = batch_id
