"""What PostgreSQL sends of a transaction that is open while a snapshot begins, in a mirror of the table."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import psycopg
from postgres import PostgresServer
from psycopg.pq import PGconn
from support.kafka_topics import wait_until

from txstream import Decode, KafkaSource, OpaqueSpout, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.api.spouts import SpoutContext
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

COLUMNS = "id bigint, name string"


def place(lsn: str) -> int:
    high, low = lsn.split("/")
    return int(high, 16) << 32 | int(low, 16)


def event(op: str, name: str, lsn: int, snapshot: str) -> bytes:
    about = {"connector": "postgresql", "ts_ms": 0, "lsn": lsn, "snapshot": snapshot}
    return json.dumps({"before": None, "after": {"id": 1, "name": name}, "source": about, "op": op}).encode()


def test_a_change_that_is_open_while_the_slot_is_created_is_not_lost(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path)
    where: dict[str, Any] = {"host": str(server.data), "user": "postgres"}
    with psycopg.connect(**where, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET wal_level = 'logical'")
        connection.execute("ALTER SYSTEM SET max_wal_senders = 4")
    server.stop("fast")
    server.start()
    try:
        before, after, name = _read_around(server, where)
    finally:
        server.close()
    seen, update = place(before), place(after)
    assert update < seen  # or this is a test of nothing
    events: list[bytes | None] = [event("r", name, seen, "last"), event("u", "new", update, "false")]
    source = KafkaSource("goods", decode=Decode("debezium", COLUMNS))
    assert source.value_schema is not None
    rows = source.value_schema.reader(SpoutContext("t", "goods", {})).read(events).to_pylist()
    given = [
        (row["id"], row["name"], row["op"], row["sequence"], "goods", 0, at) for at, row in enumerate(rows)
    ]
    fields = f"{COLUMNS}, op string, sequence bigint, topic string, partition int, offset bigint"
    goods = SqlTable(
        "goods", "name string, sequence bigint", key="id bigint",
        on_conflict="replace", removed_by="op = 'd'", sequence_by="sequence",
    )  # fmt: skip
    with MemorySpout(fields, {"p0": given}) as changes:
        builder = TransactionalTopologyBuilder("mirror", "changes", OpaqueSpout(changes, max_batch_records=1))
        builder.set_bolt("store", SqlAppendBolt(goods)).local_or_shuffle_grouping("changes")
        with TopologyTest(builder.build()) as test:
            test.run()
            assert test.table("goods") == {1: ("new", update)}


def _read_around(server: PostgresServer, where: dict[str, Any]) -> tuple[str, str, str]:
    """Return the place of a slot, that of an update which was open then, and the name that the slot's
    snapshot sees."""
    connection = psycopg.connect(**where, autocommit=True)
    first, second, update, snapshot = (psycopg.connect(**where) for _ in range(4))
    connection.execute("CREATE TABLE goods (id int PRIMARY KEY, name text)")
    connection.execute("INSERT INTO goods VALUES (1, 'old')")
    connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    sender = PGconn.connect(f"host={server.data} user=postgres dbname=postgres replication=database".encode())
    found: list[Any] = []

    def create() -> None:
        found.append(sender.exec_(b"CREATE_REPLICATION_SLOT mirror LOGICAL pgoutput EXPORT_SNAPSHOT"))

    def began(other: psycopg.Connection[Any]) -> str:
        row = other.execute("SELECT pg_current_xact_id()::text").fetchone()
        assert row is not None
        return str(row[0])

    def is_awaited(txid: str) -> bool:
        locks = "SELECT count(*) FROM pg_locks WHERE transactionid::text = %s AND NOT granted"
        return connection.execute(locks, (txid,)).fetchone() != (0,)

    # The slot waits for what was open when it began, and then for what has begun meanwhile.
    txids = [began(first)]
    creation = threading.Thread(target=create)
    creation.start()
    wait_until(lambda: is_awaited(txids[0]), "the slot waits for what was open")
    txids.append(began(second))
    first.commit()
    wait_until(lambda: is_awaited(txids[1]), "the slot waits for what has begun")
    update.execute("UPDATE goods SET name = 'new' WHERE id = 1")
    second.commit()
    creation.join(30)
    (slot,) = found
    _, consistent, exported, _ = (slot.get_value(0, column).decode() for column in range(4))
    snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    snapshot.execute(f"SET TRANSACTION SNAPSHOT '{exported}'".encode())
    name = snapshot.execute("SELECT name FROM goods").fetchone()
    update.commit()
    sender.finish()
    changes = connection.execute(
        "SELECT lsn::text FROM pg_logical_slot_peek_binary_changes('mirror', NULL, NULL, "
        "'proto_version', '1', 'publication_names', 'everything') WHERE substr(data, 1, 1) = 'U'"
    ).fetchall()
    for one in (connection, first, second, update, snapshot):
        one.close()
    assert name is not None
    ((lsn,),) = changes
    return consistent, lsn, name[0]
