"""JSON values read from a real broker give the schema's columns, or an error that names the record."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.kafka_topics import Topics, attempt
from support.tables import read_rows

import txstream
from txstream.api.spouts import SpoutContext
from txstream.core.errors import DataLostError, DecodeError
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.spouts.kafka import Decode, KafkaRange, KafkaSource

SCHEMA = "user string, amount decimal(10,2), at timestamp"
NULLS = Decode("json", SCHEMA, tombstones="null")


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


def read(topics: Topics, name: str, *ranges: tuple[int, int], **options: Any) -> pa.Table:
    """Return the rows of these ranges of partitions 0, 1, ..."""
    source = KafkaSource(name, topics.address, **{"decode": Decode("json", SCHEMA), **options})
    emitter = source.emitter(SpoutContext("json", "lines", {}))
    try:
        metas = {f"{name}/{number}": KafkaRange(*span) for number, span in enumerate(ranges)}
        return pa.Table.from_batches(
            [batch for _, batch in emitter.emit_many(attempt(), metas)], source.output
        )
    finally:
        emitter.close()


def test_the_fields_of_the_schema_and_kafkas_columns(topics: Topics, unique: str) -> None:
    topics.create(unique)
    topics.send(
        unique,
        [b'{"user": "ann", "amount": 12.5, "at": "2026-11-21T10:00:00Z", "more": [1]}', b"{}", None],
        key=b"k",
    )
    ann = {"user": "ann", "amount": Decimal("12.50"), "at": datetime(2026, 11, 21, 10, tzinfo=UTC)}
    nothing = {"user": None, "amount": None, "at": None}
    assert read(topics, unique, (0, 3), decode=NULLS).to_pylist() == [ann, nothing, nothing]
    beside = read(topics, unique, (1, 3), kafka_columns=["offset", "key"], decode=NULLS)
    assert beside.to_pylist() == [{**nothing, "offset": n, "key": b"k"} for n in (1, 2)]
    skipping = Decode("json", SCHEMA, tombstones="skip")
    assert read(topics, unique, (0, 3), decode=skipping).to_pylist() == [ann, nothing]
    assert read(topics, unique, (2, 3), decode=skipping).num_rows == 0
    columns = {"decode": Decode("string"), "kafka_columns": ["offset", "value"]}
    assert read(topics, unique, (1, 2), **columns).to_pylist() == [{"offset": 1, "value": "{}"}]


def test_a_record_that_does_not_fit_is_named(topics: Topics, unique: str) -> None:
    topics.create(unique, 2)
    topics.send(unique, [b'{"user": "ann"}'] * 5, 0)
    topics.send(unique, [b'{"user": "bob"}', b'{"amount": 1.005}', b'{"user": "caf\xe9"}'], 1)
    topics.send(unique, [b'{"user": "' + b"x" * 100_000], 1)
    assert read(topics, unique, (0, 5), (0, 1)).num_rows == 6
    where = (
        f"the value of the record at offset %d of topic '{unique}', partition 1, does not fit the schema: "
    )
    for offset, reason in (
        (1, "field 'amount': 1.005 has more than 2 digits after the point, which decimal(10,2) cannot hold"),
        (2, "it is not UTF-8: invalid continuation byte at byte 13"),
        (3, "it is not JSON: Unterminated string starting at at character 9"),
    ):
        with pytest.raises(DecodeError) as caught:
            read(topics, unique, (0, 5), (offset, 4))
        message = str(caught.value)
        assert message.startswith(where % offset + reason)
        assert len(message) < 700
    assert "100,010 bytes" in message
    with pytest.raises(DecodeError, match=r"""the value is '\{"amount": 1\.005\}'; correct the schema"""):
        read(topics, unique, (0, 0), (0, 4))
    replaced = read(topics, unique, (0, 0), (2, 3), decode=Decode("json", SCHEMA, errors="replace"))
    assert replaced.column("user").to_pylist() == ["caf\ufffd"]


def test_sums_over_the_topics_of_a_pattern(
    topics: Topics, services: Services, sqlite_url: str, tmp_path: Path, unique: str
) -> None:
    """Each run reads new topics too; a value that does not fit, or a topic that is gone, ends a run."""
    source = KafkaSource(
        topic_pattern=f"{unique}-.*",
        decode=Decode("json", "user string, cents bigint"),
    )
    builder = txstream.TransactionalTopologyBuilder(unique, "orders", txstream.OpaqueSpout(source))
    state = txstream.SqlState(unique, key="user string", value="cents bigint")
    store = txstream.SqlStateBolt(state, cents=txstream.Sum("cents"))
    builder.set_committer_bolt("store", store).fields_grouping("orders", "user")
    topology = builder.build()
    settings = txstream.Settings(
        zookeeper=services.zookeeper, kafka=services.kafka, database=sqlite_url, data_dir=tmp_path
    )

    def run() -> dict[str, int]:
        running = txstream.start(
            topology, settings=settings, until="caught-up", runner_factory=InProcessRunner
        )
        assert running.wait(60).caught_up
        return sums()

    def sums() -> dict[str, int]:
        return {row["user"]: row["cents"] for row in read_rows(sqlite_url, unique)}

    assert run() == {}, "no topic yet"
    first = topics.create(f"{unique}-first")
    topics.send(first, [b'{"user": "ann", "cents": 10}'] * 3 + [b'{"user": "bob", "cents": 100}'])
    assert run() == {"ann": 30, "bob": 100}
    second = topics.create(f"{unique}-second")
    topics.send(second, [b'{"user": "ann", "cents": 500}'])
    before = run()
    assert before == {"ann": 530, "bob": 100}
    topics.send(second, [b'{"user": "bob", "cents": 7}', b'{"user": "bob", "cents": 0.5}'])
    with pytest.raises(
        DecodeError, match=f"offset 2 of topic '{second}', partition 0, .*'cents': expected bigint"
    ):
        run()
    assert sums() == before
    topics.delete(second)
    with pytest.raises(DataLostError, match=f"the topic '{second}' no longer exists"):
        run()
    assert sums() == before
