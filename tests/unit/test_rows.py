"""Python values become Arrow values, and none is changed to fit."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from support.lists import each

from txstream.api.rows import UnfitValueError, to_array, to_record_batch
from txstream.api.schema import parse_schema

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
DAY = datetime.date(2026, 11, 21)


@each(
    ("declared", "values"),
    [
        ("string", ["a", None, "größe"]),
        ("bigint", [1, None, -(2**63)]),
        ("tinyint", [None, None]),
        ("double", [1.5, 2.0, None]),
        ("boolean", [True, False, None]),
        ("binary", [b"\xff", None]),
        ("date", [DAY, None]),
        ("timestamp", [NOON, None]),
        ("decimal(10,2)", [Decimal("1.25"), None]),
        ("array<bigint>", [[1, None], [], None]),
        ("map<string,bigint>", [[("a", 1)], None]),
        ("struct<a:bigint,b:string>", [{"a": 1, "b": None}, None]),
        ("array<struct<at:date>>", [[{"at": DAY}], None]),
    ],
)
def test_values_come_back_as_they_were(declared: str, values: list[Any]) -> None:
    schema = parse_schema(f"x {declared}")
    batch = to_record_batch([(value,) for value in values], schema)
    assert batch.schema.equals(schema)
    assert batch.column(0).to_pylist() == values


@each(
    ("declared", "value"),
    [
        ("bigint", 1.5),
        ("bigint", "1"),
        ("bigint", True),
        ("bigint", 2**63),
        ("tinyint", 128),
        ("string", 1),
        ("string", "\ud800"),
        ("boolean", 1),
        ("date", NOON),
        ("timestamp", 1.5),
        ("decimal(10,2)", Decimal("1.255")),
        ("decimal(10,2)", Decimal("1.5" + 60 * "0")),
        ("array<decimal(10,2)>", [Decimal("1.5" + 60 * "0")]),
        ("array<bigint>", [1, 2.5]),
        ("array<string>", "abc"),
        ("array<bigint>", {1, 2}),
        ("array<array<date>>", [[NOON]]),
        ("map<string,bigint>", {"a": 1.5}),
        ("struct<a:bigint>", {"a": 1.5}),
        ("struct<a:bigint>", {"a": 1, "b": 2}),
        ("struct<a:bigint>", 5),
        ("array<struct<a:bigint>>", [{"a": 0.5}]),
    ],
)
def test_what_does_not_fit_is_refused_with_its_row(declared: str, value: Any) -> None:
    schema = parse_schema(f"ok string, x {declared}")
    with pytest.raises(UnfitValueError) as caught:
        to_record_batch([("a", None), ("b", value)], schema)
    assert (caught.value.row, caught.value.field.name) == (1, "x")
    assert caught.value.value == value


def test_null_in_a_field_that_has_none() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    assert to_record_batch([(1,)], schema).num_rows == 1
    with pytest.raises(UnfitValueError) as caught:
        to_record_batch([(1,), (None,)], schema)
    assert caught.value.row == 1


def test_no_rows() -> None:
    schema = parse_schema("a string, n bigint")
    assert to_record_batch([], schema).schema.equals(schema)


def test_nulls_alone_take_the_declared_type() -> None:
    assert to_array([None, None], pa.int32()).type == pa.int32()
