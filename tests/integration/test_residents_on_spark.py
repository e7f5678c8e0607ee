"""Spark tasks that stay: what they compute, and what happens when they, or their orders, are lost."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.inmemory import attempt
from support.on_spark import (
    FailsOn,
    Holds,
    KillsWorker,
    Opens,
    Same,
    captured,
    diamond,
    emissions,
    notes,
    ranges,
    row_of,
    tracker,
    wait_for,
)

from txstream.core.errors import BatchFailedError, BoltError, TxstreamError
from txstream.core.waits import wait_until
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.sizing import RecordCost
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.plugins.residents.residents import _TIMEVAL, Residents
from txstream.testing import InProcessRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH = ranges(a=17, b=6)
DEADLINE_SECONDS = 60.0


@contextmanager
def runner_of(
    spark: SparkSession, plan: ExecutionPlan, residents: int = 1, width: int | None = 1
) -> Iterator[SparkRunner]:
    runner = SparkRunner(spark.sparkContext, plan, spark, residents=residents, width=width)
    try:
        if runner._small_batches.count:
            await_resident(runner)
        yield runner
    finally:
        runner.close()


def residents_of(runner: SparkRunner) -> Residents:
    found = runner._small_batches
    assert isinstance(found, Residents)
    return found


def await_resident(runner: SparkRunner, other_than: int = 0) -> None:
    """Wait until a resident is there, and none of the life `other_than`."""

    def is_there() -> bool:
        lives = [one.life for one in residents_of(runner)._connected.values()]
        return bool(lives) and other_than not in lives

    assert wait_until(is_there, DEADLINE_SECONDS)


def jobs_begun(spark: SparkSession, unique: str) -> int:
    return len(tracker(spark.sparkContext).getJobIdsForGroup(unique))


@pytest.fixture
def counted_jobs(spark: SparkSession, unique: str) -> Iterator[str]:
    """The jobs of this thread, and of the runners that are made in it, belong to a group of this name."""
    spark.sparkContext.setJobGroup(unique, "residents")
    yield unique
    spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def test_batches_are_processed_without_a_job_each(
    spark: SparkSession, tmp_path: Path, unique: str, counted_jobs: str
) -> None:
    plan = captured(row_of([Same()], file=tmp_path / "read"), unique)
    without = InProcessRunner(captured(row_of([Same()]), unique), width=1)
    with runner_of(spark, plan) as runner:
        before = jobs_begun(spark, counted_jobs)
        for txid in range(1, 6):
            result = runner.run(attempt(txid), BATCH)
            assert emissions(result) == emissions(without.run(attempt(txid), BATCH))
            assert (result.records, result.width, result.kept) == (23, 1, None)
            assert result.by_residents
        assert jobs_begun(spark, counted_jobs) == before
    assert len({pid for *_, pid in notes(tmp_path / "read")}) == 1, "one process read all"


def test_residents_leave_one_core_to_jobs(spark: SparkSession, unique: str) -> None:
    cores = spark.sparkContext.defaultParallelism
    with runner_of(spark, captured(row_of([Same()]), unique), residents=cores + 3) as runner:
        assert residents_of(runner).count == cores - 1
        assert runner.run(attempt(1), BATCH).records == 23


def test_a_resident_may_be_idle_for_ever_once_it_is_let_in(spark: SparkSession, unique: str) -> None:
    """The limit is for strangers, who say nothing."""
    with runner_of(spark, captured(row_of([Same()]), unique)) as runner:
        (resident,) = residents_of(runner)._connected.values()
        limit = resident.peer.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.size)
        assert _TIMEVAL.unpack(limit) == (0, 0)


@pytest.mark.parametrize(("residents", "width", "noted"), [(1, 1, 1), (0, 1, 0), (2, 2, 0)])
def test_what_is_read_ahead_goes_to_the_one_resident_that_reads_it(
    spark: SparkSession, tmp_path: Path, unique: str, residents: int, width: int, noted: int
) -> None:
    """Not with a job: Spark shows and logs what travels with that."""
    batch = replace(BATCH, ahead={"a": bytes(range(256))})
    with runner_of(
        spark, captured(row_of([Same()], file=tmp_path / "read"), unique), residents, width
    ) as runner:
        assert runner.run(attempt(1), batch).records == 23
    told = [line for line in notes(tmp_path / "read") if line[0] == "ahead"]
    assert told == [["ahead", "a", bytes(range(256)).hex()]] * noted


def test_what_is_too_wide_or_needs_a_commit_phase_goes_as_a_job(
    spark: SparkSession, unique: str, counted_jobs: str
) -> None:
    with runner_of(spark, captured(diamond(), unique), width=2) as runner:
        before = jobs_begun(spark, counted_jobs)
        result = runner.run(attempt(1), BATCH)
        assert not result.by_residents
        runner.commit(attempt(1), result)
        runner.release(result)
        assert jobs_begun(spark, counted_jobs) > before


def test_an_error_of_a_bolt_is_reported_and_the_resident_stays(spark: SparkSession, unique: str) -> None:
    with runner_of(spark, captured(row_of([FailsOn("w3")]), unique)) as runner:
        with pytest.raises(BoltError, match=r"txid 7 attempt 1\.2, component 'b0', .*: no w3"):
            runner.run(attempt(7, 2), BATCH)
        assert runner.run(attempt(7, 3), ranges(a=2)).records == 2
        assert [one.life for one in residents_of(runner)._connected.values()] == [1]


def test_a_job_does_again_what_a_resident_was_doing_when_its_process_died(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    killed = tmp_path / "killed"
    with runner_of(spark, captured(row_of([KillsWorker(killed)]), unique)) as runner:
        assert runner.run(attempt(1), BATCH).records == 23
        ((pid,),) = notes(killed)
        await_resident(runner, other_than=1)
        again = runner.run(attempt(2), BATCH)
    assert again.records == 23
    assert all(not place.worker.endswith(pid) for place in again.places)


def test_an_answer_that_is_cut_is_done_again_by_a_job(
    spark: SparkSession, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runner_of(spark, captured(row_of([Same()]), unique)) as runner:
        (resident,) = residents_of(runner)._connected.values()

        def cut(message: bytes) -> None:
            os.write(resident.connection.fileno(), b"\0\0\xff\xff" + message)
            resident.peer.shutdown(socket.SHUT_WR)

        monkeypatch.setattr(resident.connection, "send_bytes", cut)
        assert runner.run(attempt(1), BATCH).records == 23
        await_resident(runner, other_than=1)
        assert runner.run(attempt(2), BATCH).records == 23


def test_a_cancelled_order_lets_go_and_a_resident_that_hangs_is_given_up(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    ended: list[BaseException] = []
    with runner_of(spark, captured(row_of([Holds(began, gate)]), unique)) as runner:

        def process() -> None:
            try:
                runner.run(attempt(1), BATCH)
            except TxstreamError as error:
                ended.append(error)

        thread = threading.Thread(target=process)
        thread.start()
        wait_for(began, 1)
        runner.cancel(attempt(1))
        thread.join(DEADLINE_SECONDS)
        assert not thread.is_alive()
        ((hanging,),) = notes(began)[:1]
        await_resident(runner, other_than=1)
        assert wait_until(lambda: not Path(f"/proc/{hanging}").exists(), DEADLINE_SECONDS)
        gate.touch()
        assert runner.run(attempt(1, 2), BATCH).records == 23
    (error,) = ended
    assert isinstance(error, BatchFailedError)
    assert str(error) == "txid 1 attempt 1.1 was cancelled"


def test_a_resident_that_ends_in_time_is_kept_and_its_late_answer_is_no_others(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    plan = captured(row_of([Holds(began, gate)]), unique)
    with runner_of(spark, plan) as runner:

        def process() -> None:
            with pytest.raises(BatchFailedError, match="was cancelled"):
                runner.run(attempt(1), BATCH)

        thread = threading.Thread(target=process)
        thread.start()
        wait_for(began, 1)
        runner.cancel(attempt(1))
        gate.touch()
        thread.join(DEADLINE_SECONDS)
        found = runner.run(attempt(2), ranges(a=2))
        assert found.records == 2
        assert [one.life for one in residents_of(runner)._connected.values()] == [1]


def test_who_has_not_the_key_is_turned_away(
    spark: SparkSession, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    with runner_of(spark, captured(row_of([Same()]), unique)) as runner:
        address = residents_of(runner)._address
        with pytest.raises((AuthenticationError, EOFError, OSError)):
            Client(address, authkey=b"another key")
        assert wait_until(lambda: "without the key of this run" in caplog.text, DEADLINE_SECONDS)
        silent = socket.create_connection(address)  # says nothing, and holds nobody up
        assert runner.run(attempt(1), BATCH).records == 23
        silent.close()
    assert "127.0.0.1:" in caplog.text


def test_residents_leave_their_cores_to_wide_batches_and_come_back_for_small_ones(
    spark: SparkSession, unique: str, counted_jobs: str
) -> None:
    with runner_of(spark, captured(row_of([Same()]), unique), width=None) as runner:
        for txid in (1, 2):
            assert residents_of(runner)._connected, "one wide batch alone sends nobody away"
            runner._cost = RecordCost()  # how wide a batch is must not depend on this machine's speed
            assert runner.run(attempt(txid), ranges(a=6_000, b=6_000)).width == 2
        check_that_they_come_back(spark, runner, counted_jobs)


def test_residents_leave_when_a_job_is_cancelled_which_may_have_waited_for_a_core(
    spark: SparkSession, tmp_path: Path, unique: str, counted_jobs: str
) -> None:
    began, gate = tmp_path / "began", tmp_path / "gate"
    ended: dict[int, object] = {}
    with runner_of(spark, captured(row_of([Holds(began, gate)]), unique)) as runner:

        def process(txid: int) -> None:
            try:
                ended[txid] = runner.run(attempt(txid), BATCH).records
            except TxstreamError as error:
                ended[txid] = str(error)

        threads = [threading.Thread(target=process, args=(txid,)) for txid in (1, 2)]
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_for(began, number)  # the second finds the resident busy, and runs as a job
        runner.cancel(attempt(2))
        gate.touch()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
        assert ended[1] == 23
        assert "cancelled" in str(ended[2])
        check_that_they_come_back(spark, runner, counted_jobs)


def check_that_they_come_back(spark: SparkSession, runner: SparkRunner, group: str) -> None:
    connected = residents_of(runner)._connected
    assert wait_until(lambda: not connected and not running(spark), DEADLINE_SECONDS)
    for txid in range(3, 6):
        assert not connected
        assert runner.run(attempt(txid), BATCH).records == 23
    await_resident(runner)
    before = jobs_begun(spark, group)
    assert runner.run(attempt(9), BATCH).records == 23
    assert jobs_begun(spark, group) == before


def running(spark: SparkSession) -> list[int]:
    return tracker(spark.sparkContext).getActiveJobsIds()


def test_residents_leave_a_slot_to_jobs_however_many_runs_share_a_session(
    spark: SparkSession, unique: str
) -> None:
    """The session has two slots."""
    plans: list[Any] = [captured(row_of([Same()]), f"{unique}{number}") for number in range(3)]
    with runner_of(spark, plans[0], residents=5) as first, runner_of(spark, plans[1]) as second:
        assert (first._small_batches.count, second._small_batches.count) == (1, 0)
        assert first.run(attempt(1), BATCH).records == 23
        assert second.run(attempt(1), BATCH).records == 23
    with runner_of(spark, plans[2]) as third:
        assert third._small_batches.count == 1


def test_a_runner_that_is_closed_leaves_no_job_and_closes_what_is_open(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    opened = tmp_path / "opened"
    with runner_of(spark, captured(row_of([Opens(opened)]), unique)) as runner:
        runner.run(attempt(1), BATCH)
    assert wait_until(lambda: not running(spark), DEADLINE_SECONDS)
    with runner_of(spark, captured(row_of([Same()]), unique + "2")) as runner:
        runner.run(attempt(1), BATCH)
    closed = [pid for what, _, pid in notes(opened) if what == "close"]
    assert closed == [pid for what, _, pid in notes(opened) if what == "open"]


def test_the_process_of_a_resident_goes_on_after_its_run(
    spark: SparkSession, tmp_path: Path, unique: str
) -> None:
    """What it has imported serves the next run."""
    with runner_of(spark, captured(row_of([Same()], file=tmp_path / "read"), unique)) as runner:
        runner.run(attempt(1), BATCH)
    ((*_, pid), *_) = notes(tmp_path / "read")
    assert wait_until(lambda: not running(spark), DEADLINE_SECONDS)
    with runner_of(spark, captured(row_of([Same()]), unique + "2")):
        os.kill(int(pid), 0)


def test_residents_that_are_lost_with_their_machine_cost_nothing_but_a_job(
    spark: SparkSession, unique: str
) -> None:
    """A task that is killed from outside, between two orders."""
    with runner_of(spark, captured(row_of([Same()]), unique)) as runner:
        place = runner.run(attempt(1), BATCH).places[0]
        assert place.worker
        (resident,) = residents_of(runner)._connected.values()
        resident.peer.shutdown(socket.SHUT_RDWR)
        assert runner.run(attempt(2), BATCH).records == 23
        await_resident(runner, other_than=1)
