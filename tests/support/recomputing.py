"""A driver on a cluster whose executors it kills: `python -m support.recomputing MASTER FOLDER POSTGRES`.

It leaves the results of its batches in FOLDER/results, for the test to compare. It freezes an executor that
is about to write into the database POSTGRES, a SQLAlchemy URL. It kills executors: one while a bolt works in
it; between the phases all of them, and one that has a part of the batch; and all while they write.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from sqlalchemy import make_url

from support.commit_paths import counting, word_source
from support.dataframe_bolts import CountRows
from support.freezing import freeze_an_executor
from support.inmemory import attempt
from support.on_spark import (
    CommitWords,
    Holds,
    NotedSource,
    Numbered,
    Opens,
    Words,
    captured,
    deltas,
    diamond,
    emissions,
    notes,
    ranges,
    state,
    task_counts,
    wait_for,
)
from support.runs import QUICK_JVM
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import Encoded
from txstream.core.digests import digest_of
from txstream.core.waits import wait_until
from txstream.engine.batch.runner_contract import NOTHING, BatchResult
from txstream.engine.commit.committer import (
    BatchCommitter,
    Committing,
    ProcessedBatch,
    StateDeltas,
    state_targets,
)
from txstream.engine.spark.session import create_context
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.state import open_database

BATCH = ranges(a=170, b=60, c=1)
WIDTH = 3
TESTS = Path(__file__).resolve().parents[1]


def held(folder: Path) -> Topology:
    """Words to a bolt that waits for a gate, to a committer, to a state."""
    source = NotedSource(file=folder / "read-held")
    builder = TransactionalTopologyBuilder("held", "lines", OpaqueSpout(source), WIDTH)
    builder.set_bolt("split", Words(), WIDTH).shuffle_grouping("lines")
    hold = Holds(folder / "began", folder / "gate")
    builder.set_bolt("hold", hold, WIDTH).local_or_shuffle_grouping("split")
    builder.set_bolt("number", Numbered(), 2).fields_grouping("hold", "word")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("number", "word")
    store = SqlStateBolt(state("words"), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("commit", "word")
    return builder.build()


def framed(folder: Path) -> Topology:
    """A DataFrame with a shuffle before the commit phase and another one in it. After the first, rows are
    spread evenly, by their order."""
    source = NotedSource(file=folder / "read-framed")
    builder = TransactionalTopologyBuilder("framed", "lines", OpaqueSpout(source), WIDTH)
    builder.set_bolt("split", Words(), WIDTH).shuffle_grouping("lines")
    builder.set_bolt("open", Opens(folder / "opened"), WIDTH).shuffle_grouping("split")
    builder.set_bolt("count", CountRows()).shuffle_grouping("open")
    builder.set_bolt("spread", Numbered(), 3).shuffle_grouping("count")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("spread", "word")
    builder.set_bolt("again", CountRows()).shuffle_grouping("commit")
    builder.set_bolt("late", Numbered(), 3).shuffle_grouping("again")
    store = SqlStateBolt(state("words"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("late", "word")
    return builder.build()


def outcome(*results: BatchResult) -> tuple[Any, ...]:
    return emissions(*results), deltas(*results), task_counts(*results)


def executor_of(worker: str) -> psutil.Process:
    """Return the JVM of a worker; a worker is named by its Python daemon."""
    executor = psutil.Process(int(worker.rsplit(":", 1)[1])).parent()
    assert executor is not None
    return executor


def kill(workers: Iterable[str]) -> None:
    for executor in {executor_of(worker) for worker in workers}:
        executor.send_signal(signal.SIGKILL)
        executor.wait(60)


def both_phases(
    runner: SparkRunner, txid: int, between: Callable[[BatchResult], None] = lambda _: None
) -> tuple[Any, ...]:
    result = runner.run(attempt(txid), BATCH)
    between(result)
    committed = runner.commit(attempt(txid), result)
    runner.release(result)
    return outcome(result, committed)


def kill_one(result: BatchResult) -> None:
    """Kill the executor that ran the last of the processed bolts: it has at least a part of what crosses."""
    kill([result.places[-1].worker])


def kill_all(result: BatchResult) -> None:
    kill({place.worker for place in result.places})


def kill_while_it_works(runner: SparkRunner, folder: Path) -> tuple[Any, ...]:
    found: list[tuple[Any, ...]] = []
    thread = threading.Thread(target=lambda: found.append(both_phases(runner, 1)))
    thread.start()
    wait_for(folder / "began", 1)
    daemon = psutil.Process(int(notes(folder / "began")[0][0])).ppid()
    kill([f"here:{daemon}"])
    (folder / "gate").touch()
    thread.join(120)
    return found[0]


def kill_while_they_write(runner: SparkRunner, url: str) -> dict[str, Any]:
    """Commit a word's deltas twice. The second time a stranger blocks one share, and all executors are killed
    before it is free. Return what the table and the ledger have then."""
    topology = counting(word_source(), tables=["counts"], commit="executors")
    (target,) = state_targets(topology, url, open_database)
    database = target.database
    database.ensure_framework_tables()
    database.of("paths", "uuid", topology.semantics, target.tables).join(first_run=True)
    committer = BatchCommitter(topology, "uuid", [target], wait_for=lambda _, check: check())
    words = [f"w{number}" for number in range(300)]
    table = pa.table({"word": words, "n": pa.array([1] * len(words), pa.int64())})
    deltas = {"counts": StateDeltas(table, digest_of(table, ["word"]))}
    workers = {place.worker for place in runner.run(attempt(1), BATCH).places}

    def commit(txid: int) -> None:
        now = datetime.now(UTC)
        batch = ProcessedBatch(NOTHING, {}, now, now, None)
        one = Committing(attempt(txid, txid), Encoded(), batch, lambda _: None)
        committer.commit(one, deltas, write=runner.write)

    parts = make_url(url)
    server: dict[str, Any] = {"host": str(parts.query["host"]), "user": "postgres"}
    # The onlooker must not be the stranger: inside a transaction pg_stat_activity keeps showing the sessions
    # that there were when it was first asked.
    with (
        psycopg.connect(**server, dbname=parts.database) as stranger,
        psycopg.connect(**server, autocommit=True) as onlooker,
    ):
        commit(1)
        stranger.execute("SELECT n FROM counts WHERE word = 'w7' FOR UPDATE")
        thread = threading.Thread(target=commit, args=(2,))
        thread.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        assert wait_until(lambda: onlooker.execute(waiting, [parts.database]).fetchone() is not None, 60)
        kill(workers)
        stranger.commit()
        thread.join(120)
        rows = stranger.execute("SELECT n, prev_n, txid, count(*) FROM counts GROUP BY 1, 2, 3").fetchall()
    ledger = [(row.txid, row.attempt, row.status, row.keys) for row in database.batches("paths")]
    database.close()
    return {"rows": rows, "ledger": ledger}


def main(master: str, folder: Path, postgres: str) -> None:
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
    results: dict[str, Any] = {}
    # The driver is one of the three. An executor that comes later would ask the frozen one for the plan.
    assert wait_until(lambda: len(context._jsc.sc().statusTracker().getExecutorInfos()) == 3, 60)
    session: Any = SimpleNamespace(sparkContext=context)  # a real one takes two seconds more
    (folder / "frozen").mkdir()
    results["frozen"] = freeze_an_executor(session, folder / "frozen", postgres)
    runner = SparkRunner(context, captured(held(folder), "held"), width=WIDTH)
    results["killed while it works"] = kill_while_it_works(runner, folder)
    runner.close()
    source = NotedSource(file=folder / "read-diamond")
    runner = SparkRunner(context, captured(diamond(source=source), "diamond"), width=WIDTH)
    results["all killed between"] = both_phases(runner, 1, kill_all)
    runner.close()
    runner = SparkRunner(context, captured(diamond(), "writing"), width=WIDTH)
    results["killed while they write"] = kill_while_they_write(runner, postgres)
    runner.close()
    runner = SparkRunner(context, captured(framed(folder), "framed"), width=WIDTH)
    results["undisturbed"] = both_phases(runner, 1)
    results["one killed between"] = both_phases(runner, 2, kill_one)
    runner.close()
    results["persisted"] = len(context._jsc.getPersistentRDDs())
    opened = {pid for what, _, pid in notes(folder / "opened") if what == "open"}
    results["open at the end"] = {pid for pid in opened if psutil.pid_exists(int(pid))}
    (folder / "results").write_bytes(pickle.dumps(results))
    context.stop()


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
