"""A user's module with a bolt, shipped to executors: at the top level, as a user's would be."""

from __future__ import annotations

from typing import Any

import txstream


class DistinctWords(txstream.BatchBolt):
    """Each word of the batch once: right only if all tuples of a word come to one task."""

    output = "word string, batches bigint"

    def prepare(self, context: Any, collector: txstream.OutputCollector, batch_id: Any) -> None:
        self.collector = collector
        self.words: set[str] = set()

    def execute(self, tup: txstream.Tuple) -> None:
        self.words.add(tup["word"])

    def finish_batch(self) -> None:
        for word in sorted(self.words):
            self.collector.emit((word, 1))
