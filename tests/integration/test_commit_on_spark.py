"""Commits from Spark's executors into PostgreSQL, with processes that are killed or frozen in the middle of a
share."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from postgres import PostgresServer
from support.commit_paths import BY_EXECUTORS, PATHS, check, counted, counting, ledger, paths, word_files
from support.freezing import TOTALS, Places, frozen, holding_in_its_share
from support.inmemory import attempt
from support.on_spark import captured, diamond
from support.storm import states

from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.core.errors import BatchFailedError, BatchTimeoutError, BoltError
from txstream.core.waits import wait_until
from txstream.engine.spark import spark_runner
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.testing import AttemptState, TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def python_workers() -> list[psutil.Process]:
    """Return the Python processes that run Spark's tasks here: children of Spark's daemon."""
    workers = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            if any("daemon" in word for word in process.cmdline()):
                workers += process.children()
    return workers


@contextmanager
def holding(
    postgres: PostgresServer, database: str, table: str, word: str
) -> Iterator[psycopg.Connection[Any]]:
    """Hold the row of a word in a stranger's transaction, so that the share with it gets no further."""
    with psycopg.connect(host=str(postgres.data), user="postgres", dbname=database) as connection:
        found = connection.execute(f"SELECT n FROM {table} WHERE word = %s FOR UPDATE", [word]).fetchall()
        assert found, f"{word!r} is not there yet"
        yield connection


def waiting(postgres: PostgresServer, database: str) -> int:
    """Return how many transactions wait for a lock."""
    with psycopg.connect(host=str(postgres.data), user="postgres") as connection:
        found = connection.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", [database]
        )
        return len(found.fetchall())


def test_a_worker_that_is_killed_in_the_middle_of_its_share_costs_an_attempt(
    spark: SparkSession, postgres: PostgresServer, postgres_url: str, unique: str, tmp_path: Path
) -> None:
    """The run takes both paths. Two of the three shares are written when the third one's task dies."""
    with ThreadPoolExecutor(1) as helper:
        topology = counting(word_files(tmp_path / "words"), OpaqueSpout, **PATHS["mixed"])
        with TopologyTest(topology, spark=spark, database=postgres_url) as test:
            test.commit(2)
            with holding(postgres, unique, "counts", "ash") as stranger:

                def kill_when_it_waits() -> None:
                    try:
                        assert wait_until(lambda: waiting(postgres, unique) == 1, 60)
                        for worker in python_workers():
                            worker.send_signal(signal.SIGKILL)
                    finally:
                        stranger.rollback()

                killed = helper.submit(kill_when_it_waits)
                test.commit(3)
                killed.result()
            # Idle workers were killed too; Spark notices only when it gives them a task.
            *failed, last = states(test, 3)
            assert set(failed) == {AttemptState.FAILED}
            assert last is AttemptState.COMMITTED
            assert isinstance(test.attempts(3)[0].error, BoltError)
            test.run()
            check(test, counted())
            rows = ledger(postgres_url)
            assert len(rows[2].details["attempts"]) == len(failed)
            by_executors = list(BY_EXECUTORS["mixed"])
            by_executors[2] = False  # after the failure there, the driver commits it
            assert paths(postgres_url) == ["executors" if way else "driver" for way in by_executors]
            timings = rows[0].details["timings"]
            assert all(timings[step] > 0 for step in ("plan", "job", "merge", "begin", "write"))


@pytest.mark.soak
def test_a_worker_that_is_frozen_in_the_middle_of_its_share_costs_an_attempt(
    spark: SparkSession, postgres_url: str, tmp_path: Path
) -> None:
    """It holds the fence and a row. PostgreSQL ends its transaction; in the end Spark ends the process."""
    places = Places(tmp_path)
    with ThreadPoolExecutor(1) as helper:
        topology = holding_in_its_share(places, OpaqueSpout, message_timeout_seconds=8)
        with TopologyTest(topology, spark=spark, database=postgres_url) as test:
            test.commit(1)

            def freeze() -> None:
                worker = places.found()
                with frozen(worker):
                    places.gate.touch()
                    test.clock.advance(9)
                    worker.wait(60)

            freezing = helper.submit(freeze)
            test.commit(2)
            freezing.result()
            assert states(test, 2) == [AttemptState.FAILED, AttemptState.COMMITTED]
            assert isinstance(test.attempts(2)[0].error, BatchTimeoutError)
            test.run()
            assert test.table("sums") == TOTALS


def test_a_share_that_does_not_get_on_is_cancelled_and_its_successor_waits_for_its_lock(
    spark: SparkSession, postgres: PostgresServer, postgres_url: str, unique: str, tmp_path: Path
) -> None:
    """The next attempt can begin only once the old one's transaction has ended, however it ends."""
    with ThreadPoolExecutor(1) as helper:
        topology = counting(word_files(tmp_path / "words"), TransactionalSpout, commit="executors")
        with TopologyTest(topology, spark=spark, database=postgres_url) as test:
            test.commit(2)
            with holding(postgres, unique, "counts", "ash") as stranger:

                def pass_the_deadline() -> None:
                    try:
                        assert wait_until(lambda: waiting(postgres, unique) == 1, 60)
                        test.clock.advance(31)
                        assert wait_until(lambda: waiting(postgres, unique) == 2, 60), "nobody waits for it"
                    finally:
                        stranger.rollback()

                passed = helper.submit(pass_the_deadline)
                test.commit(3)
                passed.result()
            assert states(test, 3) == [AttemptState.FAILED, AttemptState.COMMITTED]
            assert isinstance(test.attempts(3)[0].error, BatchTimeoutError)
            test.run()
            check(test, counted())
            assert paths(postgres_url) == 4 * ["executors"]


def test_shares_that_are_cancelled_before_their_job_begins_are_not_written(
    spark: SparkSession, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cancels only jobs that exist, and cutting up a large batch takes a while before there is one."""
    runner = SparkRunner(spark.sparkContext, captured(diamond(), unique), spark)

    def cut_slowly(*_: Any) -> tuple[list[Any], list[int]]:
        runner.cancel(attempt(1))
        return [(b"no", b"share")], [0]

    monkeypatch.setattr(spark_runner, "cut_all", cut_slowly)
    try:
        with pytest.raises(BatchFailedError, match="was cancelled"):
            runner.write(attempt(1), [])
    finally:
        runner.close()
