"""Suite for `DeduplicateBolt` with a table, on any database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from txstream.api.bolts import TopologyContext, WorkerContext
from txstream.api.rows import to_record_batch
from txstream.api.schema import parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import Chunk, Tuple
from txstream.bolts.deduplicate import DeduplicateBolt
from txstream.core.errors import StateTableError, StateValueError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid

ORDERS = "order_id string, entry string, amount decimal(10,2)"
ATTEMPT = TransactionAttempt(Txid(1), AttemptId(1))


class Told:
    """A RichCollector that remembers what it is told."""

    def __init__(self) -> None:
        self.emitted: list[tuple[Any, ...]] = []
        self.acked = 0
        self.failed: list[str | None] = []

    def emit(self, anchors: Any, values: Sequence[object], stream: str = "default") -> None:
        assert isinstance(anchors, Tuple)
        self.emitted.append(tuple(values))

    def emit_direct(self, task: int, anchors: Any, values: Sequence[object], stream: str = "default") -> None:
        raise AssertionError("the bolt has no direct stream")

    def ack(self, tup: Tuple) -> None:
        self.acked += 1

    def fail(self, tup: Tuple, reason: str | None = None) -> None:
        self.failed.append(reason)


class Worker:
    """A worker process in which tasks of a bolt run."""

    def __init__(self, bolt: DeduplicateBolt, url: str = "") -> None:
        self.bolt = bolt
        addresses = {"database": url} if url else {}
        self.resource = bolt.prepare_worker(WorkerContext("t", "once", "0", "host", addresses=addresses))

    def run(self, rows: Sequence[Sequence[Any]], schema: str = ORDERS) -> Told:
        """Run one task of one micro-batch."""
        told = Told()
        self.bolt.prepare(TopologyContext("t", "once", 0, 1, ATTEMPT, resource=self.resource), told)
        for tup in Chunk(to_record_batch(rows, parse_schema(schema)), "orders").tuples():
            self.bolt.execute(tup)
        self.bolt.cleanup()
        return told

    def close(self) -> None:
        self.bolt.close_worker(self.resource)


def order(number: int, entry: str, amount: str = "1.00") -> tuple[str, str, Decimal]:
    return (f"order {number}", entry, Decimal(amount))


def state(table: str, value: str = "entry string, amount decimal(10,2)", **options: Any) -> SqlState:
    return SqlState(table, key="order_id string", value=value, **options)


class TableOfFirst:
    """Subclasses live in a module with a fixture `url`."""

    @pytest.fixture
    def rows(self, url: str, unique: str) -> Any:
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        yield lambda columns: [
            tuple(row)
            for row in engine.connect().execute(text(f"SELECT {columns} FROM {unique} ORDER BY order_id"))
        ]
        engine.dispose()

    def test_each_key_is_there_once_and_the_first_stays(self, url: str, unique: str, rows: Any) -> None:
        worker = Worker(DeduplicateBolt(message="entry", state=state(unique)), url)
        told = worker.run([order(1, "a"), order(2, "b"), order(1, "c", "9.00")])
        assert told.emitted == [order(1, "a"), order(2, "b")]
        told = worker.run([order(2, "d", "9.00"), order(3, "e")])
        assert (told.emitted, told.acked) == ([order(3, "e")], 2)
        assert rows("order_id, entry") == [("order 1", "a"), ("order 2", "b"), ("order 3", "e")]
        worker.close()

    def test_the_first_message_passes_as_often_as_it_comes(self, url: str, unique: str) -> None:
        bolt = DeduplicateBolt(message="entry", state=state(unique))
        first, second = Worker(bolt, url), Worker(bolt, url)
        first.run([order(1, "a")])
        first.close()
        told = second.run([order(1, "b"), order(1, "a"), order(1, "a")])
        assert (told.emitted, told.acked) == ([order(1, "a")] * 2, 3)
        second.close()

    def test_rows_are_forgotten_after_a_while(self, url: str, unique: str, rows: Any) -> None:
        value = "entry string, seen_at timestamp"
        bolt = DeduplicateBolt(message="entry", state=state(unique, value), keep=timedelta(days=1))
        worker = Worker(bolt, url)
        worker.run([order(1, "a")])
        table = worker.resource._rows  # type: ignore[union-attr]
        assert table.forget("seen_at", datetime.now(UTC) - timedelta(days=1)) == 0
        assert worker.run([order(1, "b")]).emitted == []
        assert table.forget("seen_at", datetime.now(UTC) + timedelta(days=1)) == 1
        assert worker.run([order(1, "b")]).emitted == [order(1, "b")]
        worker.close()

    def test_a_table_of_another_kind_is_left_alone(self, url: str, unique: str) -> None:
        Worker(DeduplicateBolt(message="entry", state=state(unique)), url).close()
        with pytest.raises(StateTableError, match=f"table '{unique}' at .* has the columns order_id, ent"):
            Worker(DeduplicateBolt(message="entry", state=state(unique, "entry string")), url)

    def test_a_key_without_a_value_is_refused(self, url: str, unique: str) -> None:
        worker = Worker(DeduplicateBolt(message="entry", state=state(unique)), url)
        with pytest.raises(StateValueError, match="null"):
            worker.run([(None, "a", Decimal(1))])
        worker.close()
