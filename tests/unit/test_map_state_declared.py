"""What committers may declare as states of their own, and what `build` says about the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.inmemory import MemoryLog, MemorySource
from support.lists import each

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, Committer
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.declarer import BoltDeclarer
from txstream.api.reducers import Sum
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState
from txstream.api.topology import StateUse, Topology
from txstream.api.tuples import Tuple
from txstream.bolts.aggregate import CountBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.cli.batch_stages import plan_batch, plan_document, plan_text
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics

ACCOUNTS = SqlState("accounts", key="account string", value="balance bigint")
FIELDS = "account string, branch int, amount bigint"


class Keeper(BatchBolt, Committer):
    """Declares the states that it is given."""

    output = "account string, amount bigint"

    def __init__(self, **states: Any) -> None:
        self.states = states

    def execute(self, tup: Tuple) -> None: ...


class Plain(BatchBolt):
    """Not a committer."""

    def __init__(self, **states: Any) -> None:
        self.states = states

    def execute(self, tup: Tuple) -> None: ...


class InClass(BatchBolt, Committer):
    states = {"accounts": ACCOUNTS}  # noqa: RUF012 - as a user would write it

    def execute(self, tup: Tuple) -> None: ...


def builder(spout: Any = OpaqueSpout, fields: str = FIELDS) -> TransactionalTopologyBuilder:
    return TransactionalTopologyBuilder("bank", "lines", spout(MemorySource(MemoryLog({}), fields)), 2)


def built(
    bolt: Bolt,
    parallelism: int = 1,
    group: Callable[[BoltDeclarer], object] = lambda given: given.global_grouping("lines"),
    **options: Any,
) -> Topology:
    topology = builder(**options)
    group(topology.set_bolt("keep", bolt, parallelism))
    if not isinstance(bolt, Committer):
        store = SqlStateBolt(SqlState("sums", key="account string", value="amount bigint"))
        topology.set_bolt("store", store).global_grouping("lines")
    return topology.build()


def test_states_are_found_in_the_class_and_in_the_constructor() -> None:
    uses = built(InClass()).map_states
    assert uses == (StateUse("keep", "accounts", ACCOUNTS, Semantics.OPAQUE),)
    other = SqlState("other", key="account string", value="n bigint")
    found = [(use.name, use.state.table) for use in built(Keeper(a=ACCOUNTS, b=other)).map_states]
    assert found == [("a", "accounts"), ("b", "other")]


@each(
    ("spout", "declared", "expected"),
    [
        (OpaqueSpout, None, "opaque"),
        (TransactionalSpout, None, "opaque"),
        (TransactionalSpout, "transactional", "transactional"),
        (NonTransactionalSpout, None, "non-transactional"),
    ],
)
def test_a_state_is_opaque_where_it_may_be(spout: Any, declared: Any, expected: str) -> None:
    state = SqlState("accounts", key="account string", value="n bigint", semantics=declared)
    assert [use.semantics for use in built(Keeper(a=state), spout=spout).map_states] == [expected]


def test_an_illegal_pair_of_semantics_is_refused_as_for_any_state() -> None:
    state = SqlState("accounts", key="account string", value="n bigint", semantics=Semantics.TRANSACTIONAL)
    with pytest.raises(TopologyError, match="the spout is opaque and cannot fill transactional state"):
        built(Keeper(a=state))


def test_a_bolt_below_a_committer_may_have_states() -> None:
    topology = builder()
    topology.set_bolt("commit", Keeper()).global_grouping("lines")
    topology.set_bolt("below", Plain(a=ACCOUNTS), 2).fields_grouping("commit", "account")
    assert [use.component for use in topology.build().map_states] == ["below"]


def test_set_committer_bolt_makes_one() -> None:
    topology = builder()
    topology.set_committer_bolt("keep", Plain(a=ACCOUNTS)).global_grouping("lines")
    assert len(topology.build().map_states) == 1


def test_a_bolt_that_runs_before_the_commit_is_refused() -> None:
    with pytest.raises(TopologyError, match="declares state 'a', but it runs before its batch commits"):
        built(Plain(a=ACCOUNTS))


class Basic(BasicBolt):
    states = {"a": ACCOUNTS}  # noqa: RUF012 - as a user would write it

    def execute(self, tup: Tuple, collector: Any) -> None: ...


class Merged(CountBolt, Committer):
    states = {"a": ACCOUNTS}  # noqa: RUF012 - as a user would write it


class Stored(SqlStateBolt):
    states = {"a": ACCOUNTS}  # noqa: RUF012 - as a user would write it


@each(
    ("bolt", "message"),
    [
        (Basic(), "Basic is no BatchBolt"),
        (Merged("account"), "a Merged runs wherever its tuples are"),
        (
            Stored(SqlState("sums", key="account string", value="n bigint"), n=Sum("amount")),
            "a Stored runs wherever its tuples are",
        ),
    ],
)
def test_other_bolts_are_refused(bolt: Bolt, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        built(bolt)


@each("states", [["accounts"], {"a": "accounts"}, {1: ACCOUNTS}, None])
def test_what_is_no_mapping_of_names_to_states_is_refused(states: Any) -> None:
    bolt = Keeper()
    bolt.states = states
    with pytest.raises(TopologyError, match=r"'keep': its attribute states is .* it must be a mapping"):
        built(bolt)


def test_two_uses_of_one_table_are_refused() -> None:
    again = SqlState("ACCOUNTS", key="account string", value="n bigint")
    with pytest.raises(TopologyError, match=r"'keep' \(state 'a'\) and 'keep' \(state 'b'\) both write"):
        built(Keeper(a=ACCOUNTS, b=again))
    topology = builder()
    topology.set_bolt("keep", Keeper(a=ACCOUNTS)).global_grouping("lines")
    store = SqlStateBolt(ACCOUNTS, balance=Sum("amount"))
    topology.set_bolt("store", store).global_grouping("lines")
    with pytest.raises(TopologyError, match=r"'keep' \(state 'a'\) and 'store' both write table 'accounts'"):
        topology.build()


PAIRS = SqlState("pairs", key="account string, branch int", value="n bigint")


@each(
    "group",
    [
        lambda given: given.fields_grouping("lines", "account"),
        lambda given: given.fields_grouping("lines", "branch"),
        lambda given: given.fields_grouping("lines", "branch", "account"),
        lambda given: given.global_grouping("lines"),
    ],
)
def test_several_tasks_may_be_grouped_by_a_part_of_the_key(group: Callable[[BoltDeclarer], object]) -> None:
    assert built(Keeper(a=PAIRS), 3, group)


@each(
    "group",
    [
        lambda given: given.fields_grouping("lines", "account", "branch"),
        lambda given: given.fields_grouping("lines", "amount"),
        lambda given: given.shuffle_grouping("lines"),
        lambda given: given.local_or_shuffle_grouping("lines"),
        lambda given: given.all_grouping("lines"),
    ],
)
def test_several_tasks_that_share_keys_are_refused(group: Callable[[BoltDeclarer], object]) -> None:
    with pytest.raises(TopologyError, match="two tasks with the same key would lose updates"):
        built(Keeper(a=ACCOUNTS), 2, group)
    assert built(Keeper(a=ACCOUNTS), 1, group)


def test_the_states_of_a_bolt_with_several_tasks_share_its_grouping() -> None:
    other = SqlState("branches", key="branch int", value="n bigint")
    with pytest.raises(TopologyError, match="by the key of table 'branches'"):
        built(Keeper(a=PAIRS, b=other), 2, lambda given: given.fields_grouping("lines", "account"))


def test_a_field_of_another_type_than_the_key_column_is_refused() -> None:
    wide = SqlState("pairs", key="account string, branch bigint", value="n bigint")
    with pytest.raises(TopologyError, match=r"by field 'branch' \(int\), but that key column .* is bigint"):
        built(Keeper(a=wide), 2, lambda given: given.fields_grouping("lines", "branch"))


@each("rows", [-1, 1.5, True, "many"])
def test_a_cache_has_a_whole_number_of_rows(rows: Any) -> None:
    with pytest.raises(TopologyError, match=r"cache_rows is .*; it must be a whole number"):
        SqlState("accounts", key="account string", value="n bigint", cache_rows=rows)


@pytest.mark.parametrize(
    ("spout", "semantics"), [(TransactionalSpout, "transactional"), (NonTransactionalSpout, None)]
)
def test_only_an_opaque_table_has_a_cache(spout: Any, semantics: Any) -> None:
    state = SqlState("accounts", key="account string", value="n bigint", cache_rows=10, semantics=semantics)
    with pytest.raises(TopologyError, match="cannot have cache_rows; only an opaque row keeps"):
        built(Keeper(a=state), spout=spout)
    assert built(Keeper(a=SqlState("accounts", key="account string", value="n bigint", cache_rows=10)))


def test_a_state_that_the_database_merges_has_no_cache() -> None:
    topology = builder()
    state = SqlState("accounts", key="account string", value="amount bigint", cache_rows=10)
    topology.set_bolt("store", SqlStateBolt(state)).global_grouping("lines")
    with pytest.raises(TopologyError, match="a SqlStateBolt reads nothing that could be kept"):
        topology.build()


def test_states_are_described() -> None:
    topology = built(Keeper(sums=PAIRS, accounts=ACCOUNTS))
    assert topology.describe().splitlines()[-2:] == [
        "    stores  pairs     n bigint for each account string, branch int (opaque table, state sums)",
        "    stores  accounts  balance bigint for each account string (opaque table, state accounts)",
    ]
    document = topology.to_document()["components"][1]
    assert (document["kind"], document["state"]) == ("bolt", None)
    assert document["states"] == [
        {
            "name": "sums",
            "table": "pairs",
            "semantics": "opaque",
            "key": [{"name": "account", "type": "string"}, {"name": "branch", "type": "int"}],
            "value": [{"name": "n", "type": "bigint"}],
            "cache_rows": 0,
        },
        {
            "name": "accounts",
            "table": "accounts",
            "semantics": "opaque",
            "key": [{"name": "account", "type": "string"}],
            "value": [{"name": "balance", "type": "bigint"}],
            "cache_rows": 0,
        },
    ]


def test_the_plan_of_a_batch_tells_what_tasks_write_themselves() -> None:
    topology = builder()
    topology.set_bolt("keep", Keeper(a=ACCOUNTS)).global_grouping("lines")
    store = SqlStateBolt(SqlState("sums", key="account string", value="amount bigint"))
    topology.set_bolt("store", store).fields_grouping("keep", "account")
    plan = plan_batch(topology.build())
    assert plan_text(plan).splitlines()[-3:] == [
        "stage 2 runs when the batch commits, in the order of txids",
        "there, tasks write what bolts keep: keep to table accounts",
        "after that, the driver writes deltas: store to table sums",
    ]
    document = plan_document(plan)
    assert document["map_states"] == [{"component": "keep", "table": "accounts"}]
    assert document["states"] == [{"component": "store", "table": "sums"}]
