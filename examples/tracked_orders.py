"""Orders from Kafka into a SQL table: delivered at least once, but each order is in the table once.

txstream topic create orders --partitions 4
txstream run txstream.examples.tracked_orders:topology
echo '{"order_id": "4711", "amount": "12.30"}' | txstream topic produce orders - --format json

The group's offset moves past an order once it is in the table. If the driver dies, the orders after that
offset come again, and a producer may send an order twice. The table keeps the first row of each order,
whatever comes later.
"""

from __future__ import annotations

from txstream import (
    BasicBolt,
    Decode,
    DeduplicateBolt,
    KafkaQueueSpout,
    KafkaSource,
    OutputCollector,
    OutputFieldsDeclarer,
    SqlState,
    TopologyBuilder,
    TrackedTopology,
    Tuple,
)


class OnlyOrders(BasicBolt):
    """Drops records without an id or an amount, which make no row in the table of orders."""

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(declarer.inputs[0])

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["order_id"] and tup["amount"] is not None:
            collector.emit(tup.values)


def topology(
    topic: str = "orders", table: str = "orders", max_spout_pending: int = 1000, parallelism: int = 2
) -> TrackedTopology:
    builder = TopologyBuilder("tracked-orders", max_spout_pending=max_spout_pending)
    source = KafkaSource(
        topic,
        decode=Decode("json", "order_id string, customer string, amount decimal(10,2)"),
        kafka_columns=["partition", "offset"],
    )
    spout = KafkaQueueSpout(source, session_timeout_seconds=6)
    builder.set_spout("orders", spout, parallelism)
    builder.set_bolt("check", OnlyOrders(), parallelism).local_or_shuffle_grouping("orders")
    state = SqlState(
        table,
        key="order_id string",
        value="partition int, offset bigint, customer string, amount decimal(10,2)",
    )
    store = DeduplicateBolt(message=["partition", "offset"], state=state)
    builder.set_bolt("store", store, parallelism).fields_grouping("check", "order_id")
    return builder.build()
