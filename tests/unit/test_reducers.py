"""Reducers as declarations: what they take, what they return, how they are shown."""

from __future__ import annotations

import operator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from support.lists import each

from txstream.api.reducers import Count, Custom, Last, Max, Min, Put, Reducer, Sum, custom
from txstream.core.errors import TopologyError

NUMBERS = [pa.int8(), pa.int64(), pa.uint32(), pa.float32(), pa.float64(), pa.decimal128(9, 2)]
TIMES = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")]
ORDERED = [pa.string(), pa.binary(), pa.bool_()]
OTHERS = [pa.list_(pa.int64()), pa.struct([("a", pa.int64())])]


@each("data_type", [*NUMBERS, *TIMES, *ORDERED, *OTHERS], ids=str)
def test_what_each_reducer_takes(data_type: pa.DataType) -> None:
    assert Count("x").accepts(data_type)
    assert Sum("x").accepts(data_type) == (data_type in NUMBERS)
    for order in (Min("x"), Max("x"), Last("x", by="t")):
        assert order.accepts(data_type) == (data_type in [*NUMBERS, *TIMES, *ORDERED])
    assert custom(max, None, field="x").accepts(data_type)


@each("data_type", [*NUMBERS, *TIMES, *ORDERED], ids=str)
def test_arrow_has_both_steps_of_what_a_reducer_says_it_takes(data_type: pa.DataType) -> None:
    table = pa.table({"k": [1, 1], "x": pa.array([None, None], data_type)})
    taken = [r for r in (Count("x"), Sum("x"), Min("x"), Max("x")) if r.accepts(data_type)]
    assert len(taken) >= 3
    for reducer in taken:
        first = table.group_by("k").aggregate([("x", reducer.partial)])
        again = first.group_by("k").aggregate([(f"x_{reducer.partial}", reducer.merge)])
        assert again.num_rows == 1


@each(
    ("reducer", "data_type", "expected"),
    [
        (Count(), None, pa.int64()),
        (Count("x"), pa.string(), pa.int64()),
        (Sum("x"), pa.int8(), pa.int64()),
        (Sum("x"), pa.float32(), pa.float64()),
        (Sum("x"), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (Min("x"), pa.float32(), pa.float32()),
        (Max("x"), pa.date32(), pa.date32()),
        (Last("x", by="t"), pa.string(), pa.string()),
        (custom(max, None), pa.int32(), pa.int32()),
        (custom(max, None, output="decimal(5,1)"), pa.int32(), pa.decimal128(5, 1)),
        (custom(max, None, output=pa.date32()), pa.int32(), pa.date32()),
    ],
    ids=str,
)
def test_what_each_reducer_gives(
    reducer: Reducer, data_type: pa.DataType | None, expected: pa.DataType
) -> None:
    assert reducer.result_type(data_type) == expected


def test_only_counts_and_sums_start_from_a_value() -> None:
    assert (Count().identity, Sum("x").identity) == (0, 0)
    assert Min("x").identity is None
    assert Max("x").identity is None


def test_merging_an_identity_changes_nothing() -> None:
    for reducer in (Count(), Sum("x")):
        merged = getattr(pc, reducer.merge)(pa.array([7, reducer.identity]))
        assert merged.as_py() == 7


def test_a_reducer_shows_what_it_reduces() -> None:
    shown = [Count(), Count("x"), Sum("n"), Min("n"), Max("n"), Last("n", by="t"), Last("n", by=("t", "u"))]
    assert [str(r) for r in (*shown, custom(max, 0), custom(max, 0, field="n"))] == [
        "Count()",
        "Count(x)",
        "Sum(n)",
        "Min(n)",
        "Max(n)",
        "Last(n by t)",
        "Last(n by t, u)",
        "custom(max, )",
        "custom(max, n)",
    ]


@each("by", ["", (), ("t", ""), (1,), None])
def test_last_needs_to_know_the_order(by: Any) -> None:
    with pytest.raises(TopologyError, match=r"Last\('x', by=.*: by is a field or a tuple of fields"):
        Last("x", by=by)


@each(
    ("arguments", "message"),
    [
        ((3, 0), "takes a function of two values, not 3"),
        ((max, 0, "quantum"), "output='quantum'.*unknown type"),
        ((max, 0, "int, y int"), "is not one type"),
    ],
)
def test_what_custom_refuses(arguments: tuple[Any, ...], message: str) -> None:
    fn, identity, *output = arguments
    with pytest.raises(TopologyError, match=message):
        custom(fn, identity, output=output[0] if output else None)


def test_the_field_of_a_custom_reducer_is_by_default_the_column() -> None:
    assert custom(max, 0).for_column("n") == custom(max, 0, field="n")
    assert custom(max, 0, field="x").for_column("n").field == "x"
    assert Count().for_column("n") == Count()


def test_merging_in_python() -> None:
    reducers = [Count(), Sum("x"), Min("x"), Max("x"), Last("x", by="t"), Put(), custom(pow, None)]
    assert [r.combine(5, 3) for r in reducers] == [8, 8, 3, 5, 3, 3, 125]


@each(
    ("identity", "values", "expected"),
    [
        (1, [2, None, 3], 6),
        (1, [None], 1),
        (1, [], 1),
        (None, [None, 2, 3], 6),
        (None, [7], 7),
        (None, [], None),
    ],
)
def test_reducing_values_skips_nulls(
    identity: int | None, values: list[int | None], expected: int | None
) -> None:
    assert Custom("x", operator.mul, identity).reduced(values) == expected
