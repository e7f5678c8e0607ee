"""Tuples become rows of an outbox with their batch, and records of its topic once that is committed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from txstream import (
    Encode,
    KafkaSinkBolt,
    KafkaSource,
    MemorySpout,
    OpaqueSpout,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.core.errors import FencedError, ServiceUnavailableError, StateValueError, TopologyError
from txstream.core.transaction import Txid
from txstream.plugins.outbox.sending import Headers, OutboxFollower, Record, TableOutbox, result_topics
from txstream.plugins.outbox.sink import encoded
from txstream.state import StateBackend, open_database
from txstream.testing import TopologyTest

COLUMNS = "customer string, amount bigint"


def topology_of(spout: Any, **options: Any) -> TransactionalTopologyBuilder:
    builder = TransactionalTopologyBuilder("sales", "orders", spout)
    builder.set_committer_bolt("out", KafkaSinkBolt("sales", **options)).shuffle_grouping("orders")
    return builder


def orders(*batches: Sequence[tuple[Any, ...]], output: str = COLUMNS) -> MemorySpout:
    return MemorySpout(
        output,
        {"orders/0": [row for rows in batches for row in rows]},
        max_records_per_partition=max(map(len, batches)),
    )


class Broker:
    """A topic in memory. It is away, or its driver dies, when the count of sends says so."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None, int]] = []
        self.fails = 0
        self.headers: list[Mapping[str, bytes]] = []
        self.marks: list[tuple[int, Mapping[str, bytes]]] = []

    def send_all(self, records: Sequence[Record], txid: Txid, to_each: Headers | None = None) -> None:
        if self.fails:
            self.fails -= 1
            raise ServiceUnavailableError("no broker answers")
        if to_each is not None:
            assert records == []
            self.marks.append((len(self.records), dict(to_each)))
        for key, value, headers in records:
            self.headers.append(dict(headers))
            self.records.append((key, value, int(self.headers[-1]["txstream-txid"])))

    def close(self) -> None:
        pass


class Notes:
    def __init__(self) -> None:
        self.sent: Mapping[str, Txid] = {}
        self.error: BaseException | None = None

    def put(self, sent: Mapping[str, Txid]) -> None:
        if self.error is not None:
            raise self.error
        self.sent = dict(sent)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'state.db'}"


@pytest.fixture
def database(url: str) -> Iterator[StateBackend]:
    opened = open_database(url)
    yield opened
    opened.close()


class Ahead(Notes):
    """Notes of a table whose topic has gone on, before the driver looks."""

    sent: Mapping[str, Txid] = {"sales_outbox": Txid(1), "dropped_outbox": Txid(7)}

    def __init__(self) -> None:
        self.error = None


def follower(
    database: StateBackend, broker: Broker, notes: Notes, current: int, clock: float = 0
) -> OutboxFollower:
    read = lambda: notes.sent  # noqa: E731
    return OutboxFollower(
        "sales", [outbox(database, broker)], lambda: Txid(current), read, notes.put, lambda: clock
    )


def outbox(database: StateBackend, broker: Broker) -> TableOutbox:
    return TableOutbox("sales", "sales_outbox", "topic sales", [database], lambda: broker, marks=True)


@pytest.fixture(params=[OpaqueSpout, TransactionalSpout])
def filled(request: pytest.FixtureRequest, url: str) -> None:
    """Three committed batches of two orders each."""
    source = orders([("a", 1), ("b", 2)], [("a", 3), ("c", 4)], [("b", 5), ("a", 6)])
    with TopologyTest(
        topology_of(request.param(source), key="customer", value="amount"), database=url
    ) as test:
        test.commit(3)


WHOLE = [
    (b"a", b"1", 1),
    (b"b", b"2", 1),
    (b"a", b"3", 2),
    (b"c", b"4", 2),
    (b"a", b"6", 3),
    (b"b", b"5", 3),
]


@pytest.mark.usefixtures("filled")
def test_only_committed_rows_are_sent_in_the_order_of_txids(database: StateBackend) -> None:
    broker, notes = Broker(), Notes()
    follower(database, broker, notes, current=3).send_committed()
    assert (broker.records, notes.sent) == (WHOLE[:4], {"sales_outbox": 2})
    follower(database, broker, notes, current=4).send_committed()
    assert (broker.records, notes.sent) == (WHOLE, {"sales_outbox": 3})
    told = {(each["txstream-topology"], each["txstream-attempt"].isdigit()) for each in broker.headers}
    assert told == {(b"sales", True)}


@pytest.mark.usefixtures("filled")
def test_it_goes_on_where_the_notes_end_and_forgets_outboxes_that_are_gone(database: StateBackend) -> None:
    broker, notes = Broker(), Ahead()
    follower(database, broker, notes, current=4).send_committed()
    assert (broker.records, notes.sent) == (WHOLE[2:], {"sales_outbox": 3})


def test_a_table_is_noted_before_its_first_row(database: StateBackend, url: str) -> None:
    with TopologyTest(topology_of(OpaqueSpout(orders([("a", 1)]))), database=url) as test:
        test.commit(1)
    notes = Notes()
    follower(database, Broker(), notes, current=1).send_committed()
    assert notes.sent == {"sales_outbox": 0}


@pytest.mark.usefixtures("filled")
def test_sent_rows_are_deleted_but_those_of_the_last_txid(database: StateBackend) -> None:
    follower(database, Broker(), Notes(), current=4).send_committed()
    with database.read_state("sales") as reading:
        assert [row.txid for row in reading.written_since("sales_outbox", 1)] == [3, 3]


@pytest.mark.usefixtures("filled")
def test_what_is_not_noted_is_sent_again(database: StateBackend) -> None:
    broker, notes = Broker(), Notes()
    notes.error = SystemExit()
    with pytest.raises(SystemExit):
        follower(database, broker, notes, current=4).send_committed()
    notes.error = None
    follower(database, broker, notes, current=4).send_committed()
    assert broker.records == WHOLE + WHOLE


@pytest.mark.usefixtures("filled")
def test_what_a_dead_driver_had_sent_and_not_deleted_is_deleted(database: StateBackend) -> None:
    broker, notes = Broker(), Notes()
    notes.sent = {"sales_outbox": Txid(3)}
    follower(database, broker, notes, current=4).send_committed()
    with database.read_state("sales") as reading:
        assert (broker.records, reading.count("sales_outbox")) == ([], 2)


@pytest.mark.usefixtures("filled")
def test_a_broker_that_was_away_gets_every_row_in_order(database: StateBackend) -> None:
    broker, notes = Broker(), Notes()
    sending = follower(database, broker, notes, current=4)
    broker.fails = 1
    with pytest.raises(ServiceUnavailableError):
        sending.send_committed()
    assert (broker.records, notes.sent) == ([], {})
    sending.disconnect()
    sending.send_committed()
    assert (broker.records, notes.sent) == (WHOLE, {"sales_outbox": 3})


@pytest.mark.usefixtures("filled")
def test_a_driver_that_was_succeeded_deletes_nothing(database: StateBackend) -> None:
    notes = Notes()
    notes.error = FencedError("another leads")
    with pytest.raises(FencedError):
        follower(database, Broker(), notes, current=4).send_committed()
    with database.read_state("sales") as reading:
        assert reading.count("sales_outbox") == 6


@pytest.mark.usefixtures("filled")
def test_a_rewind_is_told_in_its_turn(database: StateBackend, tmp_path: Path) -> None:
    told = {"path": "rewind", "rewind": {"to": 1, "savepoint": None, "last": 1}}
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("UPDATE txstream_batch SET details = ? WHERE txid = 2", (json.dumps(told),))
        connection.execute("DELETE FROM sales_outbox WHERE txid = 2")
    broker, notes = Broker(), Notes()
    for _ in range(2):
        follower(database, broker, notes, current=4).send_committed()
    assert broker.records == [*WHOLE[:2], *WHOLE[4:]]
    ((place, mark),) = broker.marks
    assert (place, mark["txstream-txid"], mark["txstream-rewind"]) == (2, b"2", b"1")
    assert not any("txstream-rewind" in headers for headers in broker.headers)


def test_notes_are_a_second_apart_and_the_last_is_never_left_out(
    database: StateBackend, filled: None
) -> None:
    broker, notes, now = Broker(), Notes(), [0.0]
    current = [Txid(2)]
    sending = OutboxFollower(
        "sales", [outbox(database, broker)], lambda: current[0], lambda: notes.sent, notes.put,
        lambda: now[0],
    )  # fmt: skip
    sending.send_committed()
    current[0] = Txid(3)
    sending.send_committed()
    assert (len(broker.records), notes.sent) == (4, {"sales_outbox": 1})
    now[0] = 1.0
    sending.send_committed()
    assert notes.sent == {"sales_outbox": 2}
    current[0] = Txid(4)
    sending.send_committed(is_last=True)
    assert notes.sent == {"sales_outbox": 3}


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (None, None),
        (b"\xff", b"\xff"),
        ("é", "é".encode()),
        (7, b"7"),
        ({"n": Decimal("1.50"), "b": b"ab"}, b'{"n":"1.50","b":"YWI="}'),
        ({"at": datetime(2026, 1, 2, 3, 4)}, b'{"at":"2026-01-02T03:04:00"}'),
    ],
)
def test_values_are_sent_so(value: Any, sent: bytes | None) -> None:
    assert encoded(value) == sent


def test_a_whole_tuple_is_a_json_object(url: str, database: StateBackend) -> None:
    with TopologyTest(topology_of(OpaqueSpout(orders([("a", 1)])), key=["customer"]), database=url) as test:
        test.commit(1)
    broker = Broker()
    follower(database, broker, Notes(), current=2).send_committed()
    ((key, value, _),) = broker.records
    assert [json.loads(each or b"") for each in (key, value)] == [
        {"customer": "a"},
        {"customer": "a", "amount": 1},
    ]


def test_what_json_cannot_hold_is_refused_with_its_tuple(url: str) -> None:
    source = orders([("a", 1.0), ("b", float("nan"))], output="customer string, amount double")
    with (
        TopologyTest(topology_of(OpaqueSpout(source), value=["amount"]), database=url) as test,
        pytest.raises(StateValueError, match=r"topic 'sales' cannot be sent .*customer='b'"),
    ):
        test.commit(1)


def test_a_field_that_is_not_there_is_refused() -> None:
    with pytest.raises(TopologyError, match="no field 'city' for topic 'sales'; it has 'customer', 'amount'"):
        topology_of(OpaqueSpout(orders([("a", 1)])), key="city").build()


def test_the_topology_may_not_read_its_topic() -> None:
    with pytest.raises(TopologyError, match="sales"):
        topology_of(OpaqueSpout(KafkaSource(["orders", "sales"]))).build()
    source = topology_of(OpaqueSpout(KafkaSource(topic_pattern="s.*"))).build().spout.source
    assert isinstance(source, KafkaSource)
    selection = source.selection
    assert [selection.reads(topic) for topic in ("sales", "sold")] == [False, True]


def test_what_cannot_be_sent_exactly_once_is_refused() -> None:
    def start(source: Any, *more: tuple[str, bool]) -> None:
        builder = topology_of(OpaqueSpout(source), exactly_once=True)
        for number, (topic, once) in enumerate(more):
            sink = KafkaSinkBolt(topic, table=f"more{number}", exactly_once=once)
            builder.set_committer_bolt(f"more{number}", sink).shuffle_grouping("orders")
        leading: Any = SimpleNamespace(topology=builder.build(), store=None, databases=[], current=None)
        result_topics(leading)

    with pytest.raises(TopologyError, match="reads topic 'sales-txids', which has the markers"):
        start(KafkaSource(topic_pattern="sales-.*"))
    for once in (False, True):
        with pytest.raises(TopologyError, match="fills topic 'sales' from two tables, and exactly once"):
            start(orders([("a", 1)]), ("sales", once))
    start(orders([("a", 1)]), ("other", True), ("third", False), ("third", False))


def test_values_are_avro_and_what_does_not_fit_is_named(url: str, database: StateBackend) -> None:
    fields = [{"name": "customer", "type": "string"}, {"name": "amount", "type": ["null", "long"]}]
    schema = {"type": "record", "name": "Sale", "fields": fields}
    encode = Encode("avro", schema, wire_format="plain")
    builder = topology_of(OpaqueSpout(orders([("a", 1), ("b", None)])), key="customer", encode=encode)
    with TopologyTest(builder, database=url) as test:
        test.commit(1)
    broker = Broker()
    follower(database, broker, Notes(), 2).send_committed()
    read = [
        (key, fastavro.schemaless_reader(BytesIO(value or b""), fastavro.parse_schema(schema), None))
        for key, value, _ in broker.records
    ]
    assert read == [(b"a", {"customer": "a", "amount": 1}), (b"b", {"customer": "b", "amount": None})]
    bad = topology_of(OpaqueSpout(orders([("a", 1), (None, 7)])), encode=encode)
    with (
        TopologyTest(bad) as test,
        pytest.raises(StateValueError, match=r"'sales' cannot be sent .*None.*expected string"),
    ):
        test.commit(1)
