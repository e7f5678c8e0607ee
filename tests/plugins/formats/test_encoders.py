"""What is written as Avro and Protobuf: fastavro and protobuf read it, by the schema that is registered."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.schema_registry import FakeRegistry

from txstream import ChangeTopic, Encode, SqlState
from txstream.api.schema import parse_schema
from txstream.api.spouts import SpoutContext
from txstream.core.errors import SchemaError, ServiceUnavailableError, TopologyError, UsageError
from txstream.core.transaction import Txid
from txstream.plugins.outbox.changes import recorder
from txstream.spouts.formats.value_encoders import UnfitRowError, encoder_of
from txstream.state.reading import StoredRow

COLUMNS = parse_schema(
    "name string, n bigint, small int, price decimal(10,2), at timestamp, local timestamp_ntz, day date, "
    "ok boolean, raw binary, ratio double, tags array<string>, place struct<street: string, number: int>"
)
FULL = {
    "name": "añ",
    "n": 1 << 40,
    "small": -3,
    "price": Decimal("-12.50"),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
    "local": datetime(2026, 1, 2, 3, 4, 5),
    "day": date(2026, 2, 3),
    "ok": True,
    "raw": b"\0\xff",
    "ratio": float("inf"),
    "tags": ["x", None],
    "place": {"street": "s", "number": 7},
}
EMPTY: dict[str, Any] = {**dict.fromkeys(FULL), "name": "b"}


def context(registry: str | None = None) -> SpoutContext:
    return SpoutContext("t", "out", {} if registry is None else {"schema_registry": registry}, 2.0, 2.0)


def written(
    encode: Encode, rows: Sequence[Mapping[str, Any]], columns: str, registry: str | None = None
) -> list[bytes]:
    encoder = encoder_of(encode, parse_schema(columns), "per-user")
    assert encoder is not None
    return encoder.writer(context(registry))(rows)


def read_avro(schema: Any, value: bytes) -> Any:
    data = io.BytesIO(value)
    found = fastavro.schemaless_reader(data, fastavro.parse_schema(schema), None)
    assert not data.read()
    return found


def test_a_schema_of_avro_is_derived_from_the_columns_and_registered() -> None:
    with FakeRegistry() as registry:
        registry.add("another", '"string"')
        encoder = encoder_of(Encode("avro"), COLUMNS, "per-user")
        assert encoder is not None
        values = encoder.writer(context(registry.url))([FULL, EMPTY])
        values += encoder.writer(context(registry.url))([EMPTY])
        assert registry.requests == ["/subjects/per-user-value/versions"]
        schema = json.loads(registry._schemas[2]["schema"])
    assert {value[:5] for value in values} == {b"\0\0\0\0\2"}
    assert [read_avro(schema, value[5:]) for value in values] == [FULL, EMPTY, EMPTY]
    with pytest.raises(UsageError, match=r"no schema registry for topic 'per-user'.*write Encode\("):
        encoder.writer(context())


def test_a_registry_that_refuses_or_is_away() -> None:
    encoder = encoder_of(Encode("avro"), COLUMNS, "refused")
    assert encoder is not None
    with FakeRegistry() as registry:
        registry.status = 409
        with pytest.raises(UsageError, match=r"refuses the schema for subject 'refused-value' \(HTTP 409"):
            encoder.writer(context(registry.url))
        registry.status = 503
        with pytest.raises(ServiceUnavailableError):
            encoder.writer(context(registry.url))
        registry.status = None
        assert encoder.writer(context(registry.url))([EMPTY])[0][:5] == b"\0\0\0\0\1"


GIVEN = {
    "type": "record",
    "name": "User",
    "fields": [
        {"name": "n", "type": ["null", "int"]},
        {"name": "more", "type": "string", "default": "d"},
        {"name": "name", "type": "string"},
    ],
}


def test_a_schema_of_avro_is_given() -> None:
    encode = Encode("avro", GIVEN, wire_format="plain")
    rows: list[dict[str, Any]] = [{"name": "a", "n": 5}, {"name": "b", "n": None}]
    values = written(encode, rows, "name string, n int")
    assert [read_avro(GIVEN, value) for value in values] == [{**row, "more": "d"} for row in rows]
    for bad in ({"name": "b", "n": 1 << 31}, {"name": None, "n": 1}, {"name": "b", "n": "1"}):
        with pytest.raises(UnfitRowError) as refused:
            written(encode, [rows[0], bad], "name string, n int")
        assert refused.value.row == 1
    for columns, words in (
        ("name string, other int, n int", "column 'other', for which the Avro schema has no field"),
        ("n int", "has no column 'name' for the Avro schema's field, which has no default"),
    ):
        with pytest.raises(SchemaError, match=words):
            encoder_of(encode, parse_schema(columns), "t")


def message_file(folder: Path) -> tuple[str, Any]:
    """A file of descriptors, and the class of its second message, by protobuf alone."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="First").field.add(name="x", number=1, type=9, label=1)
    message = file.message_type.add(name="User")
    place = message.nested_type.add(name="Place")
    for at, (name, kind) in enumerate([("street", 9), ("number", 5)], 1):
        place.field.add(name=name, number=at, type=kind, label=1)
    fields = [
        ("name", 9),
        ("n", 3),
        ("small", 17),
        ("price", 9),
        ("day", 9),
        ("ok", 8),
        ("raw", 12),
        ("ratio", 1),
    ]
    for at, (name, kind) in enumerate(fields, 1):
        message.field.add(name=name, number=at, type=kind, label=1)
    message.field.add(name="at", number=20, type=11, label=1, type_name=".google.protobuf.Timestamp")
    message.field.add(name="tags", number=21, type=9, label=3)
    message.field.add(name="place", number=22, type=11, label=1, type_name=".shop.User.Place")
    pool = descriptor_pool.DescriptorPool()
    from google.protobuf import timestamp_pb2

    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    for one in (known, file):
        pool.Add(one)
    path = folder / "shop.desc"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString())
    return str(path), message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.User"))


def test_messages_of_protobuf(tmp_path: Path) -> None:
    path, user = message_file(tmp_path)
    ddl = (
        "name string, n bigint, small int, price decimal(10,2), day date, ok boolean, raw binary, "
        "ratio double, at timestamp, tags array<string>, place struct<street: string, number: int>"
    )
    full = {**FULL, "tags": ["x", "y"]}
    expected = user(
        name="añ", n=1 << 40, small=-3, price="-12.50", day="2026-02-03", ok=True, raw=b"\0\xff",
        ratio=float("inf"), tags=["x", "y"], place={"street": "s", "number": 7},
    )  # fmt: skip
    expected.at.FromDatetime(FULL["at"])
    plain = written(Encode("protobuf", (path, "shop.User"), wire_format="plain"), [full, EMPTY], ddl)
    assert list(map(user.FromString, plain)) == [expected, user(name="b")]
    with FakeRegistry() as registry:
        sent = written(Encode("protobuf", (path, "shop.User")), [full], ddl, registry.url)
        assert registry._schemas[1]["schemaType"] == "PROTOBUF"
    assert sent == [b"\0\0\0\0\1" + b"\2\2" + plain[0]]  # one index, which is 1
    with pytest.raises(UnfitRowError, match="out of range"):
        written(Encode("protobuf", (path, "shop.User"), wire_format="plain"), [{"small": 1 << 31}], ddl)
    with pytest.raises(SchemaError, match=r"column 'name', for which message shop\.First has no field"):
        encoder_of(Encode("protobuf", (path, "shop.First")), parse_schema("name string"), "t")


def test_changes_of_a_table_are_avro() -> None:
    goal = ChangeTopic("per-user", encode=Encode("avro", wire_format="plain"))
    state = SqlState("t", key="a string, b int", value="n double", changes_to=goal)
    record = recorder(goal, state, context())
    row = {"txstream_batch": 7, "a": "x", "b": 1}
    key, value = record(StoredRow(row, {"n": None, "txstream_gone": False}, None, Txid(7)))
    fields = [("a", "string"), ("b", "int"), ("n", ["null", "double"])]
    schema = {"type": "record", "name": "r", "fields": [{"name": a, "type": b} for a, b in fields]}
    assert value is not None
    assert (key, read_avro(schema, value)) == (b'{"a":"x","b":1}', {"a": "x", "b": 1, "n": None})
    gone = StoredRow(row, {"n": 1.0, "txstream_gone": True}, None, Txid(7))
    assert record(gone) == (b'{"a":"x","b":1}', None)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TopologyError, match="value_format is 'xml'; values can be sent as 'json', 'avro'"):
        encoder_of(Encode("xml"), COLUMNS, "t")
    with pytest.raises(TopologyError, match="wire_format is 'thin'"):
        Encode("avro", wire_format="thin")  # type: ignore[arg-type]
    with pytest.raises(TopologyError, match="takes no schema"):
        encoder_of(Encode("json", GIVEN), COLUMNS, "t")
    with pytest.raises(SchemaError, match="map<string,int> has no schema of Avro"):
        encoder_of(Encode("avro"), parse_schema("m map<string, int>"), "t")
    assert encoder_of(Encode(), COLUMNS, "t") is None
