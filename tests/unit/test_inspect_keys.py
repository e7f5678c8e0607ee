"""Keys given by a notebook, in order or by name: of the columns' types, or refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from support.lists import each

from txstream.api.schema import parse_schema
from txstream.cli.main import main
from txstream.core.errors import UsageError
from txstream.inspect.keys import check_key

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


@each(
    ("data_type", "value"),
    [
        *(("string", text) for text in ("", " a ", "\U0001f389", "-7", "a,b='c'\n")),
        *(("binary", one) for one in (b"", b"\x00\xff")),
        *(("boolean", one) for one in (True, False)),
        *(("tinyint", one) for one in (-128, 127)),
        *(("bigint", one) for one in (-(2**63), np.int64(7))),
        *(("double", one) for one in (1.5, 2, np.float64(0.1))),
        *(("decimal(10,2)", one) for one in (Decimal("1.5"), Decimal("-99999999.99"), 3)),
        ("date", date(1, 1, 1)),
        ("timestamp", AT),
        ("timestamp", AT.astimezone(timezone(timedelta(hours=2)))),
        ("timestamp_ntz", AT.replace(tzinfo=None)),
    ],
)
def test_values_of_the_type_are_taken(data_type: str, value: Any) -> None:
    schema = parse_schema(f"k {data_type}")
    assert check_key("t", schema, [value]) == [value]
    assert check_key("t", schema, {"k": value}) == [value]


@each(
    ("data_type", "value", "words"),
    [
        ("string", 3, "expected a str, got 3"),
        ("string", None, "expected a str, got None"),
        ("string", "\ud800", "valid Unicode"),
        ("binary", "00ff", "expected bytes"),
        ("boolean", 1, "expected a bool"),
        ("int", True, "expected an int"),
        ("int", "7", "expected an int"),
        ("int", 1.0, "expected an int"),
        ("int", 2**31, "within its range"),
        ("double", "1.5", "expected a float"),
        ("decimal(10,2)", 1.5, "expected a Decimal"),
        ("decimal(10,2)", Decimal("1.555"), "within its range"),
        ("date", "2026-01-31", "expected a datetime.date"),
        ("date", 3, "expected a datetime.date"),
        ("date", AT, "expected a datetime.date"),
        ("timestamp", AT.replace(tzinfo=None), "with a time zone"),
        ("timestamp_ntz", AT, "without a time zone"),
        ("timestamp", AT.date(), "expected a datetime.datetime"),
    ],
)
def test_what_is_not_of_the_type_is_refused(data_type: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=f"key column 'k' of table 't' is .*{words}"):
        check_key("t", parse_schema(f"k {data_type}"), [value])


@each(
    ("key", "words"),
    [
        (["a"], "give 2 values, one per column, not 1"),
        (["a", 1, 2], "not 3"),
        ("ab", "give a list of 2 values"),
        ({"a": "x"}, "is a string, b int, got the columns a"),
        ({"a": "x", "b": 1, "c": 2}, "columns a, b, c"),
    ],
)
def test_a_key_of_other_columns_is_refused(key: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_key("t", parse_schema("a string, b int"), key)


def test_by_name_the_order_does_not_matter() -> None:
    assert check_key("t", parse_schema("a string, b int"), {"b": 1, "a": "x"}) == ["x", 1]


def test_an_argument_that_is_no_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["state", "get", "words", "word_count", "\udcff"]) == 2
    assert r"the argument '\udcff' is not valid utf-8" in capsys.readouterr().err
