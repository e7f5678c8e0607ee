"""How many records of ten fields one core decodes into Arrow columns, by format: CPU time, in one process.

    python benchmarks/formats.py [--records N] [--rounds N]

The values carry schema ids, as with a schema registry, but no registry is asked. `avro` is read by the schema
that it was written with, `avro, evolved` by another one: a renamed field, a promoted one, one with a default.
The best of the rounds is shown, and for Avro what fastavro alone takes to make dicts."""

from __future__ import annotations

import argparse
import base64
import io
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from txstream.spouts.formats.json_values import JsonReader, json_schema
from txstream.spouts.formats.schema_registry import HEADER_BYTES, RegisteredSchema
from txstream.spouts.formats.value_formats import RegisteredReader, schema_format

FIELDS: list[tuple[str, Any, str, int]] = [
    ("id", "long", "bigint", 3),
    ("user", "string", "string", 9),
    ("product", "string", "string", 9),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "decimal(10,2)", 9),
    ("quantity", "int", "int", 5),
    ("weight", "double", "double", 1),
    ("paid", "boolean", "boolean", 8),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}, "timestamp", 3),
    ("day", {"type": "int", "logicalType": "date"}, "date", 5),
    ("note", ["null", "string"], "string", 9),
]
HEADER = b"\0\0\0\0\1"
START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def record(fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "fields": list(fields)}


WRITER = record([{"name": name, "type": kind} for name, kind, _, _ in FIELDS])
EVOLVED = record(
    [
        *({"name": name, "type": kind} for name, kind, _, _ in FIELDS if name not in ("user", "quantity")),
        {"name": "buyer", "type": "string", "aliases": ["user"]},
        {"name": "quantity", "type": "long"},
        {"name": "channel", "type": "string", "default": "web"},
    ]
)


def row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "user": f"user{number % 1000}",
        "product": f"product-{number % 77}",
        "price": Decimal(number % 10_000) / 100,
        "quantity": number % 7,
        "weight": number * 0.25,
        "paid": number % 2 == 0,
        "at": START + timedelta(milliseconds=number),
        "day": date(2026, 1, 31),
        "note": f"note {number}" if number % 3 else None,
    }


def message_class() -> tuple[Any, str]:
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for number, (name, _, _, kind) in enumerate(FIELDS, 1):
        message.field.add(name=name, number=number, label=1, type=kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return made, base64.b64encode(file.SerializeToString()).decode()


class Registered:
    """A registry with one schema."""

    def __init__(self, kind: str, text: str) -> None:
        self._schema = RegisteredSchema(1, kind, text)

    def schema(self, schema_id: int, *, serialized: bool = False) -> RegisteredSchema:
        return self._schema


def reader(name: str, schema: Any, written: str) -> Callable[[Sequence[bytes]], pa.Array]:
    registry: Any = Registered(name.upper(), written)
    registered = RegisteredReader(schema_format("schema", name, schema), lambda: registry, "strict")
    return lambda values: registered.read_fit(values)[0]


def measured(read: Callable[[Sequence[bytes]], Any], values: Sequence[bytes], rounds: int) -> float:
    """Return records per second of CPU time."""
    best = float("inf")
    for _ in range(rounds):
        started = time.process_time()
        read(values)
        best = min(best, time.process_time() - started)
    return len(values) / best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [row(number) for number in range(options.records)]
    parsed = fastavro.parse_schema(WRITER)
    avro, protobuf, texts = [], [], []
    order, serialized = message_class()
    for one in rows:
        data = io.BytesIO()
        fastavro.schemaless_writer(data, parsed, one)
        avro.append(HEADER + data.getvalue())
        plain = {
            **one,
            "price": str(one["price"]).encode(),
            "at": int(one["at"].timestamp() * 1000),
            "day": one["day"].toordinal(),
            "note": one["note"] or "",
        }
        protobuf.append(HEADER + b"\0" + order(**plain).SerializeToString())
        texts.append(
            json.dumps({**one, "price": str(one["price"])}, default=lambda at: at.isoformat()).encode()
        )

    def by_fastavro(values: Sequence[bytes]) -> list[Any]:
        found = []
        for value in values:
            data = io.BytesIO(value)
            data.seek(HEADER_BYTES)
            found.append(fastavro.schemaless_reader(data, parsed, None))
        return found

    declared = json_schema(", ".join(f"{name} {kind}" for name, _, kind, _ in FIELDS))
    for name, read, values in (
        ("avro", reader("avro", WRITER, json.dumps(WRITER)), avro),
        ("avro, evolved", reader("avro", EVOLVED, json.dumps(WRITER)), avro),
        ("protobuf", reader("protobuf", order, serialized), protobuf),
        ("json", JsonReader(declared).read, texts),
        ("avro into dicts, fastavro alone", by_fastavro, avro),
    ):
        print(f"{name:32} {measured(read, values, options.rounds):10,.0f} records/s and core")


if __name__ == "__main__":
    main()
