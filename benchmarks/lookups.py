"""How fast is a lookup? Tuples/s of one `LookupBolt` task, from what it keeps and from the database.

    python benchmarks/lookups.py                       # its own PostgreSQL with fsync, and SQLite
    python benchmarks/lookups.py --postgres URL --users 1000000 --tuples 50000 --batches 20 --json

The table has `--users` rows of a name and a city. A batch has `--tuples` orders of different users, in no
order, so that no lookup is shared; and one of ten orders a user. A task is timed from the first chunk to the
last emitted one, without Spark and without a source. "kept": the table has an index on its txid, and the rows
that the batch needs are kept since the one before; what was changed since is asked for, and one row in a
hundred tuples has changed and is read again. "database": nothing is kept, so each user of the batch is read.

Figures are medians over the batches. CPU is that of the task alone; a second includes the database's answer.
Every value is compared with what was written. The exit status is 1 when a task looks up fewer than 100,000
tuples a CPU second of what it keeps, or 20,000 a second from PostgreSQL.

The load of the machine is shown beside: the targets are for two cores of which nobody else takes any.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from state import own_server

import txstream
from txstream.api.reducers import Put
from txstream.api.spouts import SpoutContext
from txstream.api.tuples import Chunk
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.engine.batch.execution_plan import ExecutionPlan, compile_topology
from txstream.engine.batch.stage import Stopwatch, TaskRuntime
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.states.bindings import StateBinding
from txstream.engine.states.worker_databases import StorePlace
from txstream.state import Commit, TableSpec, open_database

KEPT_TARGET, DATABASE_TARGET = 100_000, 20_000
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
ORDERS = "user string, amount bigint"


def users_table(name: str, *, keeps: bool) -> txstream.SqlTable:
    return txstream.SqlTable(
        name, "name string, city string", key="user string", on_conflict="replace", index_txid=keeps
    )


def plan_of(table: txstream.SqlTable, cache_rows: int) -> ExecutionPlan:
    source = txstream.MemorySpout("user string, name string, city string, offset bigint", {"p": []})
    builder = txstream.TransactionalTopologyBuilder("lookups", "records", txstream.OpaqueSpout(source))
    builder.set_bolt("users", txstream.SqlAppendBolt(table)).local_or_shuffle_grouping("records")
    builder.set_bolt("orders", Orders()).local_or_shuffle_grouping("records")
    named = txstream.LookupBolt("users", on="user", columns={"n": "name", "c": "city"}, cache_rows=cache_rows)
    builder.set_bolt("named", named).fields_grouping("orders", "user")
    return compile_topology(builder.build(), SpoutContext("lookups", "records", {}), "0")


class Orders(txstream.BasicBolt):
    output = ORDERS

    def execute(self, tup: txstream.Tuple, collector: txstream.OutputCollector) -> None:
        """Do nothing: the benchmark makes the tuples."""


def rows_of(users: Sequence[int], version: int) -> pa.Table:
    return pa.table(
        {
            "user": [f"user {user}" for user in users],
            "name": [f"name {user} {version}" for user in users],
            "city": [f"city {user % 997}" for user in users],
        }
    )


class Bench:
    """One table in one database, and a process that looks up in it."""

    def __init__(self, url: str, users: int, tuples: int, *, keeps: bool) -> None:
        self.database = open_database(url, connect_timeout_seconds=10.0, message_timeout_seconds=600.0)
        self.table = users_table("kept_users" if keeps else "read_users", keeps=keeps)
        spec = TableSpec(self.table, Semantics.OPAQUE, {name: Put() for name in self.table.value_names})
        self.topology = self.table.table
        self.states = self.database.of(self.topology, "benchmark", Semantics.OPAQUE, [spec])
        self.database.ensure_framework_tables()
        self.states.join(first_run=True)
        self.versions = [0] * users
        self.txid = 0
        self.chance = random.Random(1)
        self.tuples, self.keeps = tuples, keeps
        self.commit(range(users))
        binding = StateBinding(
            StorePlace(url, 10.0, 600.0), self.topology, "benchmark", self.table, Semantics.OPAQUE,
            Semantics.OPAQUE, spec.reducers, is_read=True,
        )  # fmt: skip
        plan = plan_of(self.table, 2 * tuples if keeps else 0)
        self.plan = replace(plan, topology_id=self.topology, bindings={"named": {"users": binding}})
        self.process = WorkerProcess(self.plan)

    def commit(self, users: Sequence[int]) -> None:
        """Commit a batch that changes these users."""
        self.txid += 1
        for user in users:
            self.versions[user] += 1
        rows = rows_of(users, 0)
        names = [f"name {user} {self.versions[user]}" for user in users]
        deltas = rows.set_column(1, "name", pa.array(names, pa.string()))
        attempt = TransactionAttempt(Txid(self.txid), attempt_id(1, self.txid))
        self.states.commit(
            Commit(attempt, {"partitions": {}}, {self.table.table: deltas}, len(users), NOW, NOW)
        )

    def look_up(self, users: Sequence[int]) -> tuple[float, float]:
        """Look orders of these users up as the next batch would. Return its seconds of CPU and of time."""
        batch = pa.RecordBatch.from_pydict(
            {"user": [f"user {user}" for user in users], "amount": range(len(users))},
            schema=pa.schema([("user", pa.string()), ("amount", pa.int64())]),
        )
        chunks = [batch.slice(start, 10_000) for start in range(0, len(users), 10_000)]
        emitted: list[pa.RecordBatch] = []
        attempt = TransactionAttempt(Txid(self.txid + 1), attempt_id(1, self.txid + 1))
        cpu, started = time.process_time(), time.perf_counter()
        task = TaskRuntime(
            self.plan.bolt("named"), 0, 0, attempt, self.process,
            lambda _task, some, *_: emitted.append(some), Stopwatch(),
        )  # fmt: skip
        for chunk in chunks:
            task.receive(Chunk(chunk, "orders"))
        task.finish()
        taken = time.process_time() - cpu, time.perf_counter() - started
        found = [name for some in emitted for name in some.column(2).to_pylist()]
        if found != [f"name {user} {self.versions[user]}" for user in users]:
            raise SystemExit("a tuple got another row than its user's")
        return taken

    def measure(self, batches: int, per_user: int) -> tuple[float, float]:
        """Return the medians in tuples a CPU second and tuples a second."""
        users = self.chance.sample(range(len(self.versions)), self.tuples // per_user)
        found = []
        for number in range(batches + 1):
            orders = users * per_user
            self.chance.shuffle(orders)
            cpu, wall = self.look_up(orders)
            if number:  # the first one reads what the others keep
                found.append((len(orders) / cpu, len(orders) / wall))
            self.commit(self.chance.sample(users, len(orders) // 100))
        by_cpu, by_wall = zip(*found, strict=True)
        return statistics.median(by_cpu), statistics.median(by_wall)

    def close(self) -> None:
        self.process.close()
        self.database.delete(self.topology, drop_state=True)
        self.database.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--postgres", metavar="URL", help="a database that may be written to")
    parser.add_argument("--users", type=int, default=200_000, help="rows of the table")
    parser.add_argument("--tuples", type=int, default=50_000, help="of a batch")
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    here = parser.parse_args()
    figures: list[dict[str, Any]] = []
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=Path.cwd())))
        urls = {
            "postgresql": here.postgres or own_server(stack, folder),
            "sqlite": f"sqlite:///{folder}/s.db",
        }
        for name, url in urls.items():
            for keeps in (True, False):
                bench = Bench(url, here.users, here.tuples, keeps=keeps)
                stack.callback(bench.close)
                for per_user in (1, 10):
                    by_cpu, by_wall = bench.measure(here.batches, per_user)
                    figures.append(
                        {
                            "database": name,
                            "from": "kept" if keeps else "database",
                            "orders_per_user": per_user,
                            "per_cpu_second": round(by_cpu),
                            "per_second": round(by_wall),
                        }
                    )
    if here.json:
        print(json.dumps({**vars(here), "load_before": round(before, 1), "figures": figures}))
    else:
        for one in figures:
            print(
                f"{one['database']:10s} {one['from']:8s} {one['orders_per_user']:2d} orders a user: "
                f"{one['per_cpu_second']:9,d} tuples a CPU second, {one['per_second']:9,d} a second"
            )
        print(f"load before: {before:.1f}")
    kept = min(one["per_cpu_second"] for one in figures if one["from"] == "kept")
    read = min(
        one["per_second"] for one in figures if (one["database"], one["from"]) == ("postgresql", "database")
    )
    return int(kept < KEPT_TARGET or read < DATABASE_TARGET)


if __name__ == "__main__":
    sys.exit(main())
