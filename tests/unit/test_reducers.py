"""Reducers as declarations: what they take, what they give, how they show."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txstream.api.reducers import Count, Max, Min, Reducer, Sum

NUMBERS = [pa.int8(), pa.int64(), pa.uint32(), pa.float32(), pa.float64(), pa.decimal128(9, 2)]
TIMES = [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")]
OTHERS = [pa.string(), pa.binary(), pa.bool_(), pa.list_(pa.int64())]


@pytest.mark.parametrize("data_type", [*NUMBERS, *TIMES, *OTHERS], ids=str)
def test_what_each_reducer_takes(data_type: pa.DataType) -> None:
    assert Count("x").accepts(data_type)
    assert Sum("x").accepts(data_type) == (data_type in NUMBERS)
    for order in (Min("x"), Max("x")):
        assert order.accepts(data_type) == (data_type in [*NUMBERS, *TIMES])


@pytest.mark.parametrize("data_type", [*NUMBERS, *TIMES], ids=str)
def test_arrow_has_both_steps_of_what_a_reducer_says_it_takes(data_type: pa.DataType) -> None:
    table = pa.table({"k": [1, 1], "x": pa.array([None, None], data_type)})
    taken = [r for r in (Count("x"), Sum("x"), Min("x"), Max("x")) if r.accepts(data_type)]
    assert len(taken) >= 3
    for reducer in taken:
        first = table.group_by("k").aggregate([("x", reducer.partial)])
        again = first.group_by("k").aggregate([(f"x_{reducer.partial}", reducer.merge)])
        assert again.num_rows == 1


@pytest.mark.parametrize(
    ("reducer", "data_type", "expected"),
    [
        (Count(), None, pa.int64()),
        (Count("x"), pa.string(), pa.int64()),
        (Sum("x"), pa.int8(), pa.int64()),
        (Sum("x"), pa.float32(), pa.float64()),
        (Sum("x"), pa.decimal128(9, 2), pa.decimal128(9, 2)),
        (Min("x"), pa.float32(), pa.float32()),
        (Max("x"), pa.date32(), pa.date32()),
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
    assert [str(r) for r in (Count(), Count("x"), Sum("n"), Min("n"), Max("n"))] == [
        "Count()",
        "Count(x)",
        "Sum(n)",
        "Min(n)",
        "Max(n)",
    ]
