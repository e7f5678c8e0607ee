"""Exactly-once sums over a table of orders: a source without partitions, read by ranges of ids.

python -m txstream.examples.batch_spout orders.db 1000
txstream run txstream.examples.batch_spout:topology -p orders=orders.db --until caught-up

The first command makes the table or adds to it. Driver and executors open the same file, so this runs on one
machine. The code for a database server would be the same.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from txstream import (
    Count,
    DataLostError,
    OutputCollector,
    PartitionUnavailableError,
    SpoutContext,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TransactionalTopologyBuilder,
    TransactionAttempt,
    UsageError,
)
from txstream.core.transaction import Txid
from txstream.examples.word_count import SPOUTS
from txstream.spouts.batch_spouts import BatchSpout

CITIES = ("Berlin", "Nairobi", "Lima", "Hanoi")


@dataclass(frozen=True)
class IdRange:
    """The orders with ids `first` to `last`. `count` is their number, since ids may have gaps."""

    first: int
    last: int
    count: int


class OrdersSpout(BatchSpout[IdRange]):
    """Reads orders by ascending id, `orders_per_batch` at a time.

    Ids must become visible in ascending order, or the spout misses those that come late. They do in SQLite,
    which has one writer at a time. With `delete`, orders are removed once they are committed.
    """

    output = "city string, amount bigint"
    batch_meta_type = IdRange

    def __init__(self, database: str | Path, orders_per_batch: int = 100, *, delete: bool = False) -> None:
        self.database = Path(database).absolute()
        self.orders_per_batch = orders_per_batch
        self.delete = delete

    def identity(self) -> Mapping[str, Any]:
        return {"orders": str(self.database)}

    def open(self, context: SpoutContext) -> None:
        if not self.database.is_file():
            raise UsageError(
                f"{self.database} does not exist; make it with "
                f"`python -m txstream.examples.batch_spout {self.database} 1000`"
            )
        # Used from one thread at a time, but on the driver not always by the same thread.
        self.connection = sqlite3.connect(self.database, isolation_level=None, check_same_thread=False)
        self.firsts: dict[Txid, int] = {}

    def initialize_transaction(self, txid: Txid, previous_meta: IdRange | None) -> IdRange | None:
        place = 0 if previous_meta is None else previous_meta.last
        ids = [
            row[0]
            for row in self._query(
                "SELECT id FROM orders WHERE id > ? ORDER BY id LIMIT ?", place, self.orders_per_batch
            )
        ]
        if not ids:
            return None
        self.firsts[txid] = ids[0]
        return IdRange(ids[0], ids[-1], len(ids))

    def emit_batch(self, attempt: TransactionAttempt, meta: IdRange, collector: OutputCollector) -> None:
        rows = self._query(
            "SELECT city, amount FROM orders WHERE id BETWEEN ? AND ? ORDER BY id", meta.first, meta.last
        )
        if len(rows) != meta.count:
            raise DataLostError(f"{meta} has {len(rows)} orders now: some were deleted")
        for row in rows:
            collector.emit(row)

    def cleanup_before(self, txid: Txid) -> None:
        if self.delete and txid in self.firsts:
            self._query("DELETE FROM orders WHERE id < ?", self.firsts[txid])
        self.firsts = {later: first for later, first in self.firsts.items() if later >= txid}

    def targets(self) -> Mapping[str, Any]:
        return {"last": self._query("SELECT coalesce(max(id), 0) FROM orders")[0][0]}

    def reached(self, previous_meta: IdRange | None, targets: Mapping[str, Any]) -> bool:
        return (0 if previous_meta is None else previous_meta.last) >= int(targets["last"])

    def close(self) -> None:
        self.connection.close()

    def _query(self, statement: str, *parameters: Any) -> list[Any]:
        try:
            return self.connection.execute(statement, parameters).fetchall()
        except sqlite3.OperationalError as error:
            raise PartitionUnavailableError(f"{self.database} cannot be read: {error}") from error


def topology(
    orders: str = "orders.db",
    semantics: Literal["opaque", "transactional", "non-transactional"] = "opaque",
    table: str = "city_sales",
    orders_per_batch: int = 100,
    delete: bool = False,
    parallelism: int = 2,
) -> Topology:
    source = OrdersSpout(orders, orders_per_batch, delete=delete)
    builder = TransactionalTopologyBuilder("city-sales", "orders", SPOUTS[semantics](source))
    state = SqlState(table, key="city string", value="n bigint, amount bigint")
    store = SqlStateBolt(state, n=Count(), amount=Sum("amount"))
    builder.set_committer_bolt("store", store, parallelism).fields_grouping("orders", "city")
    return builder.build()


def add_orders(database: str | Path, count: int) -> None:
    """Add `count` orders to the table, which is made if it does not exist."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders "
            "(id INTEGER PRIMARY KEY AUTOINCREMENT, city TEXT NOT NULL, amount INTEGER NOT NULL)"
        )
        connection.executemany(
            "INSERT INTO orders (city, amount) VALUES (?, ?)",
            ((CITIES[n % len(CITIES)], n % 100) for n in range(count)),
        )


if __name__ == "__main__":
    add_orders(sys.argv[1], int(sys.argv[2]))
