"""DataFrame bolts without Spark: what is refused, and that the order of rows does not matter."""

from __future__ import annotations

import random
import sys
from typing import Any

import pyarrow as pa
import pytest
from support.bolts import CountByHand, compiled, words_state
from support.inmemory import MemoryLog, MemorySource, attempt
from support.lists import each

from txstream.api.bolts import DataFrameBolt, OutputFieldsDeclarer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout
from txstream.bolts.dataframes import check_dataframes, route_blocks
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import TopologyError, TupleError
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import ANSWER, Answer, Message, WorkOrder


class Declares(DataFrameBolt):
    def __init__(self, output: str | pa.Schema | None, *, direct: bool = False) -> None:
        self.schema = output
        self.direct = direct

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        if self.schema is not None:
            declarer.declare(self.schema, direct=self.direct)


def plan_with(bolt: DataFrameBolt, lines: str = "value string", above: str = "shuffle") -> ExecutionPlan:
    """A plan with `lines`, the bolt as `frame`, and the components that can be below it."""
    source = MemorySource(MemoryLog({"a": []}), lines)
    builder = TransactionalTopologyBuilder("frames", "lines", OpaqueSpout(source), 3)
    builder.set_bolt("frame", bolt).shuffle_grouping("lines")
    declared = OutputFieldsDeclarer("frame", ())
    bolt.declare_output_fields(declared)
    if "default" in declared.streams and not declared.direct_streams:
        builder.set_bolt("spread", CountByHand(), 3).shuffle_grouping("frame")
        builder.set_bolt("keyed", CountByHand(), 3).fields_grouping("frame", "word")
    builder.set_bolt("count", CountByHand()).shuffle_grouping("lines")
    builder.set_committer_bolt("store", SqlStateBolt(words_state())).fields_grouping("count", "word")
    return compiled(builder.build())


def test_missing_pandas_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_with(Declares("word string"))
    check_dataframes(plan)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        TopologyError, match=r"'frame' is a DataFrameBolt, .* pip install 'txstream\[dataframe\]'"
    ):
        check_dataframes(plan)


def test_pandas_is_asked_for_only_where_a_bolt_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    source = MemorySource(MemoryLog({"a": []}))
    builder = TransactionalTopologyBuilder("plain", "lines", OpaqueSpout(source))
    builder.set_bolt("count", CountByHand()).shuffle_grouping("lines")
    builder.set_committer_bolt("store", SqlStateBolt(words_state())).fields_grouping("count", "word")
    monkeypatch.setitem(sys.modules, "pandas", None)
    check_dataframes(compiled(builder.build()))


@each(
    ("bolt", "lines", "said"),
    [
        (Declares(None), "value string", "'frame' is a DataFrameBolt without output"),
        (Declares("word string", direct=True), "value string", "'frame' declares stream 'default' as direct"),
        (
            Declares(pa.schema([("word", pa.string()), ("n", pa.uint64())])),
            "value string",
            "field 'n' of stream 'default' of 'frame' is uint64, which Spark's DataFrames do not have",
        ),
        (
            Declares("word string"),
            pa.schema([("value", pa.string()), ("noon", pa.time32("s"))]),
            "field 'noon' of stream 'default' of 'lines' is time32",
        ),
    ],
)
def test_what_spark_cannot_compute_is_refused_before_the_first_batch(
    bolt: Any, lines: Any, said: str
) -> None:
    with pytest.raises(TopologyError, match=said):
        check_dataframes(plan_with(bolt, lines))


SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])
ROWS = [(f"w{i % 5}", i % 7, [f"t{i % 3}", None][: i % 3]) for i in range(200)] + [(None, None, None)] * 3


def blocks(rows: list[tuple[Any, ...]], size: int) -> list[pa.Table]:
    """The rows as Spark hands them over: in batches, with column names of its own."""
    tables = []
    for at in range(0, len(rows), size):
        columns = zip(*rows[at : at + size], strict=True)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        tables.append(pa.table(arrays, ["c0", "c1", "c2"]))
    return tables


def routed(plan: ExecutionPlan, tables: list[pa.Table]) -> list[tuple[int, Any]]:
    """The messages for the next stage, in a form that can be compared."""
    order = WorkOrder(attempt(1), 3, [{}, {}, {}])
    elements = list(route_blocks(plan, "frame", "default", 1, order, tables))
    assert [target for target, _ in elements] == [ANSWER, 0, 1, 2]
    assert Answer.decode(elements[0][1]).failure is None
    messages = [Message.decode(message) for target, message in elements if target != ANSWER]
    return [
        (message.sender, {parcel: table.to_pylist() for parcel, table in message.parcels.items()})
        for message in messages
    ]


def test_rows_in_another_order_make_the_same_messages() -> None:
    """Spark reads a shuffle in another order when it recomputes a partition, and an even spread depends on
    the order."""
    plan = plan_with(Declares(SCHEMA))
    first = routed(plan, blocks(ROWS, 50))
    parcels = [parcel for _, message in first for parcel in message]
    assert {(parcel.component, parcel.task) for parcel in parcels} >= {
        ("spread", 0),
        ("spread", 1),
        ("spread", 2),
    }
    for seed in range(5):
        shuffled = ROWS[:]
        random.Random(seed).shuffle(shuffled)
        assert shuffled != ROWS
        assert routed(plan, blocks(shuffled, 33 + seed)) == first


def test_values_that_do_not_fit_the_declared_type_are_an_error_of_the_component() -> None:
    narrow = pa.schema([("word", pa.string()), ("n", pa.int64(), False), ("tags", pa.list_(pa.string()))])
    plan = plan_with(Declares(narrow))
    elements = list(
        route_blocks(plan, "frame", "default", 1, WorkOrder(attempt(1), 3, [{}]), blocks(ROWS, 50))
    )
    failure = Answer.decode(elements[0][1]).failure
    assert failure is not None
    error = failure.to_error(attempt(1))
    assert type(error) is TupleError
    assert "component 'frame', task 1: component 'frame' computed" in str(error)
    assert [Message.decode(message).failure is None for _, message in elements[1:]] == [False, False, False]
