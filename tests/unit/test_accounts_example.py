"""The ledger example: movements are booked or refused, exact after failures, with either spout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.accounts import MOVEMENTS, books

from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.core.fault_points import Point
from txstream.examples.accounts import FIELDS, Ledger, graph, topology
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest, run_bolt


@pytest.fixture
def source() -> Iterator[MemorySpout]:
    with MemorySpout(FIELDS, {"p0": MOVEMENTS}, max_records_per_partition=15) as spout:
        yield spout


def test_a_withdrawal_is_booked_when_the_account_covers_it() -> None:
    rows = [("anna", -5), ("otto", 3), ("anna", -6), ("otto", -4)]
    run = run_bolt(Ledger(), rows, FIELDS, states={"accounts": {"anna": (10, 4), "zoe": (1, 1)}})
    assert run.states["accounts"] == {"anna": (5, 5), "otto": (3, 1), "zoe": (1, 1)}
    assert run.written["accounts"] == {"anna": (5, 5), "otto": (3, 1)}
    assert run.emitted == [("anna", -6), ("otto", -4)]


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_the_books_are_right_whatever_fails(source: MemorySpout, spout: Any) -> None:
    accounts, refused = books(MOVEMENTS)
    assert len(refused) > 2, "the movements are no test"
    with TopologyTest(graph(spout(source)), width=2) as test:
        test.fail(1, at=Point.INSIDE_COMMIT)
        test.commit(1)
        test.crash(at=Point.INSIDE_COMMIT, txid=2)
        test.restart()
        test.commit(2)
        test.fail(3, at=Point.BEFORE_COMMIT)
        test.run()
        assert (test.table("accounts"), test.table("refused")) == (accounts, refused)


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_it_is_built_for_a_topic(semantics: Any) -> None:
    built = topology("movements", semantics, prefix="mine_")
    assert [use.state.table for use in built.map_states] == ["mine_accounts"]
    assert "for each account string (opaque table, state accounts)" in built.describe()
