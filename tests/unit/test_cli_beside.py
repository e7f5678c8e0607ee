"""`run --as ID`: nothing of the topology that runs beside touches what is the original's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from txstream import (
    Count,
    DeadLetters,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    TransactionalTopologyBuilder,
)
from txstream.api.bolts import StateCommitter
from txstream.api.topology import Topology
from txstream.bolts.lookup import LookupBolt
from txstream.cli.beside import beside
from txstream.cli.fingerprints import fingerprints
from txstream.core.errors import UsageError
from txstream.examples import accounts
from txstream.plugins.outbox.sink import KafkaSinkBolt
from txstream.spouts.kafka import Decode, KafkaSource


def builder(field: str = "user") -> TransactionalTopologyBuilder:
    decode = Decode("json", "user string, city string")
    source = KafkaSource(["users", "visits"], decode=decode, publish_group="visits")
    made = TransactionalTopologyBuilder(
        "visits", "records", OpaqueSpout(source), dead_letters=DeadLetters(topic="dead")
    )
    users = SqlTable(
        "users", "city string", key="user string", on_conflict="replace", removed_by="city is null"
    )
    made.set_bolt("users", SqlAppendBolt(users, order_by="user")).fields_grouping("records", "user")
    looked_up = LookupBolt("users", on="user", columns={"lives_in": "city"})
    made.set_bolt("where", looked_up).fields_grouping("records", "user")
    visits = SqlState("visits", key="user string", value="n bigint", changes_to="visits-per-user")
    made.set_bolt("store", SqlStateBolt(visits, n=Count(field))).fields_grouping("where", "user")
    return made


def tables(topology: Topology) -> list[str]:
    return sorted([bolt.state.stored_table for bolt, _ in topology.states])


def test_each_table_is_its_own_and_nobody_is_told() -> None:
    original = builder().build()
    own = beside(original, "trial")
    assert own.id == "trial"
    assert tables(own) == ["users__trial__rows", "visits__trial"]
    assert own.table_readers["where"].table.state.table == "users__trial"
    assert [one.instance.state.table for one in own.bolts if isinstance(one.instance, StateCommitter)] == [
        "users__trial", "visits__trial",
    ]  # fmt: skip
    assert (own.spout.source.publish_group, own.dead_letters) == (None, DeadLetters())
    assert {bolt.state.changes_to for bolt, _ in own.states} == {None}
    assert tables(original) == ["users__rows", "visits"], "the original is as it was"
    assert original.spout.source.publish_group == "visits"
    assert [use.state.table for use in beside(accounts.topology(), "b").map_states] == ["accounts__b"]


def test_a_bolt_whose_rows_leave_for_another_place_is_refused() -> None:
    made = builder()
    made.set_bolt("sink", KafkaSinkBolt("greetings", key="user")).shuffle_grouping("where")
    with pytest.raises(UsageError, match="component 'sink' writes to greetings, which would get everything"):
        beside(made.build(), "trial")


def test_a_fingerprint_is_of_what_a_component_does_and_not_of_its_slots() -> None:
    first, again, other = (fingerprints(builder(field).build()) for field in ("user", "user", "city"))
    assert first == again
    assert {name for name in first if first[name] != other[name]} == {"store"}
    topology = builder().build()
    wider = replace(topology, components=tuple(replace(one, parallelism=4) for one in topology.components))
    assert fingerprints(wider) == first
