"""Graphs of bolts on Spark: what they compute, how often, in how many stages, and what they leave behind."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.inmemory import attempt
from support.on_spark import (
    CommitterFailsOn,
    CommitWords,
    FailsOn,
    Holds,
    NotedSource,
    NotesPool,
    Opens,
    Same,
    Slow,
    Words,
    captured,
    deltas,
    diamond,
    dies,
    emissions,
    notes,
    noting,
    ranges,
    row_of,
    state,
    task_counts,
    tracker,
    wait_for,
)

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import BoltError, TxstreamError
from txstream.core.waits import wait_until
from txstream.engine.batch.edge_counts import EdgeName
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.spark.session import COMMIT_POOL, PROCESSING_POOL
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.testing import InProcessRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = ranges(a=170, b=60, c=1)


@contextmanager
def runner_of(spark: SparkSession, plan: ExecutionPlan, width: int | None = None) -> Iterator[SparkRunner]:
    runner = SparkRunner(spark.sparkContext, plan, spark, width=width)
    try:
        yield runner
    finally:
        runner.close()


def persisted(spark: SparkSession) -> int:
    return len(spark.sparkContext._jsc.getPersistentRDDs())


@pytest.mark.parametrize("width", [1, 2, 4])
def test_a_graph_gives_what_it_gives_without_spark(
    spark: SparkSession, tmp_path: Path, unique: str, width: int
) -> None:
    topology = diamond(tmp_path / "executed")
    plan = captured(topology, unique)
    without = InProcessRunner(captured(diamond(), unique), width=width)
    expected = without.run(attempt(1), BATCH)
    expected_commit = without.commit(attempt(1), expected)
    with runner_of(spark, plan, width) as runner:
        result = runner.run(attempt(1), BATCH)
        committed = runner.commit(attempt(1), result)
        runner.release(result)
    assert result.width == expected.width == width
    assert emissions(result) == emissions(expected)
    assert emissions(committed) == emissions(expected_commit)
    assert {component for component, _, _ in emissions(result, committed)} == {
        *("lines", "split", "left", "right", "both", "chosen", "spread", "middle", "every", "end")
    }
    assert deltas(result) == deltas(expected)
    assert deltas(committed) == deltas(expected_commit)
    assert set(deltas(result)) == {"early"}
    assert set(deltas(committed)) == {"late"}
    assert task_counts(result) == task_counts(expected)
    assert task_counts(committed) == task_counts(expected_commit)
    assert result.crossing == expected.crossing
    for name in ("edges", "sending_ns", "taking_ns"):
        assert getattr(result, name).keys() == getattr(expected, name).keys()
        assert getattr(committed, name).keys() == getattr(expected_commit, name).keys()
    split_again = EdgeName("both", "left", "default")  # in another Spark task, unless there is one
    assert (split_again in result.sending_ns) == (split_again in result.taking_ns) == (width > 1)
    # Four bolts read `split`, and the commit phase comes after it: even so, each line was split once.
    executed = notes(tmp_path / "executed")
    assert len(executed) == 231
    assert sum(n for (name, _, _), n in task_counts(result).items() if name == "split") == 231


def test_a_slow_bolt_gets_more_spark_tasks_from_its_second_batch_on(spark: SparkSession, unique: str) -> None:
    """40 records are worth one Spark task, but 400 ms are worth more."""
    batch = ranges(a=20, b=20)
    with runner_of(spark, captured(row_of([Slow()]), unique)) as runner:
        widths = [runner.run(attempt(txid), batch).width for txid in (1, 2)]
    assert widths == [1, 2]


def test_batches_in_flight_do_not_mix(spark: SparkSession, unique: str) -> None:
    """Several threads share a runner, and with it the RDD that is built once per width."""
    plan = captured(row_of([Same()]), unique)
    batches = {txid: ranges(**{f"p{txid}": 20 * txid}) for txid in range(1, 7)}
    found: dict[int, Any] = {}
    with runner_of(spark, plan) as runner:

        def process(txid: int) -> None:
            found[txid] = emissions(runner.run(attempt(txid), batches[txid]))

        threads = [threading.Thread(target=process, args=(txid,)) for txid in batches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    without = InProcessRunner(plan)
    assert found == {txid: emissions(without.run(attempt(txid), batches[txid])) for txid in batches}


def test_eight_bolts_in_a_chain_are_one_stage_and_one_call_of_python(
    spark: SparkSession, unique: str
) -> None:
    context = spark.sparkContext
    context.setJobGroup(unique, "the chain")
    with runner_of(spark, captured(row_of([Same() for _ in range(7)]), unique), 2) as runner:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        result = runner.run(attempt(1), BATCH)
        found = tracker(context)
        (job,) = found.getJobIdsForGroup(unique)
        info = found.getJobInfo(job)
        lineage = runner._simple[2].toDebugString()
    assert info is not None
    assert len(info.stageIds) == 1
    assert lineage is not None
    assert lineage.count(b"PythonRDD[") == 1
    assert b"Shuffle" not in lineage
    assert {component for component, _, _ in task_counts(result)} == {
        *("lines", "words", "store"),
        *(f"b{position}" for position in range(7)),
    }
    assert {place.slot for place in result.places} == {0, 1}


def committing(*bolts: Any, committer: Any = None) -> Topology:
    """lines, words, the bolts by shuffle, a committer and a state below it: words cross twice."""
    builder = TransactionalTopologyBuilder("committing", "lines", OpaqueSpout(NotedSource()), 2)
    builder.set_bolt("words", Words(), 2).shuffle_grouping("lines")
    above = "words"
    for position, bolt in enumerate(bolts):
        builder.set_bolt(f"b{position}", bolt, 2).shuffle_grouping(above)
        above = f"b{position}"
    builder.set_committer_bolt("commit", committer or CommitWords(), 2).fields_grouping(above, "word")
    store = SqlStateBolt(state("words"), n=Sum("n"))
    builder.set_committer_bolt("store", store).fields_grouping("commit", "word")
    return builder.build()


def test_nothing_stays_persisted_after_release(spark: SparkSession, unique: str) -> None:
    with runner_of(spark, captured(committing(), unique), 2) as runner:
        first, second = (runner.run(attempt(txid), BATCH) for txid in (1, 2))
        assert persisted(spark) == 2
        runner.commit(attempt(1), first)
        runner.release(first)
        assert persisted(spark) == 1
        runner.release(second)  # superseded: it is never committed
        assert persisted(spark) == 0


def test_nothing_stays_persisted_when_a_runner_is_closed(spark: SparkSession, unique: str) -> None:
    """A run that ends does not release the batches that it has not committed."""
    runner = SparkRunner(spark.sparkContext, captured(committing(), unique), spark)
    runner.run(attempt(1), BATCH)
    assert persisted(spark) == 1
    runner.close()
    assert persisted(spark) == 0


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_error_in_processing_names_component_task_and_tuple(
    spark: SparkSession, unique: str, kind: type[BaseException]
) -> None:
    with runner_of(spark, captured(committing(FailsOn("w3", error=kind)), unique), 2) as runner:
        with pytest.raises(BoltError) as caught:
            runner.run(attempt(7, 2), BATCH)
        assert persisted(spark) == 0
    message = str(caught.value)
    assert message.startswith("txid 7 attempt 1.2, component 'b0', task ")
    assert f"{kind.__name__}: no w3 here (in on_spark.py, line " in message
    assert message.endswith("while processing Tuple(word='w3')")
    (trace,) = caught.value.__notes__
    assert 'raise self.error(f"no {self.word} here")' in trace
    assert "txstream/engine" not in trace


def test_an_error_in_the_commit_phase_names_component_task_and_tuple(
    spark: SparkSession, unique: str
) -> None:
    with runner_of(spark, captured(committing(committer=CommitterFailsOn("w3")), unique), 2) as runner:
        result = runner.run(attempt(7), BATCH)
        with pytest.raises(BoltError) as caught:
            runner.commit(attempt(7), result)
        runner.release(result)
        assert persisted(spark) == 0
    message = str(caught.value)
    assert message.startswith("txid 7 attempt 1.1, component 'commit', task ")
    assert "KeyError: 'w3' (in on_spark.py, line " in message
    assert message.endswith("while processing Tuple(word='w3')")
    (trace,) = caught.value.__notes__
    assert "raise KeyError(self.word)" in trace


def test_a_cancelled_attempt_ends_and_leaves_nothing(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    ended: list[BaseException] = []
    with runner_of(spark, captured(committing(Holds(began, gate)), unique), 2) as runner:

        def process() -> None:
            try:
                runner.run(attempt(1), BATCH)
            except TxstreamError as error:
                ended.append(error)

        thread = threading.Thread(target=process)
        thread.start()
        wait_for(began)
        runner.cancel(attempt(1))
        thread.join(60)
        assert not thread.is_alive()
        assert persisted(spark) == 0
        gate.touch()
        # The same batch under another attempt, while Spark may still be ending the tasks of the first.
        again = runner.run(attempt(1, 2), BATCH)
        runner.release(again)
        assert again.records == 231
    (error,) = ended
    assert isinstance(error, BoltError)
    assert "txid 1 attempt 1.1" in str(error)
    assert "cancelled" in str(error)


def test_an_attempt_cancelled_between_its_jobs_begins_no_other(spark: SparkSession, unique: str) -> None:
    with runner_of(spark, captured(committing(), unique), 2) as runner:
        result = runner.run(attempt(1), BATCH)
        runner.cancel(attempt(1))
        with pytest.raises(TxstreamError, match=r"txid 1 attempt 1\.1 was cancelled"):
            runner.commit(attempt(1), result)
        runner.release(result)


def test_a_worker_process_that_dies_fails_the_attempt(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    """`local[2]` does not run a failed Spark task again; a cluster would."""
    source = NotedSource(rows=dies, file=tmp_path / "read")
    with runner_of(spark, captured(diamond(source=source), unique), 1) as runner:
        with pytest.raises(BoltError, match=r"txid 1 attempt 1\.1: its worker process ended; it was killed"):
            runner.run(attempt(1), BATCH)
        assert persisted(spark) == 0


def test_a_worker_process_opens_a_bolts_resource_once_per_run(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for run, file in (("1", first), ("2", second)):
        with runner_of(spark, captured(row_of([Opens(file)]), unique + run), 2) as runner:
            for txid in range(1, 6):
                assert runner.run(attempt(txid), BATCH).records == 231
    for file in (first, second):
        opened = [pid for what, _, pid in notes(file) if what == "open"]
        assert opened
        assert len(opened) == len(set(opened)), "a process opened it twice"
    # A process that got the second run's plan has closed what the first run had opened there, and only that.
    closed = [pid for what, _, pid in notes(first) if what == "close"]
    reused = {pid for _, _, pid in notes(first)} & {pid for _, _, pid in notes(second)}
    assert reused
    assert sorted(closed) == sorted(reused)
    assert all(resource == pid for what, resource, pid in notes(first) if what == "close")
    assert not [what for what, _, _ in notes(second) if what == "close"]


def test_each_phase_runs_in_its_pool(spark: SparkSession, tmp_path: Path, unique: str) -> None:
    noted = tmp_path / "pools"
    builder = TransactionalTopologyBuilder("pools", "lines", OpaqueSpout(NotedSource()))
    builder.set_bolt("words", Words()).shuffle_grouping("lines")
    builder.set_bolt("early", NotesPool(noted)).shuffle_grouping("words")
    builder.set_committer_bolt("late", NotesPool(noted)).shuffle_grouping("early")
    with runner_of(spark, captured(builder.build(), unique)) as runner:
        result = runner.run(attempt(1), BATCH)
        runner.commit(attempt(1), result)
        runner.release(result)
    assert notes(noted) == [["early", PROCESSING_POOL], ["late", COMMIT_POOL]]


def test_a_thread_keeps_its_own_pool_and_tags(spark: SparkSession, unique: str) -> None:
    """Pool and tags of an attempt end with it: the user's next job runs in the user's pool, without them."""
    context = spark.sparkContext
    context.setLocalProperty("spark.scheduler.pool", "mine")
    context.addJobTag("mine")
    try:
        with runner_of(spark, captured(row_of([Same()]), unique)) as runner:
            runner.run(attempt(1), BATCH)
            assert context.getLocalProperty("spark.scheduler.pool") == "mine"
            assert set(context.getJobTags()) == {"mine"}
            runner.run(attempt(2), BATCH)
    finally:
        context.removeJobTag("mine")
        context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # removes it


def test_tasks_of_a_commit_go_before_those_of_processing(spark: SparkSession, tmp_path: Path) -> None:
    """Both cores are busy and tasks of processing wait; then a commit comes, and gets the cores next."""
    context = spark.sparkContext
    began, gate, gate_of_commit = tmp_path / "began", tmp_path / "gate", tmp_path / "commit"

    def job(pool: str, tasks: int, opens: Path) -> None:
        context.setLocalProperty("spark.scheduler.pool", pool)
        work = functools.partial(noting, began, pool, opens)
        context.parallelize(range(tasks), tasks).mapPartitionsWithIndex(work).collect()

    def submitted(pool: str) -> int:
        """Return how many stages have tasks at the scheduler, running or waiting."""
        found = context._jsc.sc().getPoolForName(pool)
        return 0 if found.isEmpty() else int(found.get().schedulableQueue().size())

    waiting = [threading.Thread(target=job, args=(PROCESSING_POOL, 4, gate)) for _ in range(2)]
    commit = threading.Thread(target=job, args=(COMMIT_POOL, 2, gate_of_commit))
    for thread in waiting:
        thread.start()
    wait_for(began, 2)
    assert wait_until(lambda: submitted(PROCESSING_POOL) == 2, 60)
    commit.start()
    assert wait_until(lambda: submitted(COMMIT_POOL) == 1, 60)
    gate.touch()
    wait_for(began, 4)
    gate_of_commit.touch()
    for thread in (commit, *waiting):
        thread.join(60)
    order = [pool for pool, _ in notes(began)]
    assert order == [*[PROCESSING_POOL] * 2, *[COMMIT_POOL] * 2, *[PROCESSING_POOL] * 6]
