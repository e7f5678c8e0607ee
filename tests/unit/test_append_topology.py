"""Topologies that append rows: through failures and both commit paths, each record is one row."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.lists import each

from txstream import (
    BasicBolt,
    DeadLetters,
    MemorySpout,
    NonTransactionalSpout,
    OpaqueSpout,
    OutputCollector,
    SqlAppendBolt,
    SqlState,
    SqlStateBolt,
    SqlTable,
    Sum,
    TransactionalSpout,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.core.errors import StateValueError, TopologyError
from txstream.core.fault_points import Point
from txstream.testing import Fail, TopologyTest

SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
FIELDS = "topic string, partition int, offset bigint, customer string, amount bigint"
ORDERS = {
    f"p{partition}": [("orders", partition, offset, f"c{offset % 3}", offset) for offset in range(7)]
    for partition in range(2)
}


def appending(source: MemorySpout, spout: Any, table: SqlTable, tasks: int = 2, **options: Any) -> Any:
    order_by = options.pop("order_by", ())
    builder = TransactionalTopologyBuilder("append", "orders", spout(source), **options)
    store = builder.set_bolt("store", SqlAppendBolt(table, order_by=order_by), tasks)
    store.shuffle_grouping("orders")
    return builder.build()


def stored(path: Path, columns: str, table: str = "orders") -> Sequence[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("commit", ["driver", "executors"])
@pytest.mark.parametrize("name", SPOUTS)
def test_each_record_is_one_row(name: str, commit: str, tmp_path: Path) -> None:
    table = SqlTable("orders", "customer string, amount bigint")
    rows: dict[str, list[Any]] = {**ORDERS, "p1": [*ORDERS["p1"][:3], Fail(times=2), *ORDERS["p1"][3:]]}
    with (
        MemorySpout(FIELDS, rows, max_records_per_partition=3) as source,
        TopologyTest(
            appending(source, SPOUTS[name], table, commit=commit), database=f"sqlite:///{tmp_path / 's.db'}"
        ) as test,
    ):
        test.run()
    found = stored(tmp_path / "s.db", 'topic, "partition", "offset", customer, amount')
    assert found == sorted(row for part in ORDERS.values() for row in part)


@pytest.mark.parametrize(
    ("on_conflict", "expected"),
    [("ignore", [("c0", 0), ("c1", 1), ("c2", 2)]), ("replace", [("c0", 6), ("c1", 4), ("c2", 5)])],
)
@pytest.mark.parametrize("name", SPOUTS)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_a_key_of_ones_own(
    name: str, on_conflict: Any, expected: list[Any], size: int, tmp_path: Path
) -> None:
    """However the batches are cut, the first or the last of a partition's records stays."""
    table = SqlTable("last", "amount bigint", key="customer string", on_conflict=on_conflict)
    with (
        MemorySpout(FIELDS, {"p0": ORDERS["p0"]}, max_records_per_partition=size) as source,
        TopologyTest(
            appending(source, SPOUTS[name], table), database=f"sqlite:///{tmp_path / 's.db'}"
        ) as test,
    ):
        test.run()
    assert stored(tmp_path / "s.db", "customer, amount, 0", "last") == [(*row, 0) for row in expected]


def test_a_second_row_of_a_key_ends_the_run_and_names_both(tmp_path: Path) -> None:
    table = SqlTable("last", "amount bigint", key="customer string")
    with (
        MemorySpout(FIELDS, {"p0": ORDERS["p0"]}, max_records_per_partition=2) as source,
        TopologyTest(
            appending(source, OpaqueSpout, table), database=f"sqlite:///{tmp_path / 's.db'}"
        ) as test,
        pytest.raises(StateValueError, match=r"key customer='c0' is there since txid 1.*txid 2.*amount=3"),
    ):
        test.run()
    assert stored(tmp_path / "s.db", "customer, amount, txid", "last") == [("c0", 0, 1), ("c1", 1, 1)]


class Leaves(BasicBolt):
    """Leaves customers out."""

    output = FIELDS

    def __init__(self, customers: str) -> None:
        self.customers = customers

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["customer"] not in self.customers:
            collector.emit(tup.values)


@pytest.mark.parametrize("name", SPOUTS)
def test_of_a_refused_batch_another_executors_rows_stay_until_the_next_attempt(
    name: str, tmp_path: Path
) -> None:
    table = SqlTable("last", "amount bigint", key="customer string")
    rows = [("orders", 0, offset, customer, offset) for offset, customer in enumerate("zyxwzabc")]
    path = tmp_path / "s.db"

    def built(leaves: str) -> Any:
        builder = TransactionalTopologyBuilder("append", "orders", SPOUTS[name](source), commit="executors")
        builder.set_bolt("leaves", Leaves(leaves)).shuffle_grouping("orders")
        builder.set_bolt("store", SqlAppendBolt(table), 2).shuffle_grouping("leaves")
        return builder.build()

    with (
        MemorySpout(FIELDS, {"p0": rows}, max_records_per_partition=4) as source,
        TopologyTest(built(""), database=f"sqlite:///{path}") as test,
    ):
        with pytest.raises(StateValueError, match=r"key customer='z' is there since txid 1"):
            test.run()
        first = [("w", 3, 1), ("x", 2, 1), ("y", 1, 1), ("z", 0, 1)]
        assert stored(path, "customer, amount, txid", "last") == [("a", 5, 2), ("b", 6, 2), *first]
        ledger = stored(path, "txid, status, 0", "txstream_batch")
        assert ledger == [(1, "committed", 0), (2, "committing", 0)]
        test.restart(built("za"))
        test.run()
    undone = [("b", 6, 2), ("c", 7, 2)]
    kept = undone if name == "opaque" else [("a", 5, 2), *undone]
    assert stored(path, "customer, amount, txid", "last") == [*kept, *first]


@pytest.mark.parametrize("name", SPOUTS)
def test_a_second_row_of_a_key_becomes_a_dead_letter(name: str, tmp_path: Path) -> None:
    """If the first one is in the table already. Two rows of one batch fail only together, and end the run."""
    table = SqlTable("last", "amount bigint", key="customer string")
    database = f"sqlite:///{tmp_path / 's.db'}"
    rows = [("orders", 0, offset, customer, offset) for offset, customer in enumerate("abacdd")]
    with (
        MemorySpout(FIELDS, {"p0": rows}, max_records_per_partition=2) as source,
        TopologyTest(
            appending(source, SPOUTS[name], table, dead_letters=DeadLetters(max_share=1.0)), database=database
        ) as test,
        pytest.raises(StateValueError, match="two rows of one batch have the key customer='d'"),
    ):
        test.run()
    assert stored(tmp_path / "s.db", "customer, amount, txid", "last") == [
        ("a", 0, 1), ("b", 1, 1), ("c", 3, 2)
    ]  # fmt: skip
    dead = stored(tmp_path / "s.db", "place, component, exception", "txstream_dead_letter")
    assert dead == [("p0@2", "store", "StateValueError")]


@each(
    ("table", "options", "expected"),
    [
        (SqlTable("t", "amount bigint", key="id bigint"), {}, "no field 'id' for that column of table 't'$"),
        (SqlTable("t", "amount int"), {}, None),
        (SqlTable("t", "customer bigint"), {}, "'customer' of table 't' is bigint, the field is string"),
        (SqlTable("t", "amount bigint"), {"order_by": "amount"}, "order_by chooses between rows of one key"),
        (
            SqlTable("t", "amount bigint", key="customer string", on_conflict="replace"),
            {"order_by": "at"},
            "needs a field 'at'",
        ),
    ],
)
def test_what_build_refuses(table: SqlTable, options: Any, expected: str | None) -> None:
    with MemorySpout(FIELDS, ORDERS) as source:
        if expected is None:
            assert appending(source, OpaqueSpout, table, **options).states[0][0].state is table
            return
        with pytest.raises(TopologyError, match=expected):
            appending(source, OpaqueSpout, table, **options)


def test_a_missing_place_says_how_to_get_it() -> None:
    with (
        MemorySpout("customer string", {"p": [("a",)]}) as source,
        pytest.raises(TopologyError, match=r"no field 'topic'.*kafka_columns=.*key="),
    ):
        appending(source, OpaqueSpout, SqlTable("t", "customer string"))


def test_what_orders_rows_of_one_key_must_be_known() -> None:
    table = SqlTable("t", "n bigint", key="customer string", on_conflict="replace")
    with (
        MemorySpout("customer string, n bigint", {"p": [("a", 1)]}) as source,
        pytest.raises(TopologyError, match="say by order_by= which fields order the rows of one key"),
    ):
        appending(source, OpaqueSpout, table)


def test_a_bolt_takes_its_own_kind_of_table() -> None:
    with pytest.raises(TopologyError, match=r"SqlStateBolt merges rows.*write SqlAppendBolt"):
        SqlStateBolt(SqlTable("t", "n bigint"), n=Sum("n"))
    with pytest.raises(TopologyError, match="SqlAppendBolt takes a SqlTable, not SqlState"):
        SqlAppendBolt(SqlState("t", key="k string", value="n bigint"))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), None])
def test_what_no_key_can_be(value: float | None) -> None:
    table = SqlTable("t", "n bigint", key="k double")
    with (
        MemorySpout("k double, n bigint", {"p": [(1.0, 1), (value, 2)]}) as source,
        TopologyTest(appending(source, OpaqueSpout, table)) as test,
        pytest.raises(StateValueError, match=r"column 'k' of table 't' got (nan|a null).*, in .*n=2"),
    ):
        test.run()


def test_non_transactional_rows_come_twice(tmp_path: Path) -> None:
    """As the counters of that spout do: what was committed before a crash is written again."""
    table = SqlTable("orders", "customer string, amount bigint")
    with (
        MemorySpout(FIELDS, {"p0": ORDERS["p0"]}, max_records_per_partition=3) as source,
        TopologyTest(
            appending(source, NonTransactionalSpout, table), database=f"sqlite:///{tmp_path / 's.db'}"
        ) as test,
    ):
        test.crash(at=Point.AFTER_COMMIT, txid=2)
        test.restart()
        test.run()
    assert [row[2] for row in stored(tmp_path / "s.db", 'topic, "partition", "offset"')] == [
        0, 1, 2, 3, 3, 4, 4, 5, 5, 6
    ]  # fmt: skip
