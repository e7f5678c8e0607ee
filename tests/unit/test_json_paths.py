"""Paths and functions of times in a JSON schema: what they give, and what is refused."""

from __future__ import annotations

import pickle
from datetime import UTC, date, datetime
from typing import Any

import pytest
from support.lists import each

from txstream import Decode, KafkaSource, SchemaError
from txstream.api.spouts import SpoutContext
from txstream.spouts.formats.value_formats import FormatArguments, JsonFormat, read_fit

AT = '"2026-11-28T10:59:58.765432+02:00"'


def read(schema: str, *values: bytes | None) -> tuple[list[Any], dict[int, str]]:
    """Returns rows, and what is wrong with some, as a worker reads them that got the format by pickle."""
    read_as = pickle.loads(pickle.dumps(JsonFormat.made(FormatArguments(schema))))
    array, unfit = read_fit(read_as.reader(SpoutContext("t", "s", {})), values)
    assert array.type == read_as.type
    return array.to_pylist(), dict(unfit)


def test_a_path_gives_what_is_inside_and_null_where_it_leads_nowhere() -> None:
    schema = "id bigint, user.id as user string, user.address.`zip code` as zip string"
    rows, unfit = read(
        schema,
        b'{"id": 1, "user": {"id": "anna", "address": {"zip code": "8001"}}}',
        b'{"id": 2, "user": {"id": "bob", "address": null}}',
        b'{"id": 3, "user": {}}',
        b'{"id": 4}',
        None,
    )
    assert not unfit
    assert rows == [
        {"id": 1, "user": "anna", "zip": "8001"},
        {"id": 2, "user": "bob", "zip": None},
        {"id": 3, "user": None, "zip": None},
        {"id": 4, "user": None, "zip": None},
        None,
    ]


@each(
    ("unit", "begins"),
    [
        ("second", datetime(2026, 11, 28, 8, 59, 58, tzinfo=UTC)),
        ("minute", datetime(2026, 11, 28, 8, 59, tzinfo=UTC)),
        ("hour", datetime(2026, 11, 28, 8, tzinfo=UTC)),
        ("DAY", datetime(2026, 11, 28, tzinfo=UTC)),
        ("month", datetime(2026, 11, 1, tzinfo=UTC)),
        ("year", datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_function_gives_the_beginning_in_utc(unit: str, begins: datetime) -> None:
    rows, _ = read(f"{unit}(at) as t timestamp, at timestamp", f'{{"at": {AT}}}'.encode(), b"{}")
    assert rows == [
        {"t": begins, "at": datetime(2026, 11, 28, 8, 59, 58, 765432, tzinfo=UTC)},
        {"t": None, "at": None},
    ]


def test_times_before_1970_without_a_zone_and_dates() -> None:
    schema = "hour(a.b) as h timestamp_ntz, month(c) as m date, day(d) as d date"
    value = b'{"a": {"b": "1969-12-31T23:30:00"}, "c": "0001-02-03", "d": "2026-11-28T23:30:00-02:00"}'
    rows, _ = read(schema, value)
    assert rows == [{"h": datetime(1969, 12, 31, 23), "m": date(1, 2, 1), "d": date(2026, 11, 29)}]


def test_what_does_not_fit_is_told_with_its_path_and_the_others_are_read() -> None:
    rows, unfit = read(
        "user.id as user string, hour(meta.at) as h timestamp",
        b'{"user": "anna"}',
        b'{"user": {"id": 7}}',
        b'{"meta": {"at": "ten"}}',
        b'{"meta": [1]}',
        b'{"user": {"id": "bob"}}',
    )
    assert unfit == {
        0: "field 'user': expected an object with 'id' in it, found the string 'anna'",
        1: "field 'user.id': expected string, found the number 7",
        2: "field 'meta.at': 'ten' is not a timestamp with a zone such as '2026-11-21T10:00:00Z', up to "
        "microseconds",
        3: "field 'meta': expected an object with 'at' in it, found an array",
    }
    assert rows[4] == {"user": "bob", "h": None}


@each(
    ("schema", "told"),
    [
        ("user.id string", "cannot read 'user.id string' in the schema"),
        ("n int, user..id as user string", "cannot read 'user..id as user string'"),
        ("items[0] as first string", "elements of arrays have no path"),
        ("hour(at) timestamp", r"'hour\(path\) as NAME timestamp'"),
        ("hour(at) + 1 as h timestamp", "cannot read"),
        ("week(at) as w timestamp", "there is no function 'week'; known are second, minute, hour, day"),
        ("hour(at) as h bigint", r"'h' is bigint, and hour\(\) gives a timestamp or timestamp_ntz"),
        ("hour(at) as d date", "'d' is date, and hour"),
        ("user.id as user", "expected a type"),
        ("user.id as user strnig", "unknown type 'strnig'"),
        ("user string, user.id as user string", "'user' is declared twice"),
    ],
)
def test_a_wrong_path_is_refused_where_the_source_is_made(schema: str, told: str) -> None:
    with pytest.raises(SchemaError, match=told):
        KafkaSource("orders", decode=Decode("json", schema))


def test_names_and_types_that_look_like_paths_are_none() -> None:
    schema = (
        "`user.id` string, price decimal(10,2), m map<string,struct<a:int,b:string>>, `x as y` int, `as` int"
    )
    source = KafkaSource("orders", decode=Decode("json", schema))
    assert source.output.names == ["user.id", "price", "m", "x as y", "as"]
    rows, _ = read("`a.b` int, c.`d.e` as f int", b'{"a.b": 1, "a": {"b": 2}, "c": {"d.e": 3}}')
    assert rows == [{"a.b": 1, "f": 3}]
