"""Turnover per product, from orders in Avro whose schemas a schema registry has.

    python -m txstream.examples.avro_orders orders
    txstream run txstream.examples.avro_orders:topology --until caught-up
    txstream state top avro-orders turnover

The first command registers the schema and sends some orders; it needs a topic, and `pip install
'txstream[avro]'`. The addresses come from the settings: TXSTREAM_KAFKA, TXSTREAM_SCHEMA_REGISTRY.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from txstream import (
    Count,
    DeadLetters,
    Decode,
    KafkaSource,
    OpaqueSpout,
    Settings,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)

ORDER: Final[Mapping[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "product", "type": "string"},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "ordered_at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
PRODUCTS: Final = ("tea", "milk", "bread", "salt")
_START: Final = datetime(2026, 1, 31, 12, tzinfo=UTC)
_ID_BYTES: Final = 4


def topology(topic: str = "orders", semantics: str = "opaque", table: str = "turnover") -> Topology:
    """Return the topology. ORDER is the schema that it reads by; its columns come from there."""
    source = KafkaSource(
        topic,
        decode=Decode("avro", ORDER, key_format="avro", key_schema='"string"'),
        kafka_columns=["key"],
    )
    spout = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}[semantics](source)
    # A batch of an example is small, so that one bad order may be a large share of it.
    builder = TransactionalTopologyBuilder(
        "avro-orders", "orders", spout, dead_letters=DeadLetters(max_share=0.5)
    )
    state = SqlState(table, key="product string", value="turnover decimal(18,2), orders bigint")
    store = builder.set_bolt(
        "store", SqlStateBolt(state, turnover=Sum("amount"), orders=Count()), parallelism=2
    )
    store.fields_grouping("orders", "product")
    return builder.build()


def orders(count: int) -> Iterator[dict[str, Any]]:
    """Yield orders, the same ones each time."""
    for number in range(count):
        amount = Decimal(number % 500 + 1) / 4
        note = None if number % 3 else f"order {number}"
        moment = _START + timedelta(seconds=number)
        yield {"product": PRODUCTS[number % 4], "amount": amount, "ordered_at": moment, "note": note}


def encoded(schema_id: int, schema: Any, value: Any) -> bytes:
    """Return a value as Confluent's serializers write it: a zero byte, the schema's id, Avro."""
    import fastavro

    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(_ID_BYTES, "big") + data.getvalue()


def register(registry: str, subject: str, schema: Any) -> int:
    """Register a schema and return its id. The registry gives one that it knows the same id again."""
    import urllib3

    url = urllib3.util.parse_url(registry)
    login = {} if url.auth is None else urllib3.util.make_headers(basic_auth=url.auth)
    path = f"{url.scheme}://{url.netloc}{(url.path or '').rstrip('/')}/subjects/{subject}/versions"
    answer = urllib3.request("POST", path, json={"schema": json.dumps(schema)}, headers=login)
    if answer.status != 200:
        raise SystemExit(f"the registry does not take the schema: {answer.data.decode()}")
    return int(answer.json()["id"])


def main(topic: str, count: int = 1000) -> None:
    """Register the schemas and send orders."""
    from kafka import KafkaProducer

    settings = Settings().resolve()
    registry = settings.schema_registry
    if registry is None:
        raise SystemExit("set TXSTREAM_SCHEMA_REGISTRY to the URL of the registry")
    value_id, key_id = (
        register(registry, f"{topic}-value", ORDER),
        register(registry, f"{topic}-key", "string"),
    )
    producer = KafkaProducer(bootstrap_servers=settings.require_kafka())
    for order in orders(count):
        producer.send(topic, encoded(value_id, ORDER, order), key=encoded(key_id, "string", order["product"]))
    producer.flush()
    producer.close()
    sys.stdout.write(f"sent {count} orders, with schema {value_id}\n")


if __name__ == "__main__":
    main(sys.argv[1])
