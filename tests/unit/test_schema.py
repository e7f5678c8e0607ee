"""Type declarations: from Spark's DDL to Arrow and back, and a sentence for what cannot be read."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from support.lists import each

from txstream.api.schema import format_schema, format_type, parse_schema
from txstream.core.errors import SchemaError, TopologyError


@each(
    ("word", "expected"),
    [
        ("string", pa.string()),
        ("binary", pa.binary()),
        ("boolean", pa.bool_()),
        ("tinyint", pa.int8()),
        ("BYTE", pa.int8()),
        ("smallint", pa.int16()),
        ("short", pa.int16()),
        ("int", pa.int32()),
        ("Integer", pa.int32()),
        ("bigint", pa.int64()),
        ("long", pa.int64()),
        ("float", pa.float32()),
        ("real", pa.float32()),
        ("double", pa.float64()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("numeric(38, 18)", pa.decimal128(38, 18)),
        ("array<int>", pa.list_(pa.int32())),
        ("map<string, array<bigint>>", pa.map_(pa.string(), pa.list_(pa.int64()))),
        (
            "struct<a: int, `b c`:string>",
            pa.struct([pa.field("a", pa.int32()), pa.field("b c", pa.string())]),
        ),
    ],
)
def test_every_type_is_read(word: str, expected: pa.DataType) -> None:
    schema = parse_schema(f"x {word}")
    assert schema.names == ["x"]
    assert schema.field("x").type.equals(expected)


def test_several_fields_with_colons_quotes_and_blanks() -> None:
    schema = parse_schema("  word   string,n: bigint , `it``s` double ")
    assert schema.names == ["word", "n", "it`s"]
    assert format_schema(schema) == "word string, n bigint, `it``s` double"


@each(
    ("declaration", "message"),
    [
        ("", "a type declaration is empty; write for example 'word string, n bigint'"),
        ("   ", "a type declaration is empty"),
        ("word", "expected a type in the type declaration 'word', found its end"),
        ("i interval day to second", "no type 'interval'.*a length of time is a bigint of its smallest unit"),
        ("i interval", "no type 'interval', found in the type declaration 'i interval'"),
        ("name varchar(10)", "no type 'varchar'.*text of any length is a string"),
        ("word strin", "unknown type 'strin' in the type declaration 'word strin'; known are bigint, "),
        (
            "word string n bigint",
            "expected ',' or the end in the type declaration 'word string n bigint', "
            "found 'n' at character 12",
        ),
        (
            "word string,",
            "expected a field name in the type declaration 'word string,', found its end",
        ),
        ("1 string", "expected a field name in the type declaration '1 string', found '1' at character 0"),
        ("word string; n int", "cannot read '; n int' in the type declaration 'word string; n int'"),
        ("a string, a int", "field 'a' is declared twice in 'a string, a int'"),
        ("x array<int", "expected '>' in the type declaration 'x array<int', found its end"),
        ("x map<int>", "expected ',' in the type declaration 'x map<int>', found '>' at character 9"),
        ("x struct<a int>", "expected ':' in the type declaration"),
        ("x struct<>", "expected a field name"),
        ("x decimal(39, 0)", r"decimal\(39,0\) in 'x decimal\(39, 0\)': 1 <= p <= 38 and 0 <= s <= p"),
        ("x decimal(2, 3)", r"decimal\(2,3\) in"),
        ("x decimal(a)", "expected a number in the type declaration"),
        ("x decimal(5", "expected '\\)' in the type declaration"),
    ],
)
def test_what_cannot_be_read_is_told(declaration: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_schema(declaration)


def test_a_schema_error_is_a_topology_error() -> None:
    assert issubclass(SchemaError, TopologyError)


@each("declaration", [5, None, ["word string"]])
def test_only_strings_and_arrow_schemas_declare(declaration: Any) -> None:
    with pytest.raises(SchemaError, match=r"not by (int|NoneType|list)"):
        parse_schema(declaration)


def test_an_arrow_schema_is_taken_as_it_is_but_checked() -> None:
    schema = pa.schema([pa.field("a", pa.int64())])
    assert parse_schema(schema) is schema
    with pytest.raises(SchemaError, match="field 'a' is declared twice"):
        parse_schema(pa.schema([pa.field("a", pa.int64()), pa.field("a", pa.string())]))
    with pytest.raises(SchemaError, match="a schema has no fields"):
        parse_schema(pa.schema([]))


def test_a_type_without_a_word_shows_its_arrow_name() -> None:
    assert format_type(pa.uint16()) == "uint16"
    assert format_type(pa.large_string()) == "large_string"


SIMPLE = st.sampled_from(
    [
        *(pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.float32(), pa.float64(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")),
    ]
)
DECIMALS = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)),
)
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        inner.map(pa.list_),
        st.tuples(inner, inner).map(lambda pair: pa.map_(*pair)),
        st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct([pa.field(name, kind) for name, kind in fields.items()])
        ),
    )


TYPES = st.recursive(SIMPLE | DECIMALS, _nested, max_leaves=6)


@given(st.dictionaries(NAMES, TYPES, min_size=1, max_size=4))
def test_what_is_formatted_is_read_back_the_same(fields: dict[str, pa.DataType]) -> None:
    schema = pa.schema([pa.field(name, kind) for name, kind in fields.items()])
    assert parse_schema(format_schema(schema)).equals(schema)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_with_a_schema_error(text: str) -> None:
    try:
        schema = parse_schema(text)
    except SchemaError:
        return
    assert len(schema) >= 1
