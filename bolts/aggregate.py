"""Aggregation within a batch: `ReduceBolt`, and `CountBolt` for the most common case."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from txstream.api.bolts import MergeableBolt, OutputFieldsDeclarer
from txstream.api.reducers import Count, Reducer
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.bolts.reducer_checks import check_reducers
from txstream.core.errors import TopologyError
from txstream.state.folding import Fold, bound


class ReduceBolt(MergeableBolt):
    """Emits one row per key and batch: `ReduceBolt("word", n=Count(), longest=Max("length"))`.

    A row has the key fields and one field per reducer, and is emitted at the end of the batch. Group the
    input by the key. If the bolt feeds only states that merge its rows in the same way, it runs where its
    tuples are and emits one row per key and Spark task. Without a key it reduces all of a task's tuples into
    one row, even if there were none; then group its input globally. Raises TopologyError if a field is
    missing or a reducer cannot take its type.
    """

    def __init__(self, *keys: str, **reducers: Reducer) -> None:
        if not reducers:
            raise TopologyError("ReduceBolt needs at least one reducer, for example n=Count()")
        self.keys = keys
        self.reducers: Mapping[str, Reducer] = bound(reducers)

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        fields = [declarer.input_field(key) for key in self.keys]
        check_reducers(declarer, self.reducers)
        for name, reducer in self.reducers.items():
            source = declarer.input_field(reducer.field).type if reducer.field else None
            fields.append(pa.field(name, reducer.result_type(source)))
        declarer.declare(pa.schema(fields))
        self.fold = Fold(self.keys, self.reducers, pa.schema(fields))

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        self.fold.add(chunk.batch)

    def finish_batch(self) -> None:
        for batch in self.fold.finish().to_batches():
            self.collector.emit_batch(batch)


class CountBolt(ReduceBolt):
    """Counts how often each key occurs in the batch: `CountBolt("word")` emits `word` and `n bigint`."""

    def __init__(self, *keys: str, output_field: str = "n") -> None:
        super().__init__(*keys, **{output_field: Count()})
