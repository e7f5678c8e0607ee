"""A bolt that takes whole Arrow batches (`execute_batch`) and fails at one: only its bad records are dead."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.testing import TopologyTest


class ToNumber(BasicBolt):
    """Casts a whole column at once, which raises for all rows if one is no number. Emits two for each."""

    output = "kind string, n bigint"
    sizes: ClassVar[list[int]] = []

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        self.sizes.append(batch.num_rows)
        numbers = batch.column("word").cast(pa.int64())
        for kind in ("seen", "again"):
            kinds = pa.array([kind] * len(numbers), pa.string())
            collector.emit_batch(pa.record_batch([kinds, numbers], names=["kind", "n"]))


class Ratio(BasicBolt):
    """Behind an exchange: divides a whole column at once, which raises for all rows if one is 0."""

    output = "kind string, n bigint"

    def execute_batch(self, batch: pa.RecordBatch, collector: OutputCollector) -> None:
        parts = pc.divide(pa.scalar(1_000_000), batch.column("n"))
        collector.emit_batch(pa.record_batch([batch.column("kind"), parts], names=["kind", "n"]))


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_a_bad_record_in_the_middle_of_a_batch_is_the_only_one_that_is_dead(
    spout: type[OpaqueSpout[Any] | TransactionalSpout[Any]], tmp_path: Path
) -> None:
    words = [str(number % 9 + 1) for number in range(100)]
    words[41], words[42], words[77] = "x", "0", "1e"  # the second fails in `ratio`, the others in `number`
    others = ["5", "none", "6"]
    good = [int(word) for word in [*words, *others] if word.isdigit() and word != "0"]
    path = tmp_path / "state.db"
    ToNumber.sizes.clear()
    with MemorySpout("word string", {"p": words, "q": others}) as source:
        builder = TransactionalTopologyBuilder(
            "words", "words", spout(source), dead_letters=DeadLetters(max_share=1.0)
        )
        builder.set_bolt("number", ToNumber(), 2).shuffle_grouping("words")
        builder.set_bolt("ratio", Ratio(), 2).fields_grouping("number", "kind")
        state = SqlState("counts", key="kind string, n bigint", value="times bigint")
        store = builder.set_committer_bolt("store", SqlStateBolt(state, times=Count()))
        store.fields_grouping("ratio", "kind")
        with TopologyTest(builder, database=f"sqlite:///{path}") as test:
            test.run()
            assert len(test.attempts(1)) == 2
    # What is a batch to the bolt has several rows: the test would show nothing if rows came one by one.
    assert max(ToNumber.sizes) > 10

    expected = Counter((kind, 1_000_000 // n) for n in good for kind in ("again", "seen"))
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT kind, n, times FROM counts").fetchall()
    letters = connection.execute(
        "SELECT place, component, exception, value, status FROM txstream_dead_letter ORDER BY place"
    ).fetchall()
    connection.close()
    assert {(kind, n): times for kind, n, times in rows} == dict(expected)
    assert [
        (place, component, json.loads(value)["word"], status)
        for place, component, _, value, status in letters
    ] == [
        ("p@41", "number", "x", "dead"),
        ("p@42", "ratio", "0", "dead"),
        ("p@77", "number", "1e", "dead"),
        ("q@1", "number", "none", "dead"),
    ]
    assert {exception for _, _, exception, _, _ in letters} == {"ArrowInvalid"}
