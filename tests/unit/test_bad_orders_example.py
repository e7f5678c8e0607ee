"""The example of bad orders: good ones are converted, and what cannot be is asked to become a dead letter."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from txstream import DeadLetters
from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.examples.bad_orders import FIELDS, Convert, graph, topology
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database
from txstream.testing import TopologyTest, run_bolt

ORDERS = [("tea", Decimal("4.50"), "EUR"), ("tea", Decimal("10.00"), "USD"), ("cup", Decimal("3.00"), "EUR")]


def test_orders_are_converted() -> None:
    rates = {"EUR": Decimal(1), "USD": Decimal("0.925")}
    assert run_bolt(Convert(rates), ORDERS[:2], FIELDS).emitted == [
        ("tea", Decimal("4.50")),
        ("tea", Decimal("9.25")),
    ]


def test_turnover() -> None:
    with MemorySpout(FIELDS, {"p0": ORDERS}, max_records_per_partition=2) as source:
        built = graph(OpaqueSpout(source), "EUR:1,USD:0.92")
        with TopologyTest(built) as test:
            test.run()
            found = {product: tuple(value) for product, value in test.table("turnover").items()}
    assert found == {"tea": (Decimal("13.70"), 2), "cup": (Decimal("3.00"), 1)}


@pytest.mark.parametrize("spout", [OpaqueSpout, TransactionalSpout])
def test_a_bad_order_stops_nothing_and_is_kept(spout: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with (
        MemorySpout(FIELDS, {"p0": ORDERS}, max_records_per_partition=2) as source,
        TopologyTest(graph(spout(source)), database=url) as test,
    ):
        test.run()
        found = {product: tuple(value) for product, value in test.table("turnover").items()}
    assert found == {"tea": (Decimal("4.50"), 1), "cup": (Decimal("3.00"), 1)}
    database = open_database(url)
    (kept,) = database.dead_letters("bad-orders")
    database.close()
    assert (kept.letter.component, kept.letter.exception, kept.place) == ("convert", "KeyError", "p0@1")


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_it_is_built_for_a_topic(semantics: Any) -> None:
    assert topology("orders", semantics).dead_letters == DeadLetters(max_share=0.5)
