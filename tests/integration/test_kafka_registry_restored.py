"""A real schema registry that was restored gives a known id to another schema: columns may not change places
in silence. fastavro writes, SQLite is asked, and nothing here decodes with the product."""

from __future__ import annotations

import io
import json
import sqlite3
from typing import Any

import fastavro
import pytest
from registry_server import RegistryServer
from support.kafka_topics import Topics
from support.runs import Launcher, Outcome
from support.schema_registry import register

from txstream.plugins.local.embedded import Services

MODULE = """
import txstream as t

FIELDS = [{"name": name, "type": "long"} for name in ("a", "b")]


def topology(topic: str, semantics: str) -> t.Topology:
    schema = {"type": "record", "name": "Pair", "fields": FIELDS}
    source = t.KafkaSource(topic, decode=t.Decode("avro", schema))
    spout = t.TransactionalSpout(source) if semantics == "transactional" else t.OpaqueSpout(source)
    builder = t.TransactionalTopologyBuilder(topic, "pairs", spout, dead_letters=t.DeadLetters())
    state = t.SqlState("pairs", key="a bigint", value="b bigint")
    builder.set_committer_bolt("store", t.SqlStateBolt(state, b=t.Sum("b"))).fields_grouping("pairs", "a")
    return builder.build()
"""


def pair(*names: str) -> dict[str, Any]:
    return {"type": "record", "name": "Pair", "fields": [{"name": one, "type": "long"} for one in names]}


def framed(schema_id: int, schema: dict[str, Any], value: object) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return b"\0" + schema_id.to_bytes(4, "big") + data.getvalue()


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_known_id_with_another_schema_ends_the_run(
    launcher: Launcher, services: Services, own_registry: RegistryServer, unique: str, semantics: str
) -> None:
    (launcher.directory / "restored.py").write_text(MODULE)
    runs = launcher.without_spark
    given = "-p", f"topic={unique}", "-p", f"semantics={semantics}"
    variables: Any = {"TXSTREAM_SCHEMA_REGISTRY": own_registry.url}

    def run() -> Outcome:
        until = "--until", "caught-up", "--session-timeout", "1"
        return runs.run("run", "restored:topology", *given, *until, **variables)

    def replay() -> Outcome:
        return runs.run(
            "replay", unique, "1", "--topology", "restored:topology", *given, "--json", **variables
        )

    def rows() -> dict[int, int]:
        with sqlite3.connect(launcher.directory / "state.db") as connection:
            return dict(connection.execute("SELECT a, b FROM pairs"))

    own_registry.lose_everything()
    first = register(own_registry.url, f"{unique}-value", json.dumps(pair("a", "b")))
    with Topics(services.kafka) as topics:
        topics.create(unique)
        topics.send(unique, [framed(first, pair("a", "b"), {"a": 1, "b": n}) for n in range(5)])
        outcome = run()
        assert outcome.status == 0, outcome.stderr
        assert rows() == {1: 10}
        assert replay().status == 0
        own_registry.lose_everything()
        assert register(own_registry.url, f"{unique}-value", json.dumps(pair("b", "a"))) == first
        topics.send(unique, [framed(first, pair("a", "b"), {"a": 1, "b": 100})])
        for _ in range(2):
            outcome = run()
            assert outcome.status == 1, outcome.stderr
            assert f"schema {first} had the fingerprint" in outcome.stderr
            assert rows() == {1: 10}
        own_registry.lose_everything()
        other = {"type": "record", "name": "Pair", "fields": [{"name": "a", "type": "string"}]}
        assert register(own_registry.url, f"{unique}-value", json.dumps(other)) == first
        outcome = run()
        assert outcome.status == 1, outcome.stderr
        assert f"schema {first} had the fingerprint" in outcome.stderr, "good records are no dead letters"
        own_registry.lose_everything()
        assert register(own_registry.url, f"{unique}-value", json.dumps(pair("b", "a"))) == first
        told = replay()
        assert told.status == 1
        (batch,) = told.json()["batches"]
        assert [words[:27] for words in batch["differs"]] == [f"schema {first} had the fingerprint"[:27]]
        own_registry.lose_everything()
        assert register(own_registry.url, f"{unique}-value", json.dumps(pair("a", "b"), indent=1)) == first
        assert run().status == 0
        assert rows() == {1: 110}
