"""Case 8: values in another framing than was declared, on a real broker: one of many is a dead letter that
says what it looks like, and a topic of them ends the run before anything is dead."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import Topics
from support.schema_registry import FakeRegistry

import txstream
from txstream.core.errors import TxstreamError
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner

FRAME = b"\0\0\0\0\x01"
AVRO = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}
JSON, ONE = b'{"n": 1}', b"\x02"  # the same row; as Avro it is one byte
ID_IN_HEADER = [("apicurio.value.globalId", b"\0\0\0\0\0\0\0\x01")]
IN_A_HEADER = "it has no schema id, and its header 'apicurio.value.globalId' looks like one"
FRAMED_JSON = "a schema registry's framing (a zero byte, the id 1 in 4 bytes, then JSON)"
KEY_ALONE = "it has no schema id, though the other of key and value begins with one: only one is framed"


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


def read(
    topic: str, decode: txstream.Decode, services: Services, folder: Path, registry: str
) -> tuple[list[Any], list[tuple[str, str]], str]:
    """Keep what is read of a topic. Return the rows, the dead letters, and how the run ended."""
    source = txstream.KafkaSource(topic, decode=decode, kafka_columns=("topic", "partition", "offset"))
    builder = txstream.TransactionalTopologyBuilder(
        topic, "lines", txstream.OpaqueSpout(source), dead_letters=txstream.DeadLetters()
    )
    table = txstream.SqlTable("record", "n bigint")
    builder.set_committer_bolt("store", txstream.SqlAppendBolt(table)).shuffle_grouping("lines")
    path = folder / f"{topic}.db"
    settings = txstream.Settings(
        zookeeper=services.zookeeper,
        kafka=services.kafka,
        schema_registry=registry,
        database=f"sqlite:///{path}",
        data_dir=folder,
    )
    ended = "caught up"
    try:
        txstream.start(
            builder.build(), settings=settings, until="caught-up", runner_factory=InProcessRunner
        ).wait()
    except TxstreamError as error:
        ended = str(error)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT n FROM record").fetchall()
        letters = database.execute(
            "SELECT place, message FROM txstream_dead_letter ORDER BY place"
        ).fetchall()
    return rows, letters, ended


def test_they_are_named_and_a_topic_of_them_ends_the_run(
    topics: Topics, services: Services, unique: str, tmp_path: Path
) -> None:
    as_json = txstream.Decode("json", "n bigint")
    with FakeRegistry() as registry:
        assert registry.add("rows-value", json.dumps(AVRO)) == 1
        as_avro = txstream.Decode("avro", AVRO)
        cases: list[tuple[str, txstream.Decode, bytes, list[tuple[bytes, dict[str, Any], str]]]] = [
            ("json", as_json, JSON, [(FRAME + JSON, {}, FRAMED_JSON)]),
            (
                "avro",
                as_avro,
                FRAME + ONE,
                [(ONE, {"headers": ID_IN_HEADER}, IN_A_HEADER), (ONE, {"key": FRAME + b"k"}, KEY_ALONE)],
            ),
        ]
        for form, decode, good, bad in cases:
            name = f"{unique}-{form}"
            topics.create(name)
            topics.send(name, [good] * 200)
            for value, more, _ in bad:
                topics.send(name, [value], **more)
            rows, letters, ended = read(name, decode, services, tmp_path, registry.url)
            assert (len(rows), {n for (n,) in rows}, ended) == (200, {1}, "caught up")
            assert [place for place, _ in letters] == [f"{name}/0@{200 + at}" for at in range(len(bad))]
            for (_, message), (_, _, words) in zip(letters, bad, strict=True):
                assert words in message
        topics.create(unique)
        topics.send(unique, [FRAME + JSON] * 300)
        rows, letters, ended = read(unique, as_json, services, tmp_path, registry.url)
        assert (rows, letters) == ([], [])
        assert FRAMED_JSON in ended
