"""Histories of topologies that append rows: each record is one row, and without the restore they show it."""

from __future__ import annotations

import pytest

from guards.patch import Patch, in_force
from guards.sources import MERGING
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlTable
from txstream.api.topology import Topology
from txstream.bolts.append import SqlAppendBolt
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.schedules import Schedule, outcome
from txstream.plugins.proof.simulation.world import truth_of
from txstream.spouts.memory import MemorySpout
from txstream.testing import simulate

pytestmark = pytest.mark.usefixtures("deterministic")

FIELDS = "topic string, partition int, offset bigint, customer string, amount bigint, gone boolean"
# A customer's records are in one partition, as those of a key are in Kafka, so that their order is known.
ROWS = {
    f"p{p}": [("orders", p, at, f"{p}{at % 2}", 10 * p + at, at in (1, 2)) for at in range(6)]
    for p in range(2)
}
SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
TABLES = {
    "fail": SqlTable("orders", "customer string, amount bigint"),
    "ignore": SqlTable("firsts", "amount bigint", key="customer string", on_conflict="ignore"),
    "replace": SqlTable("lasts", "amount bigint", key="customer string", on_conflict="replace"),
    "removed": SqlTable(
        "there", "amount bigint", key="customer string", on_conflict="replace", removed_by="gone"
    ),
    "in sequence": SqlTable(
        "newest",
        "amount bigint",
        key="customer string",
        on_conflict="replace",
        removed_by="gone",
        sequence_by="amount",
    ),
}
EVERY_TABLE = pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)


def appending(semantics: str, table: SqlTable) -> Topology:
    builder = TransactionalTopologyBuilder("t", "rows", SPOUTS[semantics](MemorySpout(FIELDS, ROWS)))
    builder.set_bolt("store", SqlAppendBolt(table), 2).shuffle_grouping("rows")
    return builder.build()


@EVERY_TABLE
@pytest.mark.parametrize("semantics", SPOUTS)
def test_rows_are_exact(semantics: str, table: SqlTable) -> None:
    report = simulate(appending(semantics, table), schedules=8, on_sqlite=0.3)
    assert report.exact
    assert report.on_sqlite
    assert report.faults["crash"]


MUTANTS = {
    "no-restore": Patch(MERGING, "            if written != txid:\n", "            if True:\n"),
    "created-rows-stay": Patch(
        MERGING,
        "            if prev is None:\n                return None\n            before",
        "            if prev is None:\n                return stored\n            before",
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mutant", "table"),
    [
        ("no-restore", "fail"),
        ("no-restore", "ignore"),
        ("no-restore", "replace"),
        ("created-rows-stay", "fail"),
    ],
)
def test_a_mistake_in_the_restore_is_found(mutant: str, table: str) -> None:
    program = Program(appending("opaque", TABLES[table]))
    expected = truth_of(program)
    with in_force([MUTANTS[mutant]]):
        found = (outcome(Schedule(seed).world(program, expected)) for seed in range(400))
        error = next((error for error in found if error is not None), None)
    assert error is not None
    assert f"table '{TABLES[table].table}'" in str(error)
