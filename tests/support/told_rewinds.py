"""Words that leave in every way, by a driver that dies at one step: counts whose changes go to a topic, a
stream in a topic and in a Delta table."""

from __future__ import annotations

from deltalake import DeltaTable

from support import sink_kills
from txstream import (
    ChangeTopic,
    Count,
    Decode,
    DeltaTableBolt,
    KafkaSinkBolt,
    KafkaSource,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalTopologyBuilder,
)

DIES: dict[str, tuple[object, str, bool]] = {
    **sink_kills.DIES,
    "restoring": (DeltaTable, "restore", False),
    "restored": (DeltaTable, "restore", True),
}


def topology(topic: str, lake: str, exactly_once: bool = False, dies: str = "") -> Topology:
    sink_kills.die_at(dies, steps=DIES)
    source = KafkaSource(
        topic, decode=Decode("json", "word string, number bigint"), max_records_per_partition=20
    )
    builder = TransactionalTopologyBuilder(topic, "words", OpaqueSpout(source))
    goal = ChangeTopic(f"{topic}-counts", exactly_once=exactly_once)
    counts = SqlState(f"{topic}_counts", key="word string", value="n bigint", changes_to=goal)
    builder.set_committer_bolt("count", SqlStateBolt(counts, n=Count())).fields_grouping("words", "word")
    sink = KafkaSinkBolt(f"{topic}-words", key="word", value="number", exactly_once=exactly_once)
    builder.set_bolt("send", sink).fields_grouping("words", "word")
    files = DeltaTableBolt(lake, ["word", "number"], table=f"{topic}_files")
    builder.set_bolt("lake", files).local_or_shuffle_grouping("words")
    return builder.build()
