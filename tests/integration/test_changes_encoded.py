"""A table's changes and a stream leave as Avro and Protobuf, with a real broker and a real registry: fastavro
and protobuf read them by the schemas that the registry gives for their ids."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from typing import Any

import fastavro
import pytest
import urllib3
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from registry_server import RegistryServer
from support.runs import Launcher
from support.texts import create_topic

from txstream.plugins.local.embedded import Services

MODULE = """
import txstream as t


def topology(topic: str, descriptors: str) -> t.Topology:
    decode = t.Decode("json", "customer string, amount decimal(10,2)")
    source = t.KafkaSource(topic, decode=decode, max_records_per_partition=10)
    builder = t.TransactionalTopologyBuilder(topic, "orders", t.OpaqueSpout(source))
    goal = t.ChangeTopic(f"{topic}-changes", exactly_once=True, encode=t.Encode("avro"))
    state = t.SqlState("totals", key="customer string", value="amount decimal(20,2)", changes_to=goal)
    builder.set_committer_bolt("store", t.SqlStateBolt(state, amount=t.Sum("amount"))).fields_grouping(
        "orders", "customer")
    message = t.Encode("protobuf", (descriptors, "shop.Order"))
    sink = t.KafkaSinkBolt(f"{topic}-orders", key="customer", value=["customer", "amount"], encode=message)
    builder.set_committer_bolt("send", sink).fields_grouping("orders", "customer")
    return builder.build()
"""


def read(bootstrap: str, topic: str) -> list[tuple[bytes, bytes]]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap, isolation_level="read_committed", enable_auto_commit=False
    )
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end, found = consumer.end_offsets([place])[place], []
    while consumer.position(place) < end:
        for records in consumer.poll(timeout_ms=500).values():
            found += [(record.key, record.value) for record in records]
    consumer.close()
    return found


def schema_of(registry: str, value: bytes, more: str = "") -> Any:
    assert value[:1] == b"\0"
    answer = urllib3.request("GET", f"{registry}/schemas/ids/{int.from_bytes(value[1:5], 'big')}{more}")
    assert answer.status == 200, answer.data
    return answer.json()


def shop() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    for at, name in enumerate(("customer", "amount"), 1):
        message.field.add(name=name, number=at, type=9, label=1)
    return file


def test_what_the_registry_has_reads_what_was_sent(
    launcher: Launcher, services: Services, own_registry: RegistryServer, unique: str
) -> None:
    for topic in (unique, f"{unique}-changes", f"{unique}-orders"):
        create_topic(services.kafka, topic, 1)
    (launcher.directory / "encoded.py").write_text(MODULE)
    descriptors = launcher.directory / "shop.desc"
    descriptors.write_bytes(descriptor_pb2.FileDescriptorSet(file=[shop()]).SerializeToString())
    producer = KafkaProducer(bootstrap_servers=services.kafka)
    orders = [(f"c{number % 7}", number * 25) for number in range(100)]
    for customer, cents in orders:
        order = {"customer": customer, "amount": f"{cents / 100:.2f}"}
        producer.send(unique, json.dumps(order).encode())
    producer.flush()
    producer.close()
    outcome = launcher.without_spark.run(
        *(
            "run",
            "encoded:topology",
            "--id",
            unique,
            "-p",
            f"topic={unique}",
            "-p",
            f"descriptors={descriptors}",
        ),
        *("--until", "caught-up"),
        TXSTREAM_SCHEMA_REGISTRY=own_registry.url,
    )
    assert outcome.status == 0, outcome.stderr

    totals: dict[str, int] = {}
    for key, value in read(services.kafka, f"{unique}-changes"):
        schema = fastavro.parse_schema(json.loads(schema_of(own_registry.url, value)["schema"]))
        row: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        assert row["customer"].encode() == key
        totals[row["customer"]] = int(row["amount"] * 100)
    expected: Counter[str] = Counter()
    for customer, cents in orders:
        expected[customer] += cents
    assert totals == expected

    found = Counter[tuple[str, int]]()
    for key, value in read(services.kafka, f"{unique}-orders"):
        registered = schema_of(own_registry.url, value)
        assert registered["schemaType"] == "PROTOBUF"
        assert value[5:6] == b"\0"
        order = order_class(own_registry.url, value).FromString(value[6:])
        assert order.customer.encode() == key
        found[order.customer, round(float(order.amount) * 100)] += 1
    assert found == Counter(orders)


def order_class(registry: str, value: bytes) -> Any:
    """The class of the message by what is registered: its descriptor, or its source."""
    text = schema_of(registry, value)["schema"]
    pool = descriptor_pool.DescriptorPool()
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except ValueError:
        assert "message Order" in text, text
        assert "string customer = 1" in text, text
        assert "string amount = 2" in text, text
        file = shop()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


pytestmark = pytest.mark.soak
