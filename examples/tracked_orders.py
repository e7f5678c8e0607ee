"""Orders from a Redis stream into a SQL table: delivered at least once, but each order is in the table once.

txstream run txstream.examples.tracked_orders:topology -p redis=redis://127.0.0.1:6379/0
redis-cli XADD orders '*' order_id 4711 customer Ada amount 12.30

An entry is acknowledged to Redis once its order is in the table. If the driver dies, its unacknowledged
entries come again, and a producer may add an order twice. The table keeps the first row of each order,
whatever comes later.
"""

from __future__ import annotations

from txstream import (
    BasicBolt,
    DeduplicateBolt,
    OutputCollector,
    OutputFieldsDeclarer,
    RedisStreamSpout,
    SqlState,
    TopologyBuilder,
    TrackedTopology,
    Tuple,
)

FIELDS = "entry string, order_id string, customer string, amount decimal(10,2)"


class OnlyOrders(BasicBolt):
    """Drops entries without an id or an amount, which make no row in the table of orders."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["order_id"] and tup["amount"] is not None:
            collector.emit(tup.values)


def topology(
    stream: str = "orders",
    table: str = "orders",
    redis: str | None = None,
    max_spout_pending: int = 1000,
    parallelism: int = 2,
) -> TrackedTopology:
    builder = TopologyBuilder("tracked-orders", max_spout_pending=max_spout_pending)
    spout = RedisStreamSpout(
        stream, FIELDS, url=redis, id_field="entry", create_stream=True, on_bad_entry="skip"
    )
    builder.set_spout("orders", spout)
    builder.set_bolt("check", OnlyOrders(), parallelism).local_or_shuffle_grouping("orders")
    state = SqlState(
        table, key="order_id string", value="entry string, customer string, amount decimal(10,2)"
    )
    store = DeduplicateBolt(message="entry", state=state)
    builder.set_bolt("store", store, parallelism).fields_grouping("check", "order_id")
    return builder.build()
