"""Values that are framed otherwise than was declared, and records without a value, are named as such."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.lists import each
from support.schema_registry import FakeRegistry

from txstream import (
    Decode,
    KafkaSource,
    MemorySpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlTable,
    TransactionalTopologyBuilder,
)
from txstream.api.spouts import SpoutContext
from txstream.core.errors import DecodeError, TopologyError
from txstream.spouts.kafka.columns import fitting_batch, joined_batch, readers
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import Headers, RecordColumns, Records
from txstream.testing import TopologyTest

AVRO = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}
JSON = b'{"n": 1}'
FRAMED = b"\0\0\0\0\x07"


def message() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="framed.proto", package="framed", syntax="proto3")
    row = file.message_type.add(name="Row")
    row.field.add(name="n", number=1, label=1, type=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("framed.Row"))


def source(value_format: str, *, kafka_columns: Sequence[str] | None = None, **decode: Any) -> KafkaSource:
    schemas = {"json": "n bigint", "avro": AVRO, "protobuf": message()}
    given = Decode(value_format, schemas.get(value_format), **decode)
    return KafkaSource("t", decode=given, kafka_columns=kafka_columns)


def part(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Headers = (),  # type: ignore[assignment]
) -> tuple[Partition, RecordColumns]:
    size = len(values)
    records = Records(
        np.arange(100, 100 + size), np.zeros(size, np.int64), np.zeros(size, np.bool_),
        keys or [None] * size, values, dict.fromkeys(range(size), headers) if headers else {},
    )  # fmt: skip
    return Partition("t", 3), RecordColumns([records.block])


def refusal(of: KafkaSource, *values: bytes | None, **more: Any) -> str:
    read = readers(of, SpoutContext("t", "rows", {"schema_registry": "http://127.0.0.1:9"}))
    with pytest.raises(DecodeError) as caught:
        joined_batch(of, read, [part(values, **more)])
    told = str(caught.value)
    assert "offset 100 of topic 't', partition 3" in told
    return told


@each("value_format", ["json", "avro", "protobuf"])
def test_framings_are_named_before_the_parser_is_quoted(value_format: str) -> None:
    plain = source(value_format, **({} if value_format == "json" else {"wire_format": "plain"}))
    for value, words in (
        (FRAMED + JSON, "a schema registry's framing (a zero byte, the id 7 in 4 bytes, then JSON)"),
        (FRAMED + b"\x02x", "a schema registry's framing (a zero byte, the id 7 in 4 bytes)"),
        (b"\xef\xbb\xbf" + JSON, "it begins with a byte-order mark (UTF-8)"),
        (JSON.decode().encode("utf-16"), "it begins with a byte-order mark (UTF-16)"),
        (gzip.compress(JSON), "it looks like gzip"),
        (b"Obj\x01" + JSON, "it looks like an Avro file"),
    ):
        told = refusal(plain, value)
        assert f"does not fit the schema: {'it looks like ' if words[0] == 'a' else ''}{words}" in told
    assert "looks like" not in refusal(plain, b"\xff\xff\xff")


@each("value_format", ["avro", "protobuf"])
def test_with_a_registry_an_id_elsewhere_is_named(value_format: str) -> None:
    framed = source(value_format)
    for name in (b"apicurio.value.globalId", b"__value_schema_id", b"schema.id", b"contentId"):
        told = refusal(framed, b"\x02", headers=[(b"trace", b"1"), (name, b"\0\0\0\x07")])
        assert f"it has no schema id, and its header '{name.decode()}' looks like one" in told
    told = refusal(framed, b"\x02", keys=[FRAMED + b"k"])
    assert (
        "it has no schema id, though the other of key and value begins with one: only one is framed" in told
    )
    assert "looks like gzip" in refusal(framed, gzip.compress(JSON))
    assert "it begins with a byte-order mark" in refusal(framed, b"\xef\xbb\xbf" + JSON)


def test_keys_that_are_framed_and_declared_plain() -> None:
    read_keys = KafkaSource(
        "t", decode=Decode("string", key_format="json", key_schema="n bigint"), kafka_columns=["key"]
    )
    told = refusal(read_keys, b"x", keys=[FRAMED + JSON])
    assert "the key of the record at" in told
    assert "a schema registry's framing (a zero byte, the id 7" in told


@each("value_format", ["json", "avro", "protobuf"])
def test_a_record_without_a_value_is_refused_unless_asked_for(value_format: str) -> None:
    options: dict[str, Any] = {"kafka_columns": ["key"], "key_format": "string"}
    with FakeRegistry() as registry:
        registry.add("t-value", json.dumps(AVRO))
        of = source(value_format, **options)
        context = SpoutContext("t", "rows", {"schema_registry": registry.url})
        read = readers(of, context)
        told = refusal(of, None, None)
        assert told.startswith(
            "a record without a value (tombstone) is at offset 100 of topic 't', partition 3"
        )
        found = fitting_batch(of, read, [part([None, None], [b"a", b"b"])])
        assert (found.batch.num_rows, [offset for _, offset, _ in found.unfit]) == (0, [100, 101])
        taken = source(value_format, tombstones="null", **options)
        batch = joined_batch(taken, readers(taken, context), [part([None], [b"a"])])
        assert batch.to_pylist() == [{"n": None, "key": "a"}]


@each("value_format", ["json", "avro", "protobuf"])
def test_a_record_without_a_value_removes_the_row_of_its_key(value_format: str) -> None:
    """Its fields are null, so the condition is one of these, and the table's key is Kafka's."""
    columns = ["key", "topic", "partition", "offset"]
    of = source(
        value_format, kafka_columns=columns, key_format="string", tombstones="null", wire_format="plain"
    )
    five = {"json": b'{"n": 5}', "avro": b"\x0a", "protobuf": b"\x08\x05"}[value_format]
    records = part([five, five, None, None, five], [b"a", b"b", b"a", b"b", b"b"])
    batch = joined_batch(of, readers(of, SpoutContext("t", "rows", {})), [records])
    table = SqlTable("mirror", "n bigint", key="key string", on_conflict="replace", removed_by="n is null")
    for most in (1, 2, 5):
        rows = [tuple(row.values()) for row in batch.to_pylist()]
        with MemorySpout(of.output, {"p": rows}) as memory:
            builder = TransactionalTopologyBuilder("m", "rows", OpaqueSpout(memory, max_batch_records=most))
            builder.set_bolt("store", SqlAppendBolt(table)).local_or_shuffle_grouping("rows")
            with TopologyTest(builder) as test:
                test.run()
                assert test.table("mirror") == {"b": 5}


def test_text_and_bytes_without_a_value_are_null() -> None:
    for value_format in ("string", "binary"):
        of = source(value_format, kafka_columns=["value", "offset"])
        batch = joined_batch(of, readers(of, SpoutContext("t", "rows", {})), [part([None])])
        assert batch.to_pylist() == [{"value": None, "offset": 100}]
    with pytest.raises(TopologyError, match="tombstones is 'drop'; it must be 'refuse' or 'null' or 'skip'"):
        source("json", tombstones="drop")
