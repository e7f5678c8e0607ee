"""Turnover by product, from a topic in which some orders are bad.

txstream run txstream.examples.bad_orders:topology --until caught-up

The topic's values are JSON: {"product": "tea", "amount": "4.50", "currency": "EUR"}. An order that is no JSON
cannot be decoded, and one in a currency without a rate makes the bolt `convert` raise. Such an order stops
nothing: it is left out of its batch and kept in the table `txstream_dead_letter`, with its bytes and its
error (`txstream dead-letters list bad-orders`). With one more rate (`-p rates=EUR:1,USD:0.92`), later orders
in that currency count, and `txstream dead-letters retry bad-orders` counts those that were left out.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    Decode,
    KafkaSource,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.api.spouts import SourceSpout
from txstream.examples.word_count import SPOUTS

FIELDS = "product string, amount decimal(12, 2), currency string"
EURO = Decimal("0.01")


class Convert(BasicBolt):
    """Converts amounts to euros. Raises KeyError for a currency without a rate: a guess would be worse."""

    output = "product string, euros decimal(18, 2)"

    def __init__(self, rates: dict[str, Decimal]) -> None:
        self.rates = rates

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        euros = tup["amount"] * self.rates[tup["currency"]]
        collector.emit((tup["product"], euros.quantize(EURO)))


def graph(spout: SourceSpout[Any], rates: str = "EUR:1", *, table: str = "turnover") -> Topology:
    """Return the topology over any source of orders. `rates` are written as EUR:1,USD:0.92."""
    parsed = {name: Decimal(rate) for name, _, rate in (one.partition(":") for one in rates.split(","))}
    # A batch of an example is small, so that one bad order may be a large share of it.
    asked = DeadLetters(max_share=0.5)
    builder = TransactionalTopologyBuilder("bad-orders", "orders", spout, dead_letters=asked)
    builder.set_bolt("convert", Convert(parsed), parallelism=2).local_or_shuffle_grouping("orders")
    state = SqlState(table, key="product string", value="euros decimal(18, 2), orders bigint")
    store = builder.set_bolt("store", SqlStateBolt(state, euros=Sum("euros"), orders=Count()))
    store.fields_grouping("convert", "product")
    return builder.build()


def topology(
    topic: str = "orders",
    semantics: Literal["opaque", "transactional"] = "opaque",
    rates: str = "EUR:1",
    max_records_per_partition: int = 1000,
) -> Topology:
    source = KafkaSource(
        topic,
        decode=Decode("json", FIELDS),
        max_records_per_partition=max_records_per_partition,
    )
    return graph(SPOUTS[semantics](source), rates)
