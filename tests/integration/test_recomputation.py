"""Spark must get the same result when it computes something again: blocks dropped, executors killed or
frozen, messages in any order."""

from __future__ import annotations

import os
import pickle
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support import freezing
from support.dataframe_bolts import Lengths
from support.inmemory import attempt
from support.on_spark import (
    CommitWords,
    CountWords,
    NotedSource,
    Numbered,
    Words,
    captured,
    diamond,
    emissions,
    notes,
    ranges,
    state,
)
from support.recomputing import BATCH, TESTS, WIDTH, framed, held, outcome
from support.spark_standalone import SparkStandalone

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import PartitionUnavailableError
from txstream.core.waits import wait_until
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import Element
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.testing import InProcessRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def without_spark(plan: ExecutionPlan, runner: type[InProcessRunner] = InProcessRunner) -> tuple[Any, ...]:
    here = runner(plan, width=WIDTH)
    result = here.run(attempt(1), BATCH)
    return outcome(result, here.commit(attempt(1), result))


# --- messages in another order -------------------------------------------------------------------------


class OutOfOrder(InProcessRunner):
    """Hands messages over in another order at every exchange."""

    random = random.Random(0)

    def exchange(self, elements: list[Element], width: int) -> list[list[bytes]]:
        inboxes = super().exchange(elements, width)
        for inbox in inboxes:
            self.random.shuffle(inbox)
        return inboxes


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_messages_come_changes_nothing(unique: str, seed: int) -> None:
    plan = captured(diamond(), unique)
    OutOfOrder.random = random.Random(seed)
    assert without_spark(plan, OutOfOrder) == without_spark(plan)


# --- blocks dropped ------------------------------------------------------------------------------------


def drop_everything(spark: SparkSession) -> None:
    for rdd in dict(spark.sparkContext._jsc.getPersistentRDDs()).values():
        rdd.unpersist(True)


def test_what_was_dropped_between_the_phases_is_computed_again(spark: SparkSession, unique: str) -> None:
    runner = SparkRunner(spark.sparkContext, captured(diamond(), unique), spark, width=WIDTH)
    try:
        result = runner.run(attempt(1), BATCH)
        drop_everything(spark)
        committed = runner.commit(attempt(1), result)
        runner.release(result)
    finally:
        runner.close()
    assert outcome(result, committed) == without_spark(captured(diamond(), unique))


def one_stage(file: Path) -> Topology:
    """There is no exchange before the commit phase, so recomputation begins with the source."""
    source = NotedSource(file=file)
    builder = TransactionalTopologyBuilder("again", "lines", OpaqueSpout(source), 2)
    builder.set_bolt("split", Words(), 2).local_or_shuffle_grouping("lines")
    builder.set_committer_bolt("commit", CommitWords(), 2).fields_grouping("split", "word")
    builder.set_bolt("number", Numbered()).global_grouping("commit")
    store = SqlStateBolt(state("words"), n=Count())
    builder.set_committer_bolt("store", store).fields_grouping("number", "word")
    return builder.build()


def test_a_commit_that_reads_again_reads_the_ranges_of_its_own_attempt(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    """Another batch was processed in the meantime, by the same thread."""
    file = tmp_path / "read"
    first, second = ranges(a=20, b=10), ranges(c=35)
    plan = captured(one_stage(file), unique)
    runner = SparkRunner(spark.sparkContext, plan, spark, width=2)
    try:
        results = {1: runner.run(attempt(1), first), 2: runner.run(attempt(2), second)}
        read = sorted(words[:5] for words in notes(file))
        drop_everything(spark)
        committed = {txid: runner.commit(attempt(txid), result) for txid, result in results.items()}
        for result in results.values():
            runner.release(result)
    finally:
        runner.close()
    assert [words[0] for words in read] == ["1", "1", "2"]
    assert sorted(words[:5] for words in notes(file)) == sorted(read * 2)
    without = InProcessRunner(plan, width=2)
    for txid, batch in ((1, first), (2, second)):
        expected = without.run(attempt(txid), batch)
        assert emissions(results[txid]) == emissions(expected)
        assert emissions(committed[txid]) == emissions(without.commit(attempt(txid), expected))


@pytest.mark.parametrize("frame", [False, True], ids=["bolt", "dataframe"])
def test_what_cannot_be_read_again_is_told_as_what_it_is(
    spark: SparkSession, tmp_path: Path, unique: str, frame: bool
) -> None:
    """An outage is waited for and the batch replayed; reported as a bug in a bolt, it would end the run."""
    away = tmp_path / "away"
    builder = TransactionalTopologyBuilder("away", "lines", OpaqueSpout(NotedSource(away=away)), 2)
    builder.set_bolt("split", Words(), 2).local_or_shuffle_grouping("lines")
    if frame:
        builder.set_bolt("above", Lengths()).shuffle_grouping("split")
    else:
        builder.set_bolt("above", CountWords(), 2).local_or_shuffle_grouping("split")
    builder.set_committer_bolt("commit", CommitWords()).fields_grouping("above", "word")
    plan = captured(builder.build(), unique)
    runner = SparkRunner(spark.sparkContext, plan, spark, width=2)
    try:
        result = runner.run(attempt(1), BATCH)
        drop_everything(spark)
        away.touch()
        with pytest.raises(PartitionUnavailableError) as caught:
            runner.commit(attempt(1), result)
        runner.release(result)
    finally:
        runner.close()
    said = r"txid 1 attempt 1\.1, component 'lines': partition '[abc]' is away"
    assert re.fullmatch(said, str(caught.value))


def test_what_a_dataframe_reads_and_what_it_computed_is_computed_again(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    runner = SparkRunner(spark.sparkContext, captured(framed(tmp_path), unique), spark, width=WIDTH)
    found = []
    try:
        for txid in (1, 2):
            result = runner.run(attempt(txid), BATCH)
            if txid == 2:
                drop_everything(spark)
            committed = runner.commit(attempt(txid), result)
            runner.release(result)
            found.append(outcome(result, committed))
    finally:
        runner.close()
    assert found[0] == found[1]
    assert {name for name, _, _ in found[0][2]} >= {"count", "spread", "again", "late"}


# --- executors killed ----------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.timeout(360)
def test_executors_frozen_and_killed_while_a_batch_is_worked_on_between_its_phases_and_while_it_is_written(
    cluster: SparkStandalone, tmp_path: Path, unique: str, postgres_url: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    driver = subprocess.run(
        [sys.executable, "-m", "support.recomputing", cluster.url, tmp_path, postgres_url],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    results = pickle.loads((tmp_path / "results").read_bytes())
    # The frozen executor woke when its successor had long been committed.
    frozen = results["frozen"]
    assert frozen["states"] == ["failed", "committed"]
    assert frozen["zombie"] == ["StaleAttemptError"]
    assert frozen["table"] == freezing.TOTAL
    assert results["killed while it works"] == without_spark(captured(held(tmp_path), unique))
    assert results["all killed between"] == without_spark(captured(diamond(), unique))
    assert results["one killed between"] == results["undisturbed"]
    # Other executors wrote the shares again under the same attempt: every row counts them once.
    written = results["killed while they write"]
    assert written["rows"] == [(2, 1, 2, 300)]
    assert [row[2:] for row in written["ledger"]] == 2 * [("committed", 300)]
    assert results["persisted"] == 0
    emitted, _, _ = results["killed while it works"]
    held_back = sum(len(rows) for (name, _, _), rows in emitted.items() if name == "hold")
    assert len(notes(tmp_path / "began")) > held_back, "no bolt was interrupted"
    ranges_planned = {(name, str(meta.start), str(meta.end)) for name, meta in BATCH.partitions.items()}
    for name, attempts in (("held", 1), ("diamond", 1), ("framed", 2)):
        read = [words[:5] for words in notes(tmp_path / f"read-{name}")]
        assert {tuple(words[2:]) for words in read} == ranges_planned, "another range was read"
        assert len({tuple(words[:2]) for words in read}) == attempts
        if name == "diamond":
            assert len(read) >= 2 * len(ranges_planned), "not all was read again"
    # The driver has stopped its executors in good order, so what was open in them is closed.
    assert results["open at the end"]
    assert wait_until(lambda: results["open at the end"] <= closed(tmp_path), 60)


def closed(folder: Path) -> set[str]:
    return {pid for what, _, pid in notes(folder / "opened") if what == "close"}
