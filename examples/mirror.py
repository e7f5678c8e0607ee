"""A table of another database, kept equal through its change topic: each change counts exactly once.

    python -m txstream.examples.mirror shop.public.goods
    txstream run txstream.examples.mirror:topology --until caught-up
    txstream state top mirror goods

The topic is what Debezium's connector writes of a table `goods`. The first command stands in for it: it sends
some changes as such a connector does, with a snapshot, updates, a deletion and a key that changes.
docs/mirror.md goes on from here to a real one.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any, Final

from txstream import (
    Decode,
    KafkaSource,
    OpaqueSpout,
    Settings,
    SqlAppendBolt,
    SqlTable,
    Topology,
    TransactionalTopologyBuilder,
)

COLUMNS: Final = "id bigint, name string, price decimal(10,2), made timestamp_ntz"
_MADE: Final = 1769860800000000  # 2026-01-31 12:00, in microseconds
_TYPES: Final = [
    {"field": "id", "type": "int64", "optional": False},
    {"field": "name", "type": "string", "optional": True},
    {
        "field": "price",
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
    {"field": "made", "type": "int64", "optional": True, "name": "io.debezium.time.MicroTimestamp"},
]
_SCHEMA: Final = {
    "type": "struct",
    "name": "shop.public.goods.Envelope",
    "fields": [
        {"field": "before", "type": "struct", "optional": True, "fields": _TYPES},
        {"field": "after", "type": "struct", "optional": True, "fields": _TYPES},
    ],
}


def graph(source: Any, table: str = "goods") -> Topology:
    """Return the topology over any source of rows with their key, `op` and `sequence`."""
    goods = SqlTable(
        table,
        "name string, price decimal(10,2), made timestamp_ntz, sequence bigint",
        key="id bigint",
        on_conflict="replace",
        removed_by="op = 'd'",
        sequence_by="sequence",
    )
    builder = TransactionalTopologyBuilder("mirror", "changes", OpaqueSpout(source))
    store = SqlAppendBolt(goods)
    builder.set_bolt("store", store, parallelism=2).local_or_shuffle_grouping("changes")
    return builder.build()


def topology(topic: str = "shop.public.goods", table: str = "goods") -> Topology:
    """What `txstream run` calls. Values are JSON, or Avro where a schema registry is named."""
    place = ("topic", "partition", "offset")
    return graph(KafkaSource(topic, decode=Decode("debezium", COLUMNS), kafka_columns=place), table)


# --- what stands in for Debezium ------------------------------------------------------------------------


def row(number: int, name: str, cents: int) -> dict[str, Any]:
    """Return a row as Debezium writes it: a decimal is bytes, in JSON as base64, and a time is a number."""
    price = base64.b64encode(cents.to_bytes(8, "big", signed=True)).decode()
    return {"id": number, "name": name, "price": price, "made": _MADE + number}


def changes() -> Iterator[tuple[int, str, dict[str, Any] | None, dict[str, Any] | None]]:
    """Yield the key, op, and row before and after of each change of a small table."""
    tea, milk, salt = row(1, "tea", 450), row(2, "milk", 120), row(3, "salt", 90)
    yield 1, "r", None, tea  # the snapshot with which a connector begins
    yield 2, "r", None, milk
    yield 3, "c", None, salt
    dearer = row(1, "tea", 475)
    yield 1, "u", tea, dearer
    yield 2, "d", milk, None
    yield 3, "d", salt, None  # a key that changes: the old one goes, the new one comes
    yield 30, "c", None, row(30, "salt", 90)
    yield 2, "c", None, row(2, "oat milk", 210)


def encoded(lsn: int, op: str, before: Any, after: Any) -> bytes:
    """Return a change event as Connect's JSON converter writes it."""
    source = {
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": _MADE // 1000 + lsn,
        "snapshot": "true" if op == "r" else "false",
        "db": "shop",
        "schema": "public",
        "table": "goods",
        "txId": 700 + lsn,
        "lsn": lsn,
    }
    payload = {"before": before, "after": after, "source": source, "op": op, "ts_ms": source["ts_ms"]}
    return json.dumps({"schema": _SCHEMA, "payload": payload}).encode()


def main(topic: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=Settings().resolve().require_kafka())
    count = 0
    for lsn, (key, op, before, after) in enumerate(changes(), 100):
        name = json.dumps({"schema": None, "payload": {"id": key}}).encode()
        producer.send(topic, encoded(lsn, op, before, after), key=name)
        if op == "d":
            producer.send(topic, None, key=name)  # a tombstone follows each deletion
        count += 1
    producer.flush()
    producer.close()
    sys.stdout.write(f"sent {count} changes\n")


if __name__ == "__main__":
    main(sys.argv[1])
