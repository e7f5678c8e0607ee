"""What the commands say of tables of rows: `state`, `fsck`, `replay`, `why` and `compare`."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.append_types import check_every_type

from txstream import inspect
from txstream.api.bolts import BasicBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlTable
from txstream.api.topology import Topology
from txstream.bolts.append import SqlAppendBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.fault_points import Point
from txstream.inspect.json_documents import flat_row
from txstream.inspect.records import FsckReport, Severity
from txstream.plugins.audit.fsck_run import fsck_in
from txstream.plugins.compare.report import columns_of, wrong_rows
from txstream.plugins.compare.run import Outcome, _read
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import StateDatabase, open_database
from txstream.testing import TopologyTest

FIELDS = "topic string, partition int, offset bigint, customer string, amount bigint"
ROWS = {
    f"p{p}": [("orders", p, at, f"{p}{at % 2}", None if at == 3 else 10 * p + at) for at in range(6)]
    for p in range(2)
}
FENCED = pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
ORDERS = SqlTable("orders", "customer string, amount bigint")


def own(on_conflict: Any) -> SqlTable:
    return SqlTable("orders", "amount bigint", key="customer string", on_conflict=on_conflict)


class Kept(BasicBolt):
    output = FIELDS

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit(tup.values)


class Doubled(Kept):
    """Other code: it changes an amount and drops an order."""

    def execute(self, tup: Any, collector: Any) -> None:
        values = list(tup.values)
        if tup["offset"] == 1:
            return
        if tup["offset"] == 2:
            values[4] += 1000
        collector.emit(tuple(values))


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout(FIELDS, ROWS, max_records_per_partition=2) as made:
        yield made


def topology(source: MemorySpout, table: SqlTable, spout: Any = OpaqueSpout, bolt: Any = Kept) -> Topology:
    builder = TransactionalTopologyBuilder("append", "orders", spout(source))
    builder.set_bolt("kept", bolt()).local_or_shuffle_grouping("orders")
    builder.set_bolt("store", SqlAppendBolt(table)).local_or_shuffle_grouping("kept")
    return builder.build()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(database=f"sqlite:///{tmp_path / 'state.db'}")


def run(made: Topology, settings: Settings) -> Settings:
    with TopologyTest(made, database=settings.database) as test:
        test.run()
    return settings


@FENCED
def test_diff_says_which_rows_a_batch_created(source: MemorySpout, settings: Settings, spout: Any) -> None:
    run(topology(source, ORDERS, spout), settings)
    found = inspect.diff("append", "orders", 2, settings)
    rows = [(*list(row.key.values())[1:], (row.after or {})["amount"]) for row in found.created]
    assert rows == [
        (0, 2, 2), (0, 3, None), (1, 2, 12), (1, 3, None)
    ]  # fmt: skip
    assert (found.changed, found.unchanged, found.carrying, found.overwritten) == ((), 0, (), 0)
    assert found.notes == ()


def test_diff_says_what_a_batch_replaced(source: MemorySpout, settings: Settings) -> None:
    run(topology(source, own("replace")), settings)
    found = inspect.diff("append", "orders", 3, settings)
    assert [(row.key["customer"], row.before, row.after) for row in found.changed] == [
        ("00", {"amount": 2}, {"amount": 4}),
        ("01", {"amount": None}, {"amount": 5}),
        ("10", {"amount": 12}, {"amount": 14}),
        ("11", {"amount": None}, {"amount": 15}),
    ]


def test_diff_says_that_older_rows_were_kept(source: MemorySpout, settings: Settings) -> None:
    run(topology(source, own("ignore")), settings)
    found = inspect.diff("append", "orders", 2, settings)
    assert (found.created, found.overwritten) == ((), 4)
    assert "an older row of their key was kept" in found.notes[0]


@FENCED
def test_a_row_is_shown_with_the_columns_that_it_has(
    source: MemorySpout, settings: Settings, spout: Any
) -> None:
    run(topology(source, ORDERS, spout), settings)
    found = inspect.get("append", "orders", ["orders", 1, 2], settings)
    assert [flat_row(row, found.semantics, has_prev=found.has_prev) for row in found.rows] == [
        {"topic": "orders", "partition": 1, "offset": 2, "customer": "10", "amount": 12, "txid": 2}
    ]


@FENCED
@pytest.mark.parametrize("table", [ORDERS, own("ignore"), own("replace")], ids=["fail", "ignore", "replace"])
def test_a_replay_says_the_same(source: MemorySpout, settings: Settings, spout: Any, table: SqlTable) -> None:
    made = topology(source, table, spout)
    run(made, settings)
    found = inspect.replay(made, 1, settings, last=3)
    assert [one.same for one in found.tables] == [True] * 3
    assert found.same


@FENCED
def test_a_replay_with_other_code_says_which_rows_differ(
    source: MemorySpout, settings: Settings, spout: Any
) -> None:
    run(topology(source, ORDERS, spout), settings)
    found = inspect.replay(topology(source, ORDERS, spout, Doubled), 1, settings, last=2)
    first, second = found.tables
    assert (first.same, second.same) == (False, False)
    assert [(c.key["offset"], c.written, c.replayed) for c in first.changes] == [
        (1, {"customer": "01", "amount": 1}, None),
        (1, {"customer": "11", "amount": 11}, None),
    ]
    assert [(c.key["offset"], c.written, c.replayed) for c in second.changes] == [
        (2, {"customer": "00", "amount": 2}, {"customer": "00", "amount": 1002}),
        (2, {"customer": "10", "amount": 12}, {"customer": "10", "amount": 1012}),
    ]
    assert (first.untold, second.untold) == (0, 0)


@FENCED
@pytest.mark.parametrize(
    ("table", "key", "place"),
    [
        (ORDERS, ["orders", 1, 3], ("p1", 3)),
        (own("ignore"), ["11"], ("p1", 1)),
        (own("replace"), ["11"], ("p1", 5)),
    ],
    ids=["fail", "ignore", "replace"],
)
def test_why_names_the_record_of_a_row(
    source: MemorySpout, settings: Settings, spout: Any, table: SqlTable, key: list[Any], place: Any
) -> None:
    made = topology(source, table, spout)
    run(made, settings)
    found = inspect.why(made, "orders", key, settings)
    assert [(part.partition, part.offset) for part in found.parts] == [place]
    assert found.is_complete


def checked(made: Topology, settings: Settings, *damage: str) -> FsckReport:
    """Run the topology, damage its table, and let fsck look at it."""
    with TopologyTest(made, database=settings.database) as test:
        test.run()
        test.crash()
        connection = sqlite3.connect(str(settings.database).removeprefix("sqlite:///"))
        for statement in damage:
            connection.execute(statement)
        connection.commit()
        connection.close()

        def store(codec: Any = None) -> MemoryProgress:
            kept = codec or MetaCodec(made.spout.source.meta_type)
            return MemoryProgress(test._control._world.tree, made.id, kept)

        with contextlib.closing(StateDatabase(str(settings.database))) as database:
            return fsck_in(made.id, store, [database], Settings(), topology=made)


@FENCED
@pytest.mark.parametrize("table", [ORDERS, own("ignore"), own("replace")], ids=["fail", "ignore", "replace"])
def test_fsck_finds_nothing_when_all_is_well(
    source: MemorySpout, settings: Settings, spout: Any, table: SqlTable
) -> None:
    assert checked(topology(source, table, spout), settings).findings == ()


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("DELETE FROM orders WHERE txid = 3 AND amount = 5", "rows-missing"),
        ("UPDATE orders SET txid = 77 WHERE amount = 5", "row-too-new"),
    ],
)
def test_fsck_finds_what_somebody_has_changed(
    source: MemorySpout, settings: Settings, damage: str, expected: str
) -> None:
    report = checked(topology(source, ORDERS), settings, damage)
    assert not report.is_clean
    assert expected in {finding.code for finding in report.findings}


DAMAGE = {
    "deleted": "DELETE FROM orders WHERE txid = 1 AND amount = 0",
    "changed": "UPDATE orders SET amount = 9 WHERE txid = 1 AND amount = 0",
    "made null": "UPDATE orders SET amount = NULL WHERE txid = 2 AND amount = 2",
    "another key": "UPDATE orders SET partition = 7 WHERE txid = 1 AND amount = 0",
    "moved": "UPDATE orders SET txid = 2 WHERE txid = 1 AND amount = 0",
    "added": "INSERT INTO orders VALUES ('orders', 9, 9, 'x', 9, 1)",
    "swapped": "UPDATE orders SET amount = 1 - amount WHERE txid = 1 AND amount IN (0, 1)",
    "older": "UPDATE orders SET txid = 1 WHERE txid = 3 AND amount = 4",
}


@FENCED
@pytest.mark.parametrize("damage", DAMAGE)
def test_fsck_compares_rows_with_what_each_batch_wrote(
    source: MemorySpout, settings: Settings, spout: Any, damage: str
) -> None:
    report = checked(topology(source, ORDERS, spout), settings, DAMAGE[damage])
    (finding,) = [one for one in report.findings if one.code == "rows-differ"]
    assert (finding.severity, finding.where.partition(" in ")[0]) == (Severity.ERROR, "table orders")
    assert f"txid {2 if damage == 'made null' else 1}" in finding.what
    assert "3 batches compared with the rows of orders" in report.checked[1]


def test_fsck_compares_what_is_kept_of_the_ledger(source: MemorySpout, settings: Settings) -> None:
    gone = ("DELETE FROM txstream_batch WHERE txid = 1", DAMAGE["deleted"])
    report = checked(topology(source, ORDERS), settings, *gone)
    assert report.findings == ()
    assert "2 batches compared with the rows of orders" in report.checked[1]


@FENCED
def test_of_a_table_that_keeps_older_rows_a_batch_may_have_fewer_rows_and_not_more(
    source: MemorySpout, settings: Settings, spout: Any
) -> None:
    added = "INSERT INTO orders (customer, amount, txid) VALUES ('x', 1, 1), ('y', 2, 1), ('z', 3, 1)"
    report = checked(topology(source, own("ignore"), spout), settings, added)
    assert [one.code for one in report.findings] == ["rows-differ"]


def test_fsck_reads_every_type_as_it_was_written(sqlite_url: str) -> None:
    check_every_type(sqlite_url)


def test_compare_counts_a_row_that_came_twice(
    source: MemorySpout, settings: Settings, tmp_path: Path
) -> None:
    made = topology(source, ORDERS, NonTransactionalSpout)
    with TopologyTest(made, database=settings.database) as test:
        test.crash(at=Point.AFTER_COMMIT, txid=2)
        test.restart()
        test.run()
    connection = sqlite3.connect(tmp_path / "state.db")
    (count,) = connection.execute("SELECT count(*) FROM orders").fetchone()
    connection.close()
    assert count == 16, "the four rows of txid 2 came twice"
    outcome = Outcome(None, None)  # type: ignore[arg-type]  # only its tables are looked at
    database = open_database(str(settings.database))
    _read(database, made, "", outcome)
    database.close()
    truth = {"orders": {row[:3]: row[3:] for rows in ROWS.values() for row in rows}}
    assert wrong_rows(truth, outcome.tables, columns_of(made)) == 4
