"""Protobuf values become columns as protobuf's own parser reads them; a writer's schema that would lose or
misread a field is refused."""

from __future__ import annotations

import base64
import pickle
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.message import DecodeError
from hypothesis import given, strategies as st
from support.lists import each

from txstream.api.schema import format_schema
from txstream.api.spouts import SpoutContext
from txstream.core.errors import SchemaError, UsageError
from txstream.plugins.formats.protobuf_schema import message_type
from txstream.plugins.formats.protobuf_values import ProtobufDecoder
from txstream.plugins.formats.schema_registry import RegisteredSchema, UnresolvableError
from txstream.spouts.formats.unfit_values import BadValueError
from txstream.spouts.kafka import Decode, KafkaSource
from txstream.spouts.kafka.columns import readers

F = descriptor_pb2.FieldDescriptorProto
NO_SCALARS = {"TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM"}
SCALARS = [name.removeprefix("TYPE_").lower() for name, _ in F.Type.items() if name not in NO_SCALARS]
WKT = ["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"]


def file_of(*fields: str, name: str = "Order", nested: Iterable[str] = ()) -> Any:
    """A file with a message Item {string name = 1}, an enum State {NEW = 0; PAID = 1}, and a message of these
    fields: "int64 id = 1", "optional string note = 2", "repeated Item items = 3", "map string,Item by =
    4"."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.extend(WKT)
    message = file.message_type.add(name=name)
    for text in fields:
        words = text.split()
        label = words.pop(0) if words[0] in ("optional", "repeated", "map") else ""
        one = message.field.add(
            name=words[1], number=int(words[3]), label=3 if label in ("repeated", "map") else 1
        )
        if label == "map":
            key, value = words[0].split(",")
            entry = message.nested_type.add(name=f"{words[1].title()}Entry")
            entry.options.map_entry = True
            set_type(entry.field.add(name="key", number=1, label=1), key)
            set_type(entry.field.add(name="value", number=2, label=1), value)
            one.type, one.type_name = F.TYPE_MESSAGE, f".shop.{name}.{entry.name}"
            continue
        set_type(one, words[0])
        if label == "optional":
            one.proto3_optional, one.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{words[1]}")
    set_type(file.message_type.add(name="Item").field.add(name="name", number=1, label=1), "string")
    state = file.enum_type.add(name="State")
    for number, value in enumerate(("NEW", "PAID")):
        state.value.add(name=value, number=number)
    return file


def set_type(field: Any, word: str) -> None:
    if word in SCALARS:
        field.type = getattr(F, f"TYPE_{word.upper()}")
    elif word == "State":
        field.type, field.type_name = F.TYPE_ENUM, ".shop.State"
    else:
        field.type = F.TYPE_MESSAGE
        field.type_name = f".{word}" if "." in word else f".shop.{word}"


def class_of(file: Any, name: str = "shop.Order") -> Any:
    """The class that protoc would generate."""
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def read(reader: Any, *values: bytes) -> list[Any]:
    found: list[Any] = ProtobufDecoder(message_type(reader)).read(values).to_pylist()
    return found


def registered(file: Any, schema_id: int = 7) -> RegisteredSchema:
    return RegisteredSchema(schema_id, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


ALL = class_of(
    file_of(
        *(f"{word} f_{word} = {number}" for number, word in enumerate(SCALARS, 1)),
        "optional int32 maybe = 30", "repeated sint64 many = 31", "map string,int32 by = 32", "Item item "
        "= 33",
        "repeated Item items = 34", "map int64,Item found = 35", "State state = 36",
        "google.protobuf.Timestamp at = 37", "google.protobuf.StringValue note = 38", "repeated State "
        "states = 39",
    )
)  # fmt: skip


def test_the_schema_of_a_source_is_that_of_its_messages() -> None:
    """The table of docs/formats.md."""
    source = KafkaSource("orders", decode=Decode("protobuf", ALL))
    assert format_schema(source.output) == (
        "f_double double, f_float float, f_int64 bigint, f_uint64 decimal(20,0), f_int32 int, "
        "f_fixed64 decimal(20,0), f_fixed32 bigint, f_bool boolean, f_string string, f_bytes binary, "
        "f_uint32 bigint, f_sfixed32 int, f_sfixed64 bigint, f_sint32 int, f_sint64 bigint, maybe int, "
        "many array<bigint>, by map<string,int>, item struct<name:string>, items array<struct<name:string>>, "
        "found map<bigint,struct<name:string>>, state string, at timestamp, note string, states array<string>"
    )


INTEGERS = {
    "int32": (-(2**31), 2**31), "sint32": (-(2**31), 2**31), "sfixed32": (-(2**31), 2**31),
    "int64": (-(2**63), 2**63), "sint64": (-(2**63), 2**63), "sfixed64": (-(2**63), 2**63),
    "uint32": (0, 2**32), "fixed32": (0, 2**32), "uint64": (0, 2**64), "fixed64": (0, 2**64),
}  # fmt: skip
VALUES: dict[str, st.SearchStrategy[Any]] = {
    **{word: st.integers(first, end - 1) for word, (first, end) in INTEGERS.items()},
    "double": st.floats(allow_nan=False), "float": st.floats(width=32, allow_nan=False),
    "bool": st.booleans(), "string": st.text(max_size=5), "bytes": st.binary(max_size=5),
}  # fmt: skip


@given(
    st.fixed_dictionaries({}, optional={f"f_{word}": values for word, values in VALUES.items()}),
    st.none() | st.integers(-5, 5),
    st.lists(st.integers(-9, 9), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=3),
    st.none() | st.text(max_size=3),
    st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
)
def test_any_message_is_read_as_protobuf_parses_it(
    scalars: dict[str, Any],
    maybe: int | None,
    many: list[int],
    by: dict[str, int],
    note: str | None,
    at: datetime,
) -> None:
    message = ALL(**scalars, many=many, by=by, state=1)
    message.at.FromDatetime(at)
    if maybe is not None:
        message.maybe = maybe
    if note is not None:
        message.note.value = note
        message.item.name = note
    message.found[4].name = "four"
    parsed = ALL.FromString(message.SerializeToString())
    (row,) = read(ALL, message.SerializeToString())
    for word in SCALARS:
        expected = getattr(parsed, f"f_{word}")
        assert row[f"f_{word}"] == (Decimal(expected) if word in ("uint64", "fixed64") else expected)
    assert row["maybe"] == (parsed.maybe if parsed.HasField("maybe") else None) == maybe
    assert row["many"] == list(parsed.many)
    assert row["by"] == sorted(parsed.by.items())
    assert row["note"] == note
    assert row["item"] == (None if note is None else {"name": note})
    assert row["found"] == [(4, {"name": "four"})]
    assert row["items"] == row["states"] == []
    assert row["state"] == "PAID"
    assert row["at"] == parsed.at.ToDatetime(tzinfo=UTC) == at.replace(tzinfo=UTC)


@given(st.binary(max_size=20))
def test_any_bytes_are_read_as_protobuf_parses_them_or_refused(noise: bytes) -> None:
    try:
        parsed = ALL.FromString(noise)
    except DecodeError:
        with pytest.raises(BadValueError) as caught:
            read(ALL, b"", noise)
        assert caught.value.row == 1
        return
    in_range = abs(parsed.at.seconds) < 10**10 and {parsed.state, *parsed.states} <= {0, 1}
    if in_range:
        assert read(ALL, noise)[0]["f_int64"] == parsed.f_int64


def test_nanoseconds_are_cut_and_what_python_cannot_show_is_refused() -> None:
    message = ALL()
    message.at.seconds, message.at.nanos = -1, 999_999_999
    assert read(ALL, message.SerializeToString())[0]["at"] == datetime(
        1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC
    )
    message.at.seconds = 2**60
    with pytest.raises(BadValueError, match="field 'at': it is not within the years 1 to 9999"):
        read(ALL, message.SerializeToString())


def test_a_number_that_an_enum_does_not_have_is_refused() -> None:
    with pytest.raises(BadValueError, match=r"field 'state': 9 is no value of .* enum shop\.State"):
        read(ALL, ALL(state=9).SerializeToString())


RECURSIVE = class_of(file_of("int64 id = 1", "Order parent = 2"))


@each(
    ("schema", "words"),
    [
        (RECURSIVE, "field 'parent' is a shop.Order inside a shop.Order"),
        (class_of(file_of()), "the schema is message shop.Order without fields"),
        ("shop.Order", "a Protobuf schema is given as a generated message class, or as the pair"),
        (("/nowhere/orders.desc", "shop.Order"), "'/nowhere/orders.desc' cannot be read as a schema"),
    ],
)
def test_what_cannot_be_a_column_is_refused(schema: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=f"^schema: {words}"):
        KafkaSource("orders", decode=Decode("protobuf", schema))


def test_a_source_with_a_message_class_can_be_shipped() -> None:
    source = KafkaSource("orders", decode=Decode("protobuf", ALL, wire_format="plain"))
    read = readers(pickle.loads(pickle.dumps(source)), SpoutContext("t", "orders", {})).value
    assert read is not None
    columns, _ = read([None, ALL(f_int64=5).SerializeToString()])
    assert columns[source.output.get_field_index("f_int64")].to_pylist() == [None, 5]


def test_a_descriptor_set_is_a_schema(tmp_path: Path) -> None:
    files = descriptor_pb2.FileDescriptorSet()
    for known in (timestamp_pb2, wrappers_pb2):
        known.DESCRIPTOR.CopyToProto(files.file.add())
    files.file.add().CopyFrom(file_of("int64 id = 1"))
    path = tmp_path / "orders.desc"
    path.write_bytes(files.SerializeToString())
    source = KafkaSource("orders", decode=Decode("protobuf", (path, "shop.Order")))
    assert format_schema(source.output) == "id bigint"
    with pytest.raises(SchemaError, match=r"has no message 'Order'; it has .*shop\.Item, shop\.Order"):
        KafkaSource("orders", decode=Decode("protobuf", (path, "Order")))


def test_a_proto_file_is_a_schema_with_what_it_imports(tmp_path: Path) -> None:
    (tmp_path / "items.proto").write_text(
        'syntax = "proto3"; package shop; message Item { string name = 1; }'
    )
    path = tmp_path / "orders.proto"
    text = """
        syntax = "proto3";
        package shop;
        import "items.proto";
        import "google/protobuf/timestamp.proto";
        message Order { int64 id = 1; Item item = 2; google.protobuf.Timestamp at = 3; }
    """
    path.write_text(text)
    source = KafkaSource("orders", decode=Decode("protobuf", (path, "shop.Order"), wire_format="plain"))
    assert source.output.names[:3] == ["id", "item", "at"]
    read = readers(pickle.loads(pickle.dumps(source)), SpoutContext("t", "orders", {})).value
    assert read is not None
    columns, _ = read([b"\x08\x05\x12\x03\x0a\x01x"])
    assert columns[source.output.get_field_index("id")].to_pylist() == [5]
    assert path.read_text() == text


def test_a_proto_file_that_is_missing_or_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "orders.proto"
    with pytest.raises(SchemaError, match=r"orders\.proto' cannot be read as a schema \(FileNotFoundError"):
        KafkaSource("orders", decode=Decode("protobuf", (path, "shop.Order")))
    path.write_text("message {")
    with pytest.raises(SchemaError, match=r"orders\.proto' .*protoc cannot compile it.*=orders\.desc"):
        KafkaSource("orders", decode=Decode("protobuf", (path, "shop.Order")))


def test_a_proto_file_without_a_compiler_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "orders.proto"
    path.write_text('syntax = "proto3"; message Order { int64 id = 1; }')
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(UsageError, match=r"a \.proto file; compiling it takes protoc; type pip install"):
        KafkaSource("orders", decode=Decode("protobuf", (path, "Order")))


def test_a_message_that_is_nested_without_end_is_a_bad_value() -> None:
    writer, reader = file_of("int64 id = 1", "Order parent = 2"), class_of(file_of("int64 id = 1"))
    decoder = ProtobufDecoder(message_type(reader), registered(writer))
    value = b""
    for _ in range(5_000):  # each is a field 2 of its length
        value = b"\x12" + _varint(len(value)) + value
    found, unfit = decoder.read_fit([b"\0\x08\x01", b"\0" + value, b"\0\x08\x02"], 0)
    assert [row and row["id"] for row in found.to_pylist()] in ([1, None, 2], [1, 0, 2])
    assert set(unfit) <= {1}


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


READER = [
    "int64 id = 1",
    "string user = 2",
    "Item item = 3",
    "repeated int32 many = 4",
    "map string,int32 by = 5",
]


@each(
    ("writer", "words"),
    [
        (
            ["string id = 1"],
            r"field 'id' \(number 1\) is string in the writer's schema, int64 in the topology's",
        ),
        (["sint64 id = 1"], r"field 'id' \(number 1\) is sint64 in the writer's schema, int64"),
        (["uint64 id = 1"], r"field 'id' \(number 1\) is uint64 in the writer's schema, int64"),
        (["fixed64 id = 1"], r"field 'id' \(number 1\) is fixed64 in the writer's schema, int64"),
        (["int64 user = 2"], r"field 'user' \(number 2\) is int64 in the writer's schema, string"),
        (["int64 other = 2"], r"field 'user' \(number 2\) is other int64 in the writer's schema, string"),
        (["string user = 7"], "field 'user' has number 7 in the writer's schema, 2 in the topology's"),
        (
            ["repeated int64 id = 1"],
            r"field 'id' \(number 1\) is repeated int64 in the writer's schema, int64",
        ),
        (["int32 many = 4"], r"field 'many' \(number 4\) is int32 in the writer's schema, repeated int32"),
        (
            ["repeated int64 many = 4"],
            r"\(number 4\) is repeated int64 in the writer's schema, repeated int32",
        ),
        (
            ["map string,string by = 5"],
            r"field 'by.value' \(number 2\) is string in the writer's schema, int32",
        ),
        (
            ["google.protobuf.Timestamp item = 3"],
            r"is google.protobuf.Timestamp in the writer's schema, shop.Item",
        ),
    ],
)
def test_a_change_that_cannot_be_resolved_names_both(writer: list[str], words: str) -> None:
    decoder = ProtobufDecoder(message_type(class_of(file_of(*READER))), registered(file_of(*writer)))
    with pytest.raises(UnresolvableError, match=words) as caught:
        decoder.read([b"12345\0"], 5)
    assert caught.value.row == 0


def test_changes_that_protobuf_allows() -> None:
    old = file_of("int32 id = 1", "bytes user = 2", "string gone = 9")
    written = class_of(old)(id=-3, user=b"ann", gone="x").SerializeToString()
    decoder = ProtobufDecoder(message_type(class_of(file_of(*READER))), registered(old))
    nothing: dict[str, Any] = {"item": None, "many": [], "by": []}
    assert decoder.read([b"12345\0" + written], 5).to_pylist() == [{"id": -3, "user": "ann", **nothing}]


def test_the_message_indexes_say_which_message_it_is() -> None:
    file = file_of("int64 id = 1")
    inner = file.message_type[1].nested_type.add(name="Inner")
    set_type(inner.field.add(name="n", number=1, label=1), "int64")
    value = class_of(file, "shop.Item.Inner")(n=5).SerializeToString()
    decoder = ProtobufDecoder(message_type(class_of(file, "shop.Item.Inner")), registered(file))
    assert decoder.read([b"12345\x04\x02\x00" + value], 5).to_pylist() == [{"n": 5}]  # two indexes: 1, 0
    for header, words in (
        (b"\0", "the message is shop.Order there, shop.Item.Inner in the topology's schema"),
        (b"\x02\x02", "the message is shop.Item there"),
        (b"\x02\x0c", r"it has no message with the indexes \[6\]"),
    ):
        with pytest.raises(UnresolvableError, match=words):
            decoder.read([b"12345" + header + value], 5)
    for header in (b"", b"\x01", b"\xff\xff\xff\xff\xff\xff", b"\x7e"):
        with pytest.raises(BadValueError, match="its list of message indexes is no such list"):
            decoder.read([b"12345" + header], 5)


def test_a_registry_that_has_only_text() -> None:
    """Apicurio's ignores ?format=serialized."""
    text = (
        'syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto"; import "shop/item.proto";'
        "message Order { int64 id = 1; Item item = 3; google.protobuf.Timestamp at = 4; }"
    )
    item = 'syntax = "proto3"; package shop; message Item { string name = 1; }'
    order = class_of(file_of("int64 id = 1", "Item item = 3", "google.protobuf.Timestamp at = 4"))
    value = b"12345\0" + order(id=3, item={"name": "pen"}).SerializeToString()
    for references in ((("shop/item.proto", item),), (("../item.proto", item),)):
        schema = RegisteredSchema(7, "PROTOBUF", text, references)
        if references[0][0].startswith(".."):
            with pytest.raises(UnresolvableError, match="leads out of its folder"):
                ProtobufDecoder(message_type(order), schema)
        else:
            found = ProtobufDecoder(message_type(order), schema).read([value], 5).to_pylist()
            assert found == [{"id": 3, "item": {"name": "pen"}, "at": None}]


def test_descriptors_that_import_other_subjects() -> None:
    file = file_of("int64 id = 1", "Item item = 3")
    item = descriptor_pb2.FileDescriptorProto(name="default", package="shop", syntax="proto3")
    item.message_type.add().CopyFrom(file.message_type[1])
    del file.message_type[1]
    file.dependency.append("shop/item.proto")
    main = registered(file)
    schema = RegisteredSchema(
        7, "PROTOBUF", main.text, (("shop/item.proto", base64.b64encode(item.SerializeToString()).decode()),)
    )
    order = class_of(file_of("int64 id = 1", "Item item = 3"))
    value = b"12345\0" + order(id=3, item={"name": "pen"}).SerializeToString()
    assert ProtobufDecoder(message_type(order), schema).read([value], 5).to_pylist()[0]["item"] == {
        "name": "pen"
    }
