"""Avro values become columns as fastavro reads them, by any writer's schema that resolves to the reader's."""

from __future__ import annotations

import io
import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from support.lists import each

from txstream.api.schema import format_schema
from txstream.api.spouts import SpoutContext
from txstream.core.errors import SchemaError
from txstream.plugins.formats.avro_schema import parsed
from txstream.plugins.formats.avro_values import AvroDecoder
from txstream.plugins.formats.schema_registry import UnresolvableError
from txstream.spouts.formats.unfit_values import BadValueError
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import readers

REFUSED = (BadValueError, UnresolvableError)


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(schema: Any, name: str = "x", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": schema, **more}


def encoded(schema: Any, value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


def read(writer: Any, reader: Any, *values: bytes, **options: Any) -> list[Any]:
    decoder = AvroDecoder(parsed(json.dumps(writer)), parsed(json.dumps(reader)), **options)
    found: list[Any] = decoder.read(values).to_pylist()
    return found


def by_fastavro(writer: Any, reader: Any, value: bytes) -> Any:
    """What fastavro's own resolution gives. The dates of logical types are of Python's own kinds."""
    return fastavro.schemaless_reader(
        io.BytesIO(value), fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    )


def as_arrow_shows(value: Any) -> Any:
    """A value of fastavro's as an Arrow column shows it."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, list):
        return [as_arrow_shows(one) for one in value]
    return value


# --- pairs of schemas that resolve, with values for the writer's ------------------------------------------

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
AWARE = MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))
INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


def same(schema: Any, values: st.SearchStrategy[Any]) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    return schema, schema, values


LEAVES = [
    same("boolean", st.booleans()),
    same("int", INT),
    same("long", LONG),
    same("double", st.floats(allow_nan=False)),
    same("float", st.floats(width=32, allow_nan=False)),
    same("string", st.text(max_size=5)),
    same("bytes", st.binary(max_size=5)),
    same(logical("int", "date"), st.dates()),
    same(logical("long", "timestamp-millis"), AWARE),
    same(logical("long", "timestamp-micros"), AWARE),
    same(logical("long", "local-timestamp-millis"), MOMENTS),
    same(logical("long", "local-timestamp-micros"), MOMENTS),
    same(logical("bytes", "decimal", precision=9, scale=2), st.decimals(-9_999_999, 9_999_999, places=2)),
    same(logical("bytes", "decimal", precision=38), st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
    same(logical("string", "uuid"), st.uuids()),
    ("int", "long", INT),
    ("int", "double", INT),
    ("long", "double", LONG),
    ("float", "double", st.floats(width=32, allow_nan=False)),
    ("string", "bytes", st.text(max_size=5)),
    ("bytes", "string", st.text(max_size=5).map(str.encode)),
    (["null", "int", "string"], ["null", "long"], st.none() | INT | st.text(max_size=3)),
    (["int", "long"], "long", LONG),
    (["null", "string", "double"], ["null", "string"], st.none() | st.text(max_size=3)),
]
NAMES = st.integers(0, 10**9).map(lambda number: f"T{number}")


@st.composite
def pairs(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    """A writer's schema, a reader's, and values for the writer's."""
    kind = draw(
        st.sampled_from(["leaf"] * 4 + ["null", "enum", "fixed"] + ["array", "map", "record"] * (depth > 0))
    )
    if kind == "leaf":
        leaf: tuple[Any, Any, st.SearchStrategy[Any]] = draw(st.sampled_from(LEAVES))
        return leaf
    if kind == "enum":
        name, extra = draw(NAMES), draw(st.booleans())
        symbols = ["A", "B", "C"]
        reader = {"type": "enum", "name": name, "symbols": symbols[: 2 if extra else 3]}
        if draw(st.booleans()):
            reader["default"] = "B"
        return {"type": "enum", "name": name, "symbols": symbols}, reader, st.sampled_from(symbols)
    if kind == "fixed":
        return same({"type": "fixed", "name": draw(NAMES), "size": 3}, st.binary(min_size=3, max_size=3))
    writer, reader, values = draw(pairs(depth=depth - 1))
    if kind == "null":
        if isinstance(writer, list) or isinstance(reader, list):
            return writer, reader, values
        found: tuple[Any, Any, st.SearchStrategy[Any]] = draw(
            st.sampled_from(
                [
                    (["null", writer], ["null", reader], st.none() | values),
                    (writer, [reader, "null"], values),
                    (["null", writer], reader, st.none() | values),
                ]
            )
        )
        return found
    if kind == "array":
        return (
            {"type": "array", "items": writer},
            {"type": "array", "items": reader},
            st.lists(values, max_size=3),
        )
    if kind == "map":
        maps = st.dictionaries(st.text(max_size=3), values, max_size=3)
        return {"type": "map", "values": writer}, {"type": "map", "values": reader}, maps
    return draw(records(depth - 1))


@st.composite
def records(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    name = draw(NAMES)
    columns = {f"f{place}": draw(pairs(depth=depth)) for place in range(draw(st.integers(1, 3)))}
    written = [field(writer, name) for name, (writer, _, _) in columns.items()]
    wanted = [field(reader, name) for name, (_, reader, _) in columns.items()]
    if draw(st.booleans()):
        written.append(field({"type": "array", "items": "string"}, "unread"))
        columns["unread"] = (None, None, st.lists(st.text(max_size=2), max_size=2))
    if draw(st.booleans()):
        wanted[0] = {**wanted[0], "name": "renamed", "aliases": ["f0"]}
    if draw(st.booleans()):
        wanted.append(field(["null", "long"], "later", default=None))
        wanted.append(field({"type": "map", "values": "int"}, "more", default={"a": 1}))
    values = st.fixed_dictionaries({name: values for name, (_, _, values) in columns.items()})
    return record(*draw(st.permutations(written)), name=name), record(*wanted, name=name), values


@settings(max_examples=150)
@given(records(), st.data())
def test_any_value_is_read_as_fastavro_resolves_it(
    schemas: tuple[Any, Any, st.SearchStrategy[Any]], data: st.DataObject
) -> None:
    writer, reader, values = schemas
    try:
        fastavro.parse_schema(writer), fastavro.parse_schema(reader)
    except fastavro.schema.SchemaParseException:  # two types of one name
        return
    raw = [encoded(writer, value) for value in data.draw(st.lists(values, min_size=1, max_size=5))]
    expected: list[Any] = []
    refused = None
    for row, one in enumerate(raw):
        try:
            expected.append(as_arrow_shows(by_fastavro(writer, reader, one)))
        except Exception:  # noqa: BLE001 - fastavro raises what it meets
            refused = row
            break
    if refused is None:
        assert same_values(read(writer, reader, *raw), expected)
        return
    with pytest.raises(REFUSED) as caught:
        read(writer, reader, *raw)
    if isinstance(caught.value, BadValueError):
        assert caught.value.row == refused
        assert same_values(read(writer, reader, *raw[:refused]), expected)


def same_values(found: Any, expected: Any) -> bool:
    """Whether they are equal; Arrow shows a map as pairs."""
    if isinstance(expected, dict):
        pairs = dict(found)
        return pairs.keys() == expected.keys() and all(
            same_values(pairs[name], expected[name]) for name in pairs
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same_values, found, expected))
    if isinstance(expected, UUID):
        return bool(found == str(expected))
    return bool(found == expected) and isinstance(found, bool) == isinstance(expected, bool)


@given(st.binary(max_size=12), st.booleans())
def test_any_bytes_are_read_as_fastavro_reads_them_or_refused(noise: bytes, cut: bool) -> None:
    schema = record(
        field("string", "s"), field("long", "n"), field({"type": "array", "items": "double"}, "d")
    )
    good = encoded(schema, {"s": "caf\u00e9", "n": -5, "d": [1.5]})
    for value in (noise, good[: len(noise)], good + noise, noise + good):
        data = io.BytesIO(value)
        try:
            expected = fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None)
            is_whole = data.tell() == len(value)
        except Exception:  # noqa: BLE001 - fastavro raises what it meets
            is_whole = False
        if is_whole:
            assert str(read(schema, schema, value)) == str([expected])  # NaN is not equal to itself
        else:
            with pytest.raises(BadValueError):
                read(schema, schema, good, value)


def test_the_schema_of_a_source_is_that_of_its_records() -> None:
    """The table of docs/formats.md."""
    address = record(field("string", "zip"), name="Address")
    schema = record(
        field("boolean", "a"), field("int", "b"), field("long", "c"), field("float", "d"),
        field("double", "e"), field("bytes", "f"), field("string", "g"),
        field(logical("int", "date"), "h"),
        field(logical("long", "timestamp-millis"), "i"),
        field(logical("long", "timestamp-micros"), "j"),
        field(logical("long", "local-timestamp-millis"), "k"),
        field(logical("long", "local-timestamp-micros"), "l"),
        field(logical("int", "time-millis"), "m"),
        field(logical("long", "time-micros"), "n"),
        field(logical("bytes", "decimal", precision=10, scale=2), "o"),
        field({**logical("fixed", "decimal", precision=4), "name": "Four", "size": 2}, "p"),
        field(logical("string", "uuid"), "q"),
        field({"type": "fixed", "name": "Raw", "size": 4}, "r"),
        field({"type": "enum", "name": "Colour", "symbols": ["RED"]}, "s"),
        field({"type": "array", "items": ["null", "long"]}, "t"),
        field({"type": "map", "values": "int"}, "u"),
        field(["null", address], "v"),
        field("Address", "w"),
        field(logical("string", "of-tomorrow"), "x"),
    )  # fmt: skip
    source = KafkaSource("orders", decode=Decode("avro", schema))
    assert format_schema(source.output) == (
        "a boolean, b int, c bigint, d float, e double, f binary, g string, h date, i timestamp, j "
        "timestamp, "
        "k timestamp_ntz, l timestamp_ntz, m int, n bigint, o decimal(10,2), p decimal(4,0), q string, r "
        "binary, "
        "s string, t array<bigint>, u map<string,int>, v struct<zip:string>, w struct<zip:string>, x string"
    )


@each(
    ("schema", "words"),
    [
        (field(["int", "string"]), "field 'x' is a union of int, string: a column has one type"),
        (field("null"), "field 'x' is 'null', which says nothing that a column could hold"),
        (field(logical("long", "timestamp-nanos")), "field 'x' has logical type timestamp-nanos"),
        (field(["null", "Order"]), "field 'x' is a Order inside a Order"),
        (field(record(name="Empty")), "field 'x' is record Empty without fields"),
        (field({"type": "array", "items": "null"}), r"field 'x\[\]' is 'null'"),
        (field({"type": "map", "values": ["int", "long"]}), r"field 'x\[\]' is a union of int, long"),
        (field(logical("bytes", "decimal", precision=39)), r"field 'x' is decimal\(39,0\)"),
        (field("wrong"), "it is no Avro schema: UnknownType: wrong"),
    ],
)
def test_what_cannot_be_a_column_is_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(SchemaError, match=f"^schema: .*{words}"):
        KafkaSource("orders", decode=Decode("avro", record(schema)))


BOTH = [
    ("string", "int", "field 'x' is string in the writer's schema, int in the topology's"),
    ("long", "int", "field 'x' is long in the writer's schema, int in the topology's"),
    (["null", "string"], ["null", "long"], "field 'x' is string in the writer's schema, long in"),
    (["int", "bytes"], "boolean", r"field 'x' is \[int, bytes\] in the writer's schema, boolean in"),
    (
        record(field("string", "y"), name="In"),
        record(field("int", "y"), name="In"),
        "field 'x.y' is string in the writer's schema, int in the topology's",
    ),
    (
        {"type": "array", "items": record(field("int", "y"), name="In")},
        {"type": "array", "items": record(field("int", "z"), name="In")},
        r"field 'x\[\].z' has no default in the topology's schema \(int\), and is not a field of the "
        r"writer's In \(y\)",
    ),
    (
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "fixed", "name": "F", "size": 3},
        "field 'x' is 2 bytes in the writer's schema, 3 bytes in",
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "enum", "name": "F", "symbols": ["A"]},
        "field 'x' is enum E in the writer's schema, enum F in",
    ),
    (
        logical("bytes", "decimal", precision=9, scale=2),
        logical("bytes", "decimal", precision=9, scale=3),
        r"field 'x' is bytes \(decimal\(9,2\)\) in the writer's schema, bytes \(decimal\(9,3\)\) in",
    ),
    (
        logical("long", "timestamp-millis"),
        logical("long", "local-timestamp-millis"),
        r"field 'x' is long \(timestamp-millis\) in the writer's schema, long \(local-timestamp-millis\)",
    ),
    (logical("int", "date"), logical("int", "time-millis"), r"field 'x' is int \(date\) in the writer's"),
]


@each(("writer", "reader", "words"), BOTH)
def test_a_change_that_cannot_be_resolved_names_both(writer: Any, reader: Any, words: str) -> None:
    with pytest.raises(UnresolvableError, match=words):
        AvroDecoder(parsed(json.dumps(record(field(writer)))), parsed(json.dumps(record(field(reader)))))


@each(
    ("writer", "reader", "value", "found"),
    [
        # Where fastavro and Avro's other readers would take one unit for the other.
        (logical("long", "timestamp-millis"), logical("long", "timestamp-micros"),
         datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)),
        ("long", logical("long", "timestamp-millis"), 1000, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        ("int", logical("int", "date"), 1, date(1970, 1, 2)),
        (logical("bytes", "decimal", precision=4, scale=2), logical("bytes", "decimal", precision=9, scale=2),
         Decimal("1.25"), Decimal("1.25")),
        ({"type": "fixed", "name": "U", "size": 16}, {**logical("fixed", "uuid"), "name": "U", "size": 16},
         UUID(int=7).bytes, str(UUID(int=7))),
    ],
)  # fmt: skip
def test_logical_types_keep_their_meaning(writer: Any, reader: Any, value: Any, found: Any) -> None:
    raw = encoded(record(field(writer)), {"x": value})
    assert read(record(field(writer)), record(field(reader)), raw) == [{"x": found}]


def test_defaults_are_what_the_specification_makes_of_them() -> None:
    nested = record(field("int", "y", default=7), field("bytes", "z", default="\u00ff"), name="In")
    reader = record(
        field("int", "kept"),
        field("bytes", "raw", default="\u0001\u00ff"),
        field(nested, "inner", default={}),
        field(logical("int", "date"), "day", default=1),
        field(["null", "string"], "note", default=None),
        field({"type": "array", "items": "int"}, "list", default=[1, 2]),
    )
    writer = record(field("int", "kept"))
    assert read(writer, reader, encoded(writer, {"kept": 1}), encoded(writer, {"kept": 2}))[1] == {
        "kept": 2,
        "raw": b"\x01\xff",
        "inner": {"y": 7, "z": b"\xff"},
        "day": date(1970, 1, 2),
        "note": None,
        "list": [1, 2],
    }


def test_defaults_beside_a_union_that_fastavro_resolves() -> None:
    writer = record(field(["int", "string"], "n"))
    price = logical("bytes", "decimal", precision=4, scale=2)
    inner = record(field("bytes", "raw", default="\u00ff"), name="In")
    reader = record(
        field("long", "n"), field(price, "price", default="\u0080"), field(inner, "in", default={})
    )
    raw = [encoded(writer, {"n": 1}), encoded(writer, {"n": 2})]
    expected = {"price": Decimal("-1.28"), "in": {"raw": b"\xff"}}
    assert read(writer, reader, *raw) == [{"n": 1, **expected}, {"n": 2, **expected}]
    with pytest.raises(BadValueError, match=r"it is no such Avro value: schema mismatch"):
        read(writer, reader, encoded(writer, {"n": "text"}))


@each(
    ("writer", "reader", "value", "words"),
    [
        (["null", "int"], "int", None, "field 'x': it is null, which the topology's schema does not allow"),
        ("bytes", "string", b"\xff", "field 'x': it is not UTF-8"),
        (
            "long",
            logical("long", "timestamp-micros"),
            2**62,
            "field 'x': it is not within the years 1 to 9999",
        ),
        (
            "bytes",
            logical("bytes", "decimal", precision=2),
            b"\x7f",
            r"field 'x': 1 bytes are out of the range",
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "LOST"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "LOST",
            "field 'x': 'LOST' of the writer's enum is no symbol of the topology's enum E, which has no "
            "default",
        ),
    ],
)
def test_a_value_that_does_not_resolve_is_named(writer: Any, reader: Any, value: Any, words: str) -> None:
    raw = encoded(record(field(writer)), {"x": value})
    with pytest.raises(BadValueError, match=words) as caught:
        read(record(field(writer)), record(field(reader)), *[raw] * 3)
    assert caught.value.row == 0


def test_the_first_bad_row_of_many_is_found() -> None:
    schema = record(field("int"))
    good, bad = encoded(schema, {"x": 1}), encoded(record(field("long")), {"x": 2**40})
    with pytest.raises(BadValueError, match="field 'x': it is out of the range of int") as caught:
        read(schema, schema, *[good] * 6000, bad, b"", *[good] * 10)
    assert caught.value.row == 6000


def test_invalid_text_may_be_replaced() -> None:
    schema = record(field("string"))
    raw = encoded(record(field("bytes")), {"x": b"caf\xe9"})
    assert read(schema, schema, raw, errors="replace") == [{"x": "caf\ufffd"}]
    with pytest.raises(BadValueError, match="it is no such Avro value: 'utf-8' codec can't decode"):
        read(schema, schema, raw)


def test_named_types_of_other_subjects() -> None:
    address = json.dumps({"type": "record", "name": "shop.Address", "fields": [field("string", "zip")]})
    writer = parsed(json.dumps(record(field("shop.Address", "a"), field("shop.Address", "b"))), (address,))
    reader = parsed(json.dumps(record(field(json.loads(address), "b"))))
    raw = encoded(
        record(field(json.loads(address), "a"), field("shop.Address", "b")),
        {"a": {"zip": "1"}, "b": {"zip": "2"}},
    )
    assert AvroDecoder(writer, reader).read([raw]).to_pylist() == [{"b": {"zip": "2"}}]


def test_a_source_with_a_schema_can_be_shipped() -> None:
    source = KafkaSource("orders", decode=Decode("avro", record(field("long")), wire_format="plain"))
    shipped = pickle.loads(pickle.dumps(source))
    read = readers(shipped, SpoutContext("t", "orders", {})).value
    assert read is not None
    assert [one.to_pylist() for one in read([None, encoded(record(field("long")), {"x": 5})])[0]] == [
        [None, 5]
    ]


def test_no_values_make_an_empty_column() -> None:
    decoder = AvroDecoder(parsed(json.dumps(record(field("int")))), parsed(json.dumps(record(field("long")))))
    assert decoder.read([]).type == pa.struct([pa.field("x", pa.int64())])


# --- depth -----------------------------------------------------------------------------------------


SELF = {
    "in a union": ["null", "Node"],
    "in an array": {"type": "array", "items": "Node"},
    "in a map": {"type": "map", "values": "Node"},
    "in another record": {"type": "record", "name": "Inner", "fields": [field(["null", "Node"], "y")]},
}
ENDS = {"in a union": b"\x00", "in an array": b"\x00", "in a map": b"\x00", "in another record": b"\x00"}
STEPS = {"in a union": b"\x02", "in an array": b"\x02", "in a map": b"\x02\x00", "in another record": b"\x02"}
AFTER = {"in a union": b"", "in an array": b"\x00", "in a map": b"\x00", "in another record": b""}


@pytest.mark.parametrize("how", SELF)
def test_a_value_that_is_nested_without_end_is_a_bad_value_and_ends_no_process(how: str) -> None:
    """fastavro calls itself for each level; in a process of its own, this test would show what that does."""
    writer = record(field("long", "n"), field(SELF[how]), name="Node")
    reader = record(field("long", "n"), name="Node")

    def nested(levels: int) -> bytes:
        return (b"\x02" + STEPS[how]) * levels + b"\x02" + ENDS[how] + AFTER[how] * levels

    levels = 90
    value = nested(levels)
    assert len(value) < 10 * levels
    assert read(writer, reader, value, b"\x04" + ENDS[how]) == [{"n": 1}, {"n": 2}]
    for deep in (300, 5_000, 100_000):
        with pytest.raises(BadValueError, match="nested more than 200 deep"):
            read(writer, reader, nested(deep))
    fitting, unfit = AvroDecoder(parsed(json.dumps(writer)), parsed(json.dumps(reader))).read_fit(
        [value, nested(5_000), value]
    )
    assert (fitting.to_pylist()[::2], list(unfit)) == ([{"n": 1}, {"n": 1}], [1])


@pytest.mark.parametrize("how", SELF)
@given(data=st.binary(max_size=40))
def test_what_is_no_avro_value_is_told_as_ever(how: str, data: bytes) -> None:
    writer = record(field("long", "n"), field(SELF[how]), name="Node")
    reader = record(field("long", "n"), name="Node")
    try:
        expected = [{"n": by_fastavro(writer, writer, data)["n"]}]
    except Exception:  # noqa: BLE001 - whatever fastavro raises
        expected = None
    if expected is None:
        with pytest.raises(BadValueError):
            read(writer, reader, data)
    else:
        decoder = AvroDecoder(parsed(json.dumps(writer)), parsed(json.dumps(reader)))
        found, unfit = decoder.read_fit([data])
        assert not unfit or "left over" in unfit[0]
        assert unfit or found.to_pylist() == expected


@each("at", [0, 1, 2])
def test_a_value_with_bytes_left_over_is_the_bad_one_and_none_beside_it(at: int) -> None:
    schema = record(field("long", "n"))
    values = [encoded(schema, {"n": number}) for number in range(3)]
    values[at] += b"\x00\x00"
    decoder = AvroDecoder(parsed(json.dumps(schema)), parsed(json.dumps(schema)))
    found, unfit = decoder.read_fit(values)
    assert unfit == {at: "bytes are left over behind it: 2"}
    assert [row for number, row in enumerate(found.to_pylist()) if number != at] == [
        {"n": number} for number in range(3) if number != at
    ]
    _, alone = decoder.read_fit(values[at : at + 1])
    assert alone == {0: "bytes are left over behind it: 2"}
