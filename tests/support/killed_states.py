"""A driver on a cluster whose executors die when their tasks have written: `python -m support.killed_states
MASTER FOLDER`.

A committer adds up amounts in a state with a cache. Below it, in the same Spark task, a bolt kills its
executor once. The committer's rows are in the database by then, and Spark runs the task again elsewhere under
the same attempt. The table as it is after each batch is left in FOLDER/tables.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from support.inmemory import CONTEXT, Range, attempt
from support.on_spark import NotedSource, note
from support.runs import QUICK_JVM
from txstream.api.bolts import BatchBolt, Committer, OutputCollector, TopologyContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.core.batch_metas import BatchMetas
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import compile_topology
from txstream.engine.commit.state_targets import map_bindings, state_targets
from txstream.engine.spark.session import create_context
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.state import Commit, open_database

TESTS = Path(__file__).resolve().parents[1]
TXIDS = 4
ROWS = 40
"""Rows of each of two partitions in each batch."""
KILLED = 2
FAILED = 3
"""The driver gives up the first attempt of this txid after all of its tasks have written."""

UUID = "0" * 32
BALANCES = SqlState("balances", key="account string", value="balance bigint", cache_rows=100)


def movement(partition: str, number: int) -> tuple[Any, ...]:
    return (f"{partition}{number % 7}", number)


def held_by(txid: int, part: int = ROWS) -> dict[str, Range]:
    start = (txid - 1) * ROWS
    return {partition: Range(start, start + part) for partition in ("a", "b")}


def expected(txid: int) -> dict[str, int]:
    """Return the balances after a batch."""
    balances: defaultdict[str, int] = defaultdict(int)
    for partition in ("a", "b"):
        for number in range(txid * ROWS):
            account, amount = movement(partition, number)
            balances[account] += amount
    return dict(balances)


class Adds(BatchBolt, Committer):
    output = "account string, balance bigint"
    states = {"balances": BALANCES}  # noqa: RUF012 - as a user would write it

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self.amounts: defaultdict[str, int] = defaultdict(int)

    def execute(self, tup: Tuple) -> None:
        self.amounts[tup["account"]] += tup["amount"]

    def finish_batch(self) -> None:
        note(self.notes, self.batch_id.txid, self.batch_id.attempt, self.context.task_index, os.getpid())
        added = [lambda old, more=more: (old or 0) + more for more in self.amounts.values()]
        balances = self.context.state("balances").multi_update(list(self.amounts), added)
        for row in zip(self.amounts, balances, strict=True):
            self.collector.emit(row)


class Kills(BatchBolt):
    """Stands below the committer, whose task has written by the time this bolt's `finish_batch` runs."""

    output = "account string"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def execute(self, tup: Tuple) -> None: ...

    def finish_batch(self) -> None:
        txid = self.batch_id.txid
        if txid != KILLED or self.context.task_index != 1:
            return
        try:
            (self.folder / "killed").touch(exist_ok=False)
        except FileExistsError:
            return
        executor = psutil.Process(os.getppid()).parent()
        assert executor is not None
        executor.send_signal(signal.SIGKILL)


def bank(folder: Path) -> Topology:
    source = NotedSource(movement, "account string, amount bigint")
    builder = TransactionalTopologyBuilder("bank", "lines", OpaqueSpout(source), 2)
    builder.set_bolt("adds", Adds(folder / "adds"), 2).fields_grouping("lines", "account")
    builder.set_bolt("kills", Kills(folder), 2).local_or_shuffle_grouping("adds")
    return builder.build()


def main(master: str, folder: Path) -> None:
    topology = bank(folder)
    (target,) = state_targets(topology, f"sqlite:///{folder / 'state.db'}", open_database)
    database, tables = target.database, target.tables
    database.ensure_framework_tables()
    database.of("bank", UUID, topology.semantics, tables).join(first_run=True)
    context = create_context(
        master=master,
        conf={
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.executorEnv.PYTHONPATH": str(TESTS),
        },
        log_file=folder / "spark.log",
    )
    plan = compile_topology(topology, CONTEXT, "bank", bindings=map_bindings(topology, UUID, [target]))
    runner = SparkRunner(context, plan, width=2)
    before: TransactionAttempt | None = None
    now = datetime.now(UTC)

    def commit(txid: int, sequence: int, metas: dict[str, Range], *, ends: bool = True) -> None:
        nonlocal before
        mine = attempt(txid, sequence)
        processed = runner.run(mine, BatchMetas(metas))
        document = Commit(mine, {}, {}, processed.records, now, now)
        database.of("bank", UUID, topology.semantics, tables).begin_commit(document)
        finished = runner.commit(mine, processed, before)
        runner.release(processed)
        if ends:
            database.of("bank", UUID, topology.semantics, tables).end_commit(document, keys=finished.written)
            before = mine

    found = []
    for txid in range(1, TXIDS + 1):
        if txid == FAILED:
            commit(txid, 10 * txid, held_by(txid, part=ROWS // 2), ends=False)
        commit(txid, 10 * txid + 1, held_by(txid))
        rows = database.top("balances", topology="bank", n=1000)
        found.append({row["account"]: row["balance"] for row in rows})
    runner.close()
    context.stop()
    database.close()
    (folder / "tables").write_text(json.dumps(found))


def attempts_of(notes: Iterable[list[str]], txid: int) -> dict[tuple[str, str], set[str]]:
    """Return the processes in which the committer's tasks ended, by attempt and task."""
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for noted, attempt_id, task, pid in notes:
        if noted == str(txid):
            found[attempt_id, task].add(pid)
    return dict(found)


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main(sys.argv[1], Path(sys.argv[2]))
