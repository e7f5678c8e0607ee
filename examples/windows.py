"""Clicks by hour: how many of each page, and which hours are complete.

txstream run txstream.examples.windows:topology --until caught-up

The topic's values are JSON: {"page": "/cart", "at": "2026-01-31T12:00:00Z"}. An hour closes once every
partition with unread records has come `grace` beyond its end. A click that comes later is kept as a dead
letter, or counted after all with `-p late=amend`.
"""

from __future__ import annotations

from typing import Any, Literal

from txstream import (
    Count,
    DeadLetters,
    Decode,
    KafkaSource,
    Topology,
    TransactionalTopologyBuilder,
    Tumbling,
    WindowBolt,
    WindowState,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "page string, at timestamp"
PLACE = ("topic", "partition", "offset")


def graph(
    spout: SourceSpout[Any],
    size: str = "1h",
    grace: str = "10m",
    zone: str = "UTC",
    late: Literal["dead-letter", "amend"] = "dead-letter",
    keep: str | None = None,
    driver_commit_rows: int | None = None,
) -> Topology:
    """Return the topology over any source of clicks that gives the place of each."""
    hours = WindowState(
        "clicks_by_hour",
        key="page string",
        value="n bigint",
        window=Tumbling(size, time="at", grace=grace, zone=zone),
        late=late,
        keep=keep,
    )
    builder = TransactionalTopologyBuilder(
        "clicks", "clicks", spout, dead_letters=DeadLetters(), driver_commit_rows=driver_commit_rows
    )
    builder.set_bolt("count", WindowBolt(hours, n=Count()), parallelism=2).fields_grouping("clicks", "page")
    return builder.build()


def topology(
    topic: str = "clicks",
    semantics: Literal["opaque", "transactional"] = "opaque",
    size: str = "1h",
    grace: str = "10m",
    zone: str = "UTC",
    late: Literal["dead-letter", "amend"] = "dead-letter",
    keep: str | None = None,
    max_records_per_partition: int = 100_000,
    driver_commit_rows: int | None = None,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        kafka_columns=PLACE,
        max_records_per_partition=max_records_per_partition,
    )
    return graph(SPOUTS[semantics](source), size, grace, zone, late, keep, driver_commit_rows)
