"""What customers have ordered in all, whose changes go to a topic, by a driver that dies at one step."""

from __future__ import annotations

import signal
from typing import Literal

from support.sink_kills import die_at
from txstream import (
    ChangeTopic,
    Count,
    Decode,
    KafkaSource,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
)
from txstream.examples.word_count import SPOUTS
from txstream.spouts.kafka import transactional_topic


def topology(
    topic: str,
    semantics: Literal["opaque", "transactional"] = "opaque",
    driver_commit_rows: int | None = None,
    exactly_once: bool = False,
    dies: str = "",
    how: str = "SIGKILL",
) -> Topology:
    die_at(dies, signal.Signals[how])
    transactional_topic.TRANSACTION_TIMEOUT_SECONDS = 2.0
    source = KafkaSource(
        topic, decode=Decode("json", "customer string, amount bigint"), max_records_per_partition=20
    )
    builder = TransactionalTopologyBuilder(
        topic, "orders", SPOUTS[semantics](source), driver_commit_rows=driver_commit_rows
    )
    state = SqlState(
        topic,
        key="customer string",
        value="orders bigint, amount bigint",
        changes_to=ChangeTopic(f"{topic}-changes", exactly_once=exactly_once),
    )
    bolt = SqlStateBolt(state, orders=Count(), amount=Sum("amount"))
    builder.set_committer_bolt("store", bolt, parallelism=2).fields_grouping("orders", "customer")
    return builder.build()
