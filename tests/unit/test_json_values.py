"""JSON values as typed columns: what fits, what is refused and why, whatever is beside it."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st
from support.lists import each

from txstream.api.schema import parse_schema
from txstream.core.errors import SchemaError
from txstream.spouts.formats.json_values import _SLICE_ROWS, JsonReader, json_schema
from txstream.spouts.formats.unfit_values import BadValueError


def read(declaration: str | pa.Schema, *values: bytes | None, replace: bool = False) -> list[dict[str, Any]]:
    schema = json_schema(declaration)
    arrays = JsonReader(schema, replace_invalid_utf8=replace).read(values)
    for array, field in zip(arrays, schema, strict=True):
        assert array.type == field.type
        array.validate(full=True)
    return list(pa.RecordBatch.from_arrays(arrays, schema=schema).to_pylist())


def refusal(declaration: str | pa.Schema, *values: bytes | None) -> tuple[int, str]:
    with pytest.raises(BadValueError) as caught:
        read(declaration, *values)
    return caught.value.row, caught.value.reason


def test_every_type() -> None:
    declaration = (
        "s string, bin binary, yes boolean, t tinyint, sm smallint, i int, b bigint, f float, d double, "
        "m decimal(10,2), day date, at timestamp, local timestamp_ntz, l array<int>, "
        "o struct<x:int,y:array<struct<z:string>>>, p map<string,decimal(4,1)>"
    )
    value = (
        b'{"s": "\\u00e9\\ud83d\\ude00\\u0000", "bin": "AP8=", "yes": true, "t": -128, "sm": 32767, "i": -1,'
        b' "b": -9223372036854775808, "f": 0.1, "d": 1e300, "m": 12.5, "day": "2026-11-21",'
        b' "at": "2026-11-21T10:00:00.25+01:00", "local": "2026-11-21 10:00:00.000001",'
        b' "l": [1, null, 3], "o": {"x": 1, "y": [{"z": "a"}, {}, null], "more": [[]]},'
        b' "p": {"a": 1.5, "b": null, "c": "2"}, "unknown": {"deep": [1, 2.5, {}]}}'
    )
    assert read(declaration, value) == [
        {
            "s": "é😀\x00",
            "bin": b"\x00\xff",
            "yes": True,
            "t": -128,
            "sm": 32767,
            "i": -1,
            "b": -(1 << 63),
            "f": struct.unpack("f", struct.pack("f", 0.1))[0],
            "d": 1e300,
            "m": Decimal("12.50"),
            "day": date(2026, 11, 21),
            "at": datetime(2026, 11, 21, 9, 0, 0, 250_000, tzinfo=UTC),
            "local": datetime(2026, 11, 21, 10, 0, 0, 1),
            "l": [1, None, 3],
            "o": {"x": 1, "y": [{"z": "a"}, {"z": None}, None]},
            "p": [("a", Decimal("1.5")), ("b", None), ("c", Decimal("2.0"))],
        }
    ]


def test_the_first_and_the_last_day_are_dates() -> None:
    texts = [b"0001-01-01", b"9999-12-31"]
    assert read("day date", *(b'{"day": "%s"}' % text for text in texts)) == [
        {"day": date(1, 1, 1)},
        {"day": date(9999, 12, 31)},
    ]
    times = [b"0001-01-01T00:00:00", b"9999-12-31T23:59:59.999999"]
    declared = "at timestamp, local timestamp_ntz"
    assert read(declared, *(b'{"at": "%sZ", "local": "%s"}' % (text, text) for text in times)) == [
        {"at": datetime(1, 1, 1, tzinfo=UTC), "local": datetime(1, 1, 1)},
        {
            "at": datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
            "local": datetime(9999, 12, 31, 23, 59, 59, 999999),
        },
    ]


def test_missing_null_and_tombstones_are_nulls() -> None:
    values = (b"{}", b'{"a": null, "o": null, "l": null, "m": null}', None, b'{"o": {}, "l": [], "m": {}}')
    nothing = {"a": None, "o": None, "l": None, "m": None}
    rows = read("a int, o struct<x:int>, l array<int>, m map<string,int>", *values)
    assert rows == [nothing, nothing, nothing, {"a": None, "o": {"x": None}, "l": [], "m": []}]
    assert read("a int") == []


def test_spaces_around_a_value_are_json() -> None:
    assert read("a int", b' \t\r\n{"a": 1}\n', b'{"a":2} ') == [{"a": 1}, {"a": 2}]


@each(
    ("value", "reason"),
    [
        (b"", "it is not JSON: Expecting value at character 0"),
        (b'{"a": 1', "it is not JSON: Expecting ',' delimiter at character 7"),
        (b'{"a": 1,}', "it is not JSON: "),  # Python 3.13 has other words for the rest
        (b'{"a": 1} {"a": 2}', "it is not JSON: Extra data at character 9"),
        (b'{"a": 1}\n{"a": 2}', "it is not JSON: Extra data at character 9"),
        (b'{"a": 1}null', "it is not JSON: Extra data"),
        (b'{"a": 1}\x00', "it is not JSON: Extra data"),
        (b'\xef\xbb\xbf{"a": 1}', "it is not JSON"),
        (b"{'a': 1}", "it is not JSON"),
        (b'{"a": 01}', "it is not JSON"),
        (b'{"a": +1}', "it is not JSON"),
        (b'{"a": 1.}', "it is not JSON"),
        (b'{"a": .5}', "it is not JSON"),
        (b'{"a": 1_0}', "it is not JSON"),
        ('{"a": \u0661}'.encode(), "it is not JSON"),
        ('{"a":\u00a01}'.encode(), "it is not JSON"),
        (b'{"a": 1} // one', "it is not JSON: Extra data"),
        (b'{"z": "a\nb"}', "it is not JSON: Invalid control character"),
        (b'{"z": "\\x41"}', "it is not JSON: Invalid \\escape"),
        (b'{"z": NaN}', "it is not JSON: NaN is no number there"),
        (b'{"z": -Infinity}', "it is not JSON: -Infinity is no number there"),
        (b'{"z": "\xff"}', "it is not UTF-8: invalid start byte at byte 7"),
        (b'{"z": "\xed\xa0\x80"}', "it is not UTF-8"),
        (b"null", "it is not a JSON object but null"),
        (b"[1]", "it is not a JSON object but an array"),
        (b'"text"', "it is not a JSON object but the string 'text'"),
        (b"17", "it is not a JSON object but the number 17"),
        (b'{"a": 1, "a": 1}', "the name 'a' stands twice in one object"),
        (b'{"z": {"y": 1, "y": 1}}', "the name 'y' stands twice in one object"),
        (b'{"a": 1, "\\u0061": 2}', "the name 'a' stands twice in one object"),
        (b'{"z": ' + b"[" * 100_000, "it is nested too deeply"),
        (b'{"z": ' + b"1" * 5_000 + b"}", "it has a number of more than 4300 digits"),
    ],
)
def test_what_is_no_json_object(value: bytes, reason: str) -> None:
    row, found = refusal("a int", b'{"a": 1}', value, b"[")
    assert row == 1
    assert found.startswith(reason)


@each(
    ("declared", "value", "reason"),
    [
        ("string", "1", "expected string, found the number 1"),
        ("string", "true", "expected string, found true"),
        ("string", "{}", "expected string, found an object"),
        ("string", '"\\ud800"', "half of a surrogate pair is no character"),
        ("binary", '"AP8"', "'AP8' is not base64"),
        ("binary", '"AP8=\\n"', "'AP8=\\n' is not base64"),
        ("boolean", "1", "expected boolean, found the number 1"),
        ("boolean", '"true"', "expected boolean, found the string 'true'"),
        ("int", "1.0", "expected int, found the number 1.0, with a fraction or an exponent"),
        ("int", "1e3", "expected int, found the number 1000.0, with a fraction or an exponent"),
        ("int", "true", "expected int, found true"),
        ("int", '"1"', "expected int, found the string '1'"),
        ("int", "[1]", "expected int, found an array"),
        ("tinyint", "128", "128 is out of the range of tinyint"),
        ("smallint", "-32769", "-32769 is out of the range of smallint"),
        ("int", "2147483648", "2147483648 is out of the range of int"),
        ("bigint", "9223372036854775808", "9223372036854775808 is out of the range of bigint"),
        ("bigint", "1" + "0" * 100, f"1{'0' * 59}... is out of the range of bigint"),
        ("double", '"1"', "expected double, found the string '1'"),
        ("double", "1e400", "inf is out of the range of double"),
        ("double", "1" + "0" * 400, f"1{'0' * 59}... is out of the range of double"),
        ("float", "3.5e38", "3.5e+38 is out of the range of float"),
        ("decimal(4,2)", "100", "100 is out of the range of decimal(4,2)"),
        ("decimal(4,2)", "9.995", "9.995 has more than 2 digits after the point"),
        ("decimal(4,2)", "1e999999999", "1E+999999999 is out of the range of decimal(4,2)"),
        ("decimal(4,2)", "1e-999999999", "1E-999999999 has more than 2 digits after the point"),
        (
            "decimal(4,2)",
            '"1e99999999999999999999"',
            "the exponent of '1e99999999999999999999' is out of any",
        ),
        ("decimal(4,2)", '" 1"', "the string ' 1' is not a number"),
        ("decimal(4,2)", '"NaN"', "the string 'NaN' is not a number"),
        ("decimal(4,2)", '"1_0"', "the string '1_0' is not a number"),
        ("decimal(4,2)", "true", "expected decimal(4,2), found true"),
        ("date", '"2026-02-30"', "'2026-02-30' is not a date such as"),
        ("date", '"20261121"', "'20261121' is not a date such as"),
        ("date", "20778", "expected date, found the number 20778"),
        ("timestamp", '"2026-11-21T10:00:00"', "'2026-11-21T10:00:00' is not a timestamp with a zone"),
        ("timestamp", '"2026-11-21T10:00:00.1234567Z"', "'2026-11-21T10:00:00.1234567Z' is not a timestamp"),
        ("timestamp", "1795255200000", "expected timestamp, found the number 1795255200000"),
        ("timestamp", '"0001-01-01T00:00:00+01:00"', "is not within the years 1 to 9999"),
        ("timestamp", '"9999-12-31T23:59:59-01:00"', "is not within the years 1 to 9999"),
        ("timestamp_ntz", '"2026-11-21T10:00:00Z"', "is not a timestamp without a zone"),
        ("array<int>", "1", "expected array<int>, found the number 1"),
        ("struct<x:int>", "[]", "expected struct<x:int>, found an array"),
        ("map<string,int>", "[]", "expected map<string,int>, found an array"),
    ],
)
def test_a_value_that_does_not_fit(declared: str, value: str, reason: str) -> None:
    row, found = refusal(f"f {declared}", b"{}", b'{"f": %b}' % value.encode(), b'{"f": [[]]}')
    assert row == 1
    assert found.startswith("field 'f': ")
    assert reason in found
    assert len(found) < 300


@each(
    ("declared", "value", "path"),
    [
        ("struct<x:struct<y:int>>", '{"x": {"y": "a"}}', "f.x.y"),
        ("array<array<int>>", "[[], [1, 2], [3, 0.5]]", "f[2][1]"),
        ("array<struct<x:date>>", '[{"x": null}, null, {"x": "x"}]', "f[2].x"),
        ("map<string,array<int>>", '{"a": [1], "it\'s": [1, "x"]}', 'f["it\'s"][1]'),
    ],
)
def test_the_field_is_named_from_the_outside_in(declared: str, value: str, path: str) -> None:
    row, reason = refusal(f"a int, f {declared}", b'{"a": 1}', b'{"f": %b}' % value.encode())
    assert row == 1
    assert reason.startswith((f"field {path!r}: expected", f"field {path!r}: 'x'"))


def test_the_first_bad_value_is_named_whatever_is_wrong_with_it() -> None:
    assert refusal("a int", b"{}", b'{"a": "x"}', b"{") == (
        1,
        "field 'a': expected int, found the string 'x'",
    )
    assert refusal("a int, b int", b'{"b": []}', b'{"a": []}')[0] == 0
    assert refusal("a int", b"{}", b"{", b'{"a": "x"}')[0] == 1


def test_many_values() -> None:
    count = 3 * _SLICE_ROWS + 1
    values: list[bytes | None] = [b'{"n": %d, "l": [%d]}' % (n, n) for n in range(count)]
    assert read("n int, l array<int>", *values) == [{"n": n, "l": [n]} for n in range(count)]
    values[2 * _SLICE_ROWS + 5] = b'{"n": ""}'
    assert refusal("n int", *values)[0] == 2 * _SLICE_ROWS + 5
    values[2 * _SLICE_ROWS] = b""
    assert refusal("n int", *values)[0] == 2 * _SLICE_ROWS


def test_decimals_keep_their_value_and_take_zeros() -> None:
    values = [b'{"m": %b}' % text for text in (b"1", b"1.500", b'"-1.50e0"', b"15e-1", b"-0.0", b"0e-50")]
    long_zeros = b'{"m": 1.5%b}' % (b"0" * 60)
    rows = read("m decimal(4,2)", *values, long_zeros, b'{"m": 99.99}')
    expected = ["1.00", "1.50", "-1.50", "1.50", "0.00", "0.00", "1.50", "99.99"]
    assert [str(row["m"]) for row in rows] == expected
    exact = b'{"m": 12345678901234567890123456789012345.678}'
    assert read("m decimal(38,3)", exact)[0]["m"] == Decimal("12345678901234567890123456789012345.678")


def test_fields_that_may_not_be_null() -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False),
            pa.field("o", inner),
            pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ]
    )
    rows = read(schema, b'{"a": 1}', b'{"a": 2, "o": null, "l": []}', b'{"a": 3, "o": {"x": 1}, "l": [4]}')
    assert [(row["a"], row["o"], row["l"]) for row in rows] == [
        (1, None, None),
        (2, None, []),
        (3, {"x": 1}, [4]),
    ]
    for value, path in (
        (b"{}", "a"),
        (b'{"a": null}', "a"),
        (None, "a"),
        (b'{"a": 1, "o": {}}', "o.x"),
        (b'{"a": 1, "l": [1, null]}', "l[1]"),
    ):
        row, reason = refusal(schema, b'{"a": 0}', value)
        assert (row, reason.partition(":")[0]) == (1, f"field {path!r}")
        assert "missing or null" in reason


def test_invalid_utf8_can_be_replaced() -> None:
    assert read("a string", b'{"a": "x\xff"}', replace=True) == [{"a": "x\ufffd"}]


@each(
    "declared",
    [
        pa.schema([("a", pa.uint8())]),
        pa.schema([("a", pa.list_(pa.duration("s")))]),
        pa.schema([("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]),
        pa.schema([("a", pa.decimal256(50, 2))]),
        pa.schema([("a", pa.timestamp("ns"))]),
        "a map<int,string>",
    ],
)
def test_a_type_that_json_has_no_form_for(declared: str | pa.Schema) -> None:
    with pytest.raises(SchemaError, match="field 'a"):
        json_schema(declared)


# --- properties ------------------------------------------------------------------------------------------

SCHEMA = (
    "s string, yes boolean, n int, d double, m decimal(6,2), at timestamp, o struct<x:bigint,y:string>, "
    "l array<smallint>"
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
        "yes": st.none() | st.booleans(),
        "n": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        "d": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "m": st.none() | st.integers(-999_999, 999_999).map(lambda hundredths: hundredths / 100),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
        "o": st.none() | st.fixed_dictionaries({"x": st.integers(-(1 << 63), (1 << 63) - 1)}),
        "l": st.none() | st.lists(st.none() | st.integers(-(1 << 15), (1 << 15) - 1)),
        "unknown": st.recursive(st.none() | st.floats(allow_nan=False, allow_infinity=False), st.lists),
    },
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("2026-11-21T10:00:00Z"),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["x", "y", "z"]), inner),
    max_leaves=4,
)
LOOSE = st.dictionaries(st.sampled_from(["s", "yes", "n", "d", "m", "at", "o", "l"]), ANYTHING)


def dumped(value: Any) -> bytes:
    return json.dumps(value, default=datetime.isoformat).encode()


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """The row that should come of an object that fits."""
    expected = {name: row.get(name) for name in ("s", "yes", "n", "d", "m", "at", "o", "l")}
    if expected["m"] is not None:
        expected["m"] = Decimal(round(expected["m"] * 100)).scaleb(-2)
    if expected["o"] is not None:
        expected["o"] = {"x": expected["o"]["x"], "y": None}
    return expected


def one_by_one(values: Sequence[bytes | None]) -> list[dict[str, Any]] | tuple[int, str]:
    rows = []
    for row, value in enumerate(values):
        try:
            rows += read(SCHEMA, value)
        except BadValueError as bad:
            return row, bad.reason
    return rows


@settings(deadline=timedelta(seconds=2), max_examples=60)
@given(st.lists(FITTING, max_size=5))
def test_what_fits_comes_out_as_it_is(rows: list[dict[str, Any]]) -> None:
    assert read(SCHEMA, *map(dumped, rows)) == [shown(row) for row in rows]


@settings(deadline=timedelta(seconds=2), max_examples=200)
@given(st.lists(FITTING | LOOSE, max_size=5), st.data())
@example([{"m": 1.0}, {"m": 12345.0}], None)  # Arrow looks only at the first precision
def test_a_value_is_read_or_refused_by_itself(rows: list[dict[str, Any]], data: st.DataObject | None) -> None:
    values: list[bytes | None] = list(map(dumped, rows))
    if data is not None and values and data.draw(st.booleans()):
        spoiled = bytearray(values[-1] or b"")
        place = data.draw(st.integers(0, len(spoiled) - 1))
        spoiled[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        values.insert(data.draw(st.integers(0, len(values))), bytes(spoiled))
    expected = one_by_one(values)
    try:
        found: list[dict[str, Any]] | tuple[int, str] = read(SCHEMA, *values)
    except BadValueError as bad:
        found = bad.row, bad.reason
    assert found == expected
    if isinstance(found, list):
        for value, row in zip(values, found, strict=True):
            check_against_json(json.loads(value or b"{}"), row)


@settings(deadline=timedelta(seconds=2), max_examples=200)
@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 60), st.booleans())
@example(Decimal("1.5"), 41, False)  # Arrow alone turns it into 0.00
def test_a_decimal_is_exact_or_refused(number: Decimal, zeros: int, quoted: bool) -> None:
    text = str(number)
    if "E" not in text:
        text += ("" if "." in text else ".0") + "0" * zeros
    value = b'{"m": "%b"}' % text.encode() if quoted else b'{"m": %b}' % text.encode()
    hundredths = Fraction(number) * 100 if abs(number.adjusted()) < 1000 else None
    try:
        [row] = read("m decimal(6,2)", value)
    except BadValueError:
        assert hundredths is None or hundredths.denominator > 1 or abs(hundredths) > 999_999
    else:
        assert row["m"] == number


def check_against_json(given: dict[str, Any], row: dict[str, Any]) -> None:
    """Check that what was taken is what Python's own reader sees, and of the declared type."""
    kinds: dict[str, tuple[type, ...]] = {"s": (str,), "yes": (bool,), "n": (int,), "l": (list,)}
    for name, kind in kinds.items():
        assert row[name] == given.get(name)
        assert row[name] is None or type(given[name]) in kind
    for name in ("d", "m"):
        if row[name] is not None:
            assert math.isfinite(row[name])
            assert not isinstance(given[name], bool)
            assert math.isclose(float(row[name]), float(given[name]), rel_tol=1e-12)
    assert (row["at"] is None) == (given.get("at") is None)


def test_the_schema_is_the_outputs() -> None:
    assert json_schema(SCHEMA).equals(parse_schema(SCHEMA))
