"""What is said about failed attempts, and how long an attempt may take."""

from __future__ import annotations

from collections import Counter

import pytest
from support.inmemory import Range, attempt

from txstream.api.errors import (
    BatchFailedError,
    BatchTimeoutError,
    BoltError,
    PartitionUnavailableError,
    TupleError,
    TxstreamError,
)
from txstream.batch_metas import BatchMetas
from txstream.engine.batch.executor_failures import describe
from txstream.engine.loop.retry_policy import (
    AttemptTime,
    TxidFailures,
    count_reason,
    reason_of,
    reason_without_data,
)


def from_a_bolt(error: Exception, task: int = 0, sequence: int = 1) -> TxstreamError:
    """Return an error of user code as it is raised on the driver."""
    try:
        raise error
    except type(error) as raised:
        failure = describe(raised, "split", task, f"Tuple(value='{task}')")
    return failure.to_error(attempt(4, sequence))


def test_a_reason_is_the_same_for_every_attempt_task_and_tuple() -> None:
    first, second = (from_a_bolt(ValueError("no dogs"), task=n, sequence=n) for n in (1, 2))
    assert str(first) != str(second)
    assert reason_of(first) == reason_of(second)
    assert reason_of(first).startswith("component 'split': ValueError: no dogs (in test_retries.py, line ")
    full = BatchFailedError(f"{attempt(4, 7)} was not committed: the disk is full")
    assert reason_of(full) == "the batch was not committed: the disk is full"


@pytest.mark.parametrize("kind", [ValueError, BatchFailedError, TupleError])
def test_what_user_code_says_may_be_data_and_stays_out_of_zookeeper(kind: type[Exception]) -> None:
    error = from_a_bolt(kind("alice@example.com"))
    assert "alice" in reason_of(error)
    assert reason_without_data(error).startswith(
        f"component 'split': {kind.__name__} (in test_retries.py, line "
    )
    assert reason_without_data(error).endswith("); the run's output has the message")
    assert "alice" not in reason_without_data(BoltError("alice"))


def test_what_txstream_says_of_services_is_told_in_full() -> None:
    away = PartitionUnavailableError("partition lines/3 has no leader")
    assert reason_without_data(away) == "partition lines/3 has no leader"
    assert len(reason_without_data(BatchFailedError("x" * 5_000))) < 2_000


def test_reasons_that_never_repeat_are_counted_together_past_a_number() -> None:
    reasons: Counter[str] = Counter()
    for number in range(1_000):
        count_reason(reasons, f"row {number}")
    assert len(reasons) < 30
    assert sum(reasons.values()) == 1_000
    assert count_reason(reasons, "row 1") == 2


def test_the_second_timeout_in_a_row_says_what_to_change() -> None:
    failures = TxidFailures()
    timeout = BatchTimeoutError("txid 4 attempt 1.1 was not processed within 30 s (message_timeout_seconds)")
    assert failures.with_advice(timeout, 120_000) is timeout
    failures.add(timeout)
    other = BatchFailedError("x")
    assert failures.with_advice(other, 120_000) is other
    advised = failures.with_advice(timeout, 120_000)
    assert isinstance(advised, BatchTimeoutError)
    for words in (str(timeout), "120,000 records", "--message-timeout", "max_batch_records"):
        assert words in str(advised)
    failures.add(other)
    assert failures.with_advice(timeout, 120_000) is timeout, "they were not in a row"


def test_a_runs_first_attempts_and_those_after_a_timeout_have_the_warm_up_on_top() -> None:
    time = AttemptTime(30, 20)
    assert time.seconds == 50
    time.ended()
    assert time.seconds == 30
    time.ended(BatchTimeoutError("too late"))
    assert time.seconds == 50
    time.ended(BatchFailedError("a worker died"))
    assert time.seconds == 30


def test_the_ledger_keeps_what_failed_attempts_held_as_far_as_there_is_room() -> None:
    """The newest attempts get the room first. Those that held what is now committed take none."""
    failures = TxidFailures()
    wide = BatchMetas({f"t/{n}": Range(0, 5) for n in range(700)}, unavailable={"t/900": "no broker"})
    narrow = BatchMetas({"t/0": Range(0, 5)}, {"t/1": Range(0, 0)}, {"t/2": "no broker"})
    committed = BatchMetas({"t/0": Range(0, 5)}, unavailable={"t/2": "another reason"})
    for number, held in enumerate((wide, narrow, wide, BatchMetas({"t/0": Range(0, 4)})), 1):
        failures.add(BatchFailedError(f"no {number}"), attempt(4, number), held)
    first, second, third, last = failures.for_ledger(committed, vars_of)
    assert (last["ranges"], last["left_out"], last["more"]) == ({"t/0": {"start": 0, "end": 4}}, [], 0)
    assert (len(third["ranges"]), third["left_out"], third["more"]) == (499, [], 202)
    assert second["same"]
    assert "ranges" not in second
    assert (first["ranges"], first["left_out"], first["more"]) == ({}, [], 701)
    assert [one["error"] for one in (first, second, third, last)] == ["no 1", "no 2", "no 3", "no 4"]


def vars_of(held: Range) -> dict[str, int]:
    return {"start": held.start, "end": held.end}
