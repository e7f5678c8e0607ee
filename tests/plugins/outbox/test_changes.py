"""Rows that a batch has changed leave for a topic: each txid's rows, although later ones overwrite them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txstream import (
    ChangeTopic,
    Count,
    Decode,
    KafkaSource,
    MemorySpout,
    NonTransactionalSpout,
    OpaqueSpout,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Sum,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.core.errors import TopologyError
from txstream.core.transaction import Txid
from txstream.plugins.outbox.changes import change_record
from txstream.plugins.outbox.sending import OutboxFollower, Record, TableOutbox, result_topics
from txstream.state import StateBackend, open_database
from txstream.state.reading import StoredRow
from txstream.testing import TopologyTest

COLUMNS = "name string, amount bigint, op string"


class Broker:
    def __init__(self) -> None:
        self.records: list[tuple[int, bytes | None, Any]] = []

    def send_all(self, records: Sequence[Record], _txid: Txid) -> None:
        for key, value, headers in records:
            row = None if value is None else json.loads(value)
            self.records.append((int(dict(headers)["txstream-txid"]), key, row))

    def close(self) -> None:
        pass


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def database(url: str) -> Iterator[StateBackend]:
    opened = open_database(url)
    yield opened
    opened.close()


def source(*batches: Sequence[tuple[Any, ...]]) -> MemorySpout:
    return MemorySpout(
        COLUMNS,
        {"p": [row for rows in batches for row in rows]},
        max_records_per_partition=max(map(len, batches)),
    )


def builder(spout: Any, state: SqlState) -> TransactionalTopologyBuilder:
    made = TransactionalTopologyBuilder("users", "in", spout)
    bolt: SqlAppendBolt | SqlStateBolt
    if isinstance(state, SqlTable):
        bolt = SqlAppendBolt(state, order_by="amount")
    else:
        bolt = SqlStateBolt(state, n=Sum("amount"))
    made.set_committer_bolt("store", bolt).fields_grouping("in", "name")
    return made


def sent(database: StateBackend, table: str, current: int) -> list[tuple[int, bytes | None, Any]]:
    broker = Broker()
    outbox = TableOutbox(
        "users", table, "topic per-user", [database], lambda: broker, change_record,
        lambda row: row.key["name"],
    )  # fmt: skip
    follower = OutboxFollower("users", [outbox], lambda: Txid(current), dict, lambda _sent: None, lambda: 0.0)
    follower.send_committed()
    return broker.records


COUNTS = SqlState("per_user", key="name string", value="n bigint", changes_to="per-user")
ORDERS = (("a", 1, "u"), ("b", 2, "u")), (("a", 3, "u"), ("c", 4, "u")), (("a", 5, "u"), ("b", 6, "u"))


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_each_txid_has_the_rows_that_it_left(url: str, database: StateBackend, spout: Any) -> None:
    with TopologyTest(builder(spout(source(*ORDERS)), COUNTS), database=url) as test:
        test.commit(3)
    assert sent(database, "per_user_changes", 4) == [
        (txid, name.encode(), {"name": name, "n": n})
        for txid, name, n in [(1, "a", 1), (1, "b", 2), (2, "a", 4), (2, "c", 4), (3, "a", 9), (3, "b", 8)]
    ]


def test_what_an_undone_attempt_has_left_is_not_sent(url: str, database: StateBackend) -> None:
    with TopologyTest(builder(OpaqueSpout(source(*ORDERS)), COUNTS), database=url) as test:
        test.commit(2)
    assert [txid for txid, _, _ in sent(database, "per_user_changes", 2)] == [1, 1]


def test_a_removed_row_is_a_tombstone(url: str, database: StateBackend) -> None:
    table = SqlTable(
        "users", "amount bigint", key="name string", on_conflict="replace", removed_by="op = 'd'",
        changes_to=ChangeTopic("per-user"),
    )  # fmt: skip
    rows = (("a", 1, "u"), ("b", 2, "u")), (("a", 3, "u"), ("b", 0, "d")), (("b", 5, "u"), ("a", 0, "d"))
    with TopologyTest(builder(OpaqueSpout(source(*rows)), table), database=url) as test:
        test.commit(3)
    assert sent(database, "users_changes", 4) == [
        (1, b"a", {"name": "a", "amount": 1}),
        (1, b"b", {"name": "b", "amount": 2}),
        (2, b"a", {"name": "a", "amount": 3}),
        (2, b"b", None),
        (3, b"a", None),
        (3, b"b", {"name": "b", "amount": 5}),
    ]


def test_a_key_of_several_columns_is_json_and_infinity_is_text() -> None:
    row = StoredRow(
        {"txstream_batch": 7, "a": "x", "b": 1}, {"v": float("inf"), "txstream_gone": False}, None, Txid(7)
    )
    assert change_record(row) == (b'{"a":"x","b":1}', b'{"a":"x","b":1,"v":"inf"}')


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TopologyError, match="changes_to, but under a non-transactional spout"):
        builder(NonTransactionalSpout(source(*ORDERS)), COUNTS).build()
    for loop in (KafkaSource("per-user"), KafkaSource(["orders", "per-user"])):
        with pytest.raises(TopologyError, match="per-user"):
            builder(OpaqueSpout(loop), COUNTS).build()
    once = ChangeTopic("per-user", exactly_once=True)
    state = SqlState("t", key="name string", value="n bigint", changes_to=once)
    pattern = KafkaSource(topic_pattern="per-.*", decode=Decode("json", COLUMNS))
    reads = builder(OpaqueSpout(pattern), state).build()
    leading: Any = SimpleNamespace(topology=reads, store=None, context=None)
    with pytest.raises(TopologyError, match="'per-user-txids', which has the markers of what it sends"):
        result_topics(leading)
    with pytest.raises(TopologyError, match="takes the name of a topic, not ''"):
        ChangeTopic("")
    two = builder(OpaqueSpout(source(*ORDERS)), COUNTS)
    other = SqlState("other", key="name string", value="n bigint", changes_to=ChangeTopic("per-user"))
    two.set_committer_bolt("more", SqlStateBolt(other, n=Count())).fields_grouping("in", "name")
    with pytest.raises(TopologyError, match="both have changes_to='per-user'"):
        two.build()
