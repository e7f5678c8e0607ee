"""A real schema registry, killed or frozen while a run needs it. fastavro and plain SQL tell the truth."""

from __future__ import annotations

import io
import json
import sqlite3
from pathlib import Path

import fastavro
import pytest
from registry_server import RegistryServer
from support.kafka_topics import Topics, wait_until
from support.schema_registry import register

import txstream
from txstream.engine.run import RunningTopology
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner

PRODUCT = {"name": "product", "type": "string"}
CENTS = {"name": "cents", "type": "long", "default": 1}


def sale(name: str, *fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields)}


def framed(schema_id: int, schema: dict[str, object], value: object) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + data.getvalue()


@pytest.mark.soak
@pytest.mark.parametrize("trouble", ["kill", "freeze"])
def test_a_batch_waits_until_its_registry_is_back(
    services: Services, own_registry: RegistryServer, tmp_path: Path, unique: str, trouble: str
) -> None:
    """Half of the records have a schema that the run has not met when the registry goes away."""
    # Schemas of its own: this process keeps those that it has met, by their ids.
    older, newer = sale(unique, PRODUCT), sale(unique, PRODUCT, CENTS)
    file = tmp_path / "state.db"
    settings = txstream.Settings(
        zookeeper=services.zookeeper,
        kafka=services.kafka,
        database=f"sqlite:///{file}",
        data_dir=tmp_path,
        schema_registry=own_registry.url,
    )
    source = txstream.KafkaSource(unique, decode=txstream.Decode("avro", newer))
    builder = txstream.TransactionalTopologyBuilder(unique, "sales", txstream.OpaqueSpout(source))
    state = txstream.SqlState("sales", key="product string", value="cents bigint")
    store = txstream.SqlStateBolt(state, cents=txstream.Sum("cents"))
    builder.set_bolt("store", store).fields_grouping("sales", "product")
    topology = builder.build()

    def start() -> RunningTopology:
        return txstream.start(topology, settings=settings, until="caught-up", runner_factory=InProcessRunner)

    old = register(own_registry.url, f"{unique}-value", json.dumps(older))
    new = register(own_registry.url, f"{unique}-value", json.dumps(newer))
    assert old != new
    with Topics(services.kafka) as topics:
        topics.create(unique)
        topics.send(unique, [framed(old, older, {"product": f"p{n % 3}"}) for n in range(30)])
        assert start().wait(120).caught_up
        topics.send(unique, [framed(new, newer, {"product": f"p{n % 3}", "cents": n}) for n in range(30)])
    getattr(own_registry, trouble)()
    running = start()
    try:
        away = f"the schema registry at {own_registry.url} since"
        wait_until(lambda: away in str(running.progress.waiting_for), "it waits")
        own_registry.start()
        assert running.wait(120).caught_up
    finally:
        running.stop()
        own_registry.start()
    with sqlite3.connect(file) as connection:
        rows = dict(connection.execute("SELECT product, cents FROM sales"))
    assert rows == {f"p{rest}": 10 + sum(range(rest, 30, 3)) for rest in range(3)}
