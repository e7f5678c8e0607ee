"""Avro and Protobuf records of a real topic, by way of a registry, through a topology into a table."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.debezium_events import AVRO, COLUMNS, KINDS, in_avro, wrapped
from support.kafka_topics import Topics, attempt, wait_until
from support.schema_registry import FakeRegistry, register
from support.tables import read_rows

import txstream
from txstream import Decode, KafkaSource, inspect
from txstream.api.spouts import SpoutContext
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import DecodeError
from txstream.examples import avro_orders
from txstream.examples.avro_orders import ORDER, encoded, orders
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.kafka import KafkaRange

ORDER_FIELDS = [field["name"] for field in ORDER["fields"]]


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def settings(services: Services, sqlite_url: str, tmp_path: Path) -> txstream.Settings:
    return txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )


@pytest.fixture(params=["fake", "real"])
def registry_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a fake registry, and of a real one: TXSTREAM_TEST_REGISTRY, or one that is started."""
    if request.param == "fake":
        with FakeRegistry() as fake:
            yield fake.url
    else:
        yield os.environ.get("TXSTREAM_TEST_REGISTRY") or request.getfixturevalue("own_registry").url


def with_registry(settings: txstream.Settings, url: str) -> txstream.Settings:
    return replace(settings, schema_registry=url)


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_batch_waits_for_its_registry_and_bad_records_become_dead_letters(
    topics: Topics,
    settings: txstream.Settings,
    unique: str,
    semantics: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("txstream.plugins.formats.schema_registry._UNKNOWN_SECONDS", 0.5)
    older = {**ORDER, "fields": ORDER["fields"][:3]}
    wrong = {**ORDER, "fields": [{"name": "product", "type": "string"}, {"name": "amount", "type": "double"}]}
    topics.create(unique)
    with FakeRegistry(login="me:secret") as registry:
        new, old, other = (registry.add(f"{unique}-value", json.dumps(one)) for one in (ORDER, older, wrong))
        key = registry.add(f"{unique}-key", '"string"')
        made = list(orders(40))
        good = [
            encoded(new, ORDER, one) if at % 2 else encoded(old, older, one) for at, one in enumerate(made)
        ]
        looks_framed = b"\0\0\0\x27\x0fit only looks like an id"
        bad: list[Any] = [
            good[0][:-1],
            encoded(other, wrong, {"product": "tea", "amount": 1.5}),
            looks_framed,
            None,
        ]
        topics.send(unique, good[:20] + bad + good[20:], key=encoded(key, "string", "tea"))
        registry.stop()
        url = registry.url.replace("://", "://me:secret@")
        topology = avro_orders.topology(unique, semantics, table=unique.replace("-", "_")).with_id(unique)
        running = txstream.start(
            topology, settings=with_registry(settings, url), until="caught-up", runner_factory=InProcessRunner
        )
        try:
            away = f"the schema registry at {registry.url} since"
            wait_until(lambda: away in str(running.progress.waiting_for), "it waits")

            def shown() -> bool:
                waits = map(str, inspect.status(unique, settings).waiting)
                return any(one.startswith(away) and one.endswith("(txid 1 needs it)") for one in waits)

            wait_until(shown, "status shows it")
            registry.start()
            report = running.wait(120)
        finally:
            running.stop()
        assert report.caught_up
        replayed = inspect.replay(topology, 1, with_registry(settings, url))
        assert replayed.batches[0].differs == (), "what was left out is not in the digest"
    expected: dict[str, Decimal] = {}
    for one in made:
        expected[one["product"]] = expected.get(one["product"], Decimal(0)) + one["amount"]
    rows = read_rows(str(settings.database), unique.replace("-", "_"))
    assert {row["product"]: Decimal(row["turnover"]) for row in rows} == expected
    assert sum(row["orders"] for row in rows) == 40
    letters = read_rows(str(settings.database), "txstream_dead_letter")
    assert {letter["offset"] for letter in letters} == {20, 21, 22, 23}
    assert Counter(letter["exception"] for letter in letters) == {"DecodeError": 4}
    told = " ".join(letter["message"] for letter in letters)
    assert (
        f"(subject '{unique}-value', version 3): field 'amount' is double in the writer's schema, bytes "
        f"(decimal(12,2)) in the topology's" in told
    )
    assert f"schema 9999 is not in the schema registry at {registry.url}, which was asked for it" in told
    assert "a record without a value (tombstone) is at offset 23" in told
    assert "secret" not in told


def test_protobuf_records(
    topics: Topics, settings: txstream.Settings, unique: str, registry_url: str
) -> None:
    """The registry gives schemas as text. A change that would lose a field ends the run."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="product", number=1, label=1, type=9)
    message.field.add(name="cents", number=2, label=1, type=3)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    source = KafkaSource(unique, decode=Decode("protobuf", order))
    builder = txstream.TransactionalTopologyBuilder(unique, "orders", txstream.OpaqueSpout(source))
    table = unique.replace("-", "_")
    store = txstream.SqlStateBolt(
        txstream.SqlState(table, key="product string", value="cents bigint"), cents=txstream.Sum("cents")
    )
    builder.set_bolt("store", store).fields_grouping("orders", "product")
    topology = builder.build()
    topics.create(unique)
    url = registry_url

    def run() -> Any:
        return txstream.start(
            topology,
            settings=with_registry(settings, url),
            until="caught-up",
            runner_factory=InProcessRunner,
        ).wait(120)

    text = 'syntax = "proto3"; package shop; message Order { string product = 1; %s; }'
    good = register(url, f"{unique}-value", text % "int32 cents = 2", "PROTOBUF")
    header = b"\0" + good.to_bytes(4, "big") + b"\0"
    topics.send(unique, [header + order(product=f"p{n % 3}", cents=n).SerializeToString() for n in range(30)])
    assert run().caught_up
    sums = {f"p{rest}": sum(range(rest, 30, 3)) for rest in range(3)}
    assert {row["product"]: row["cents"] for row in read_rows(str(settings.database), table)} == sums
    bad = register(url, f"{unique}-other", text % "string cents = 2", "PROTOBUF")
    topics.send(unique, [b"\0" + bad.to_bytes(4, "big") + b"\0" + order(product="p0").SerializeToString()])
    words = (
        rf"schema {bad} \(subject '{unique}-other', version 1\): field 'cents' \(number 2\) is string in "
        r"the writer's schema, int64 in the topology's"
    )
    with pytest.raises(DecodeError, match=words):
        run()
    assert {row["product"]: row["cents"] for row in read_rows(str(settings.database), table)} == sums


def test_keys_and_values_of_two_versions(topics: Topics, unique: str, registry_url: str) -> None:
    """Their columns are what was encoded, with nulls for a tombstone. Dead letters are, too."""
    older = {**ORDER, "fields": ORDER["fields"][:3]}
    customer = {"type": "record", "name": "Customer", "fields": [{"name": "number", "type": "int"}]}
    topics.create(unique)
    url = registry_url
    old, new = (avro_orders.register(url, f"{unique}-value", one) for one in (older, ORDER))
    key_id = register(url, f"{unique}-key", json.dumps(customer))
    made = list(orders(7))
    values = [encoded(new, ORDER, one) if at % 3 else encoded(old, older, one) for at, one in enumerate(made)]
    key = encoded(key_id, customer, {"number": 5})
    topics.send(unique, [*values, None], key=key)
    source = KafkaSource(
        unique,
        topics.address,
        decode=Decode(
            "avro", ORDER, tombstones="null", key_format="avro", key_schema=customer, schema_registry=url
        ),
        kafka_columns=["key", "offset"],
    )
    context = SpoutContext("formats", "orders", {})
    emitter = source.emitter(context)
    try:
        batches = list(emitter.emit(attempt(), f"{unique}/0", KafkaRange(0, 8)))
    finally:
        emitter.close()
    rows = [row for batch in batches for row in batch.to_pylist()]
    wanted = [{**one, "note": one["note"] if at % 3 else None} for at, one in enumerate(made)]
    wanted.append(dict.fromkeys(ORDER_FIELDS))
    assert rows == [{**one, "key": {"number": 5}, "offset": at} for at, one in enumerate(wanted)]
    letter = DeadLetter(f"{unique}/0@1", unique, 0, 1, 0, key, values[1], None, "orders", "E", "", "")
    decode = source.letter_decoder(context)
    assert decode([letter]).to_pylist() == rows[1:2]
    with pytest.raises(
        DecodeError, match=rf"^the key of the record at offset 1 of topic '{unique}', .* no schema id"
    ):
        decode([replace(letter, key=b"five")])
    assert source.undecoded().output.names == KafkaSource(unique, decode=Decode("binary")).output.names


def test_change_events_in_avro_and_in_json(topics: Topics, unique: str, registry_url: str) -> None:
    """What Debezium writes of each kind, by a real registry; tombstones are left out."""
    topics.create(unique)
    schema_id = register(registry_url, f"{unique}-value", json.dumps(AVRO))
    values: list[bytes | None] = []
    for payload, _ in KINDS.values():
        values += [b"\0" + schema_id.to_bytes(4, "big") + in_avro(payload), None]
        values.append(json.dumps(wrapped(payload)).encode())
    topics.send(unique, values, key=b"{}")
    source = KafkaSource(
        unique,
        topics.address,
        decode=Decode("debezium", COLUMNS, schema_registry=registry_url),
        kafka_columns=["offset"],
    )
    emitter = source.emitter(SpoutContext("formats", "changes", {}))
    try:
        batches = list(emitter.emit(attempt(), f"{unique}/0", KafkaRange(0, len(values))))
    finally:
        emitter.close()
    rows = [row for batch in batches for row in batch.to_pylist()]
    wanted = [row for _, row in KINDS.values() for _ in range(2)]
    offsets = [at for at, value in enumerate(values) if value is not None]
    assert rows == [{**row, "offset": at} for at, row in zip(offsets, wanted, strict=True)]
