"""How a failure on an executor reaches the driver."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from support.inmemory import attempt
from support.lists import each

import txstream.core.errors
from txstream.api.tuples import Chunk, Tuple
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    PartitionUnavailableError,
    TxstreamError,
    UsageError,
)
from txstream.core.semantics import Semantics
from txstream.engine.batch.executor_failures import Failure, describe
from txstream.engine.letters.retry_policy import TxidFailures, Verdict, judge
from txstream.inspect import LedgerEntry
from txstream.inspect.ledgers import failed_attempts

ALL_ERRORS = [
    error
    for error in vars(txstream.core.errors).values()
    if isinstance(error, type) and issubclass(error, TxstreamError)
]


def tuple_of(value: str) -> Tuple:
    return next(Chunk(pa.RecordBatch.from_pylist([{"value": value}]), "lines").tuples())


class RateLimitedError(PartitionUnavailableError):
    """A user's own reason to have a batch replayed."""


class FencedError(Exception):
    """A user's own error, which only shares its name with one of ours."""


def caught(error: Exception) -> Exception:
    try:
        raise error
    except type(error) as raised:
        return raised


def travel(failure: Failure) -> TxstreamError:
    """Send a failure through JSON and return the error that the driver makes of it."""
    return Failure(**json.loads(json.dumps(failure.to_document()))).to_error(attempt(5, 2))


@each("kind", ALL_ERRORS, ids=lambda kind: kind.__name__)
def test_each_of_our_errors_arrives_as_what_it_was(kind: type[TxstreamError]) -> None:
    error = travel(describe(caught(kind("the range is gone")), "lines", None))
    assert type(error) is kind
    assert str(error) == "txid 5 attempt 1.2, component 'lines': the range is gone"


def test_a_users_subclass_arrives_as_the_nearest_error_that_the_driver_knows() -> None:
    error = travel(describe(caught(RateLimitedError("later")), "lines", 1))
    assert type(error) is PartitionUnavailableError
    assert isinstance(error, BatchFailedError)
    assert str(error) == "txid 5 attempt 1.2, component 'lines', task 1: later"


def test_a_module_that_a_worker_lacks_ends_the_run_with_the_remedy() -> None:
    error = travel(describe(caught(ModuleNotFoundError("No module named 'helpers'")), "split", 3))
    assert type(error) is UsageError
    assert judge(error) is Verdict.FATAL
    for word in ("component 'split'", "No module named 'helpers'", "--py-files", "Settings.py_files"):
        assert word in str(error)


def test_any_other_exception_is_a_bolt_error_with_its_type_place_tuple_and_traceback() -> None:
    error = travel(describe(caught(ValueError("no number")), "split", 3, tuple_of("x")))
    assert type(error) is BoltError
    message = str(error)
    assert message.startswith("txid 5 attempt 1.2, component 'split', task 3: ValueError: no number (in ")
    assert "test_failures.py, line " in message
    assert message.endswith("), while processing Tuple(value='x')")
    (details,) = error.__notes__
    assert details.startswith("Traceback (on the executor, most recent call last):\n")
    assert "raise error" in details
    assert details.endswith("ValueError: no number")


def test_an_error_with_the_name_of_one_of_ours_is_still_a_bug() -> None:
    assert type(travel(describe(caught(FencedError("x")), "split", 0))) is BoltError


def test_a_long_tuple_is_cut() -> None:
    error = travel(describe(caught(ValueError("x")), "split", 0, tuple_of("y" * 10_000)))
    assert len(str(error)) < 700
    assert str(error).endswith("...")


def test_a_name_that_the_driver_does_not_know_is_a_bolt_error() -> None:
    for name in ("NoSuchError", "annotations", "Path"):
        assert type(Failure(name, "x", "split", None, "").to_error(attempt(1))) is BoltError


def test_the_ledger_has_the_tracebacks_of_failed_attempts_each_once() -> None:
    failures = TxidFailures()
    for number, words in enumerate(("first", "second", "second"), 1):
        failures.add(travel(describe(caught(ValueError(words)), "split", 0)), attempt(5, number))
    failures.add(ValueError("of the driver itself"), attempt(5, 4))
    at = datetime(2026, 1, 2, tzinfo=UTC)
    kept: list[Any] = json.loads(json.dumps(failures.for_ledger(BatchMetas(), dict)))
    assert ["traceback" in one for one in kept] == [True, False, True, False]
    given: Any = ("db", "u", 1, Semantics.OPAQUE, "committed", 1, 1, at, at, at, None, {})
    row = LedgerEntry(*given)
    first, second, third, own = failed_attempts(replace(row, details={"attempts": kept}))
    assert first.traceback is not None
    assert "ValueError: first" in first.traceback
    assert second.traceback is not None
    assert "ValueError: second" in second.traceback
    assert (third.traceback, own.traceback) == (second.traceback, None)


def test_zookeeper_has_attempts_and_frames_without_what_a_record_holds() -> None:
    word = "".join(("se", "cr", "et"))  # no line of this code has it

    def fails() -> None:
        raise ValueError(f'{word}\n  File "{word}", line 1, in {word}\n    {word}')

    def evaluates() -> None:
        eval(f"{word} {word}")  # the SyntaxError shows the text

    partitions = {"lines/0": {"start": 1, "end": 3}}
    for hides in (False, True):
        failures = TxidFailures(hides)
        for number, cause in enumerate((fails, evaluates), 1):
            with pytest.raises((ValueError, SyntaxError)) as raised:
                cause()
            error = travel(describe(raised.value, "split", 0, tuple_of(word)))
            failures.add(error, attempt(5, number), BatchMetas(partitions=partitions))
        metas, noted = failures.for_note(dict)
        assert metas == {"partitions": partitions, "unavailable": {}, "more": 0}
        assert word not in json.dumps(noted)
        assert [one["same"] for one in noted] == [True, True]
        for one, function in zip(noted, ("fails", "evaluates"), strict=True):
            assert (f"in {function}\n" in one.get("traceback", "")) is not hides


def test_the_newest_tracebacks_get_the_room_that_the_ledger_has() -> None:
    failures = TxidFailures()
    for number in range(10):
        failures.add(
            travel(describe(caught(ValueError(f"{number}" * 5_000)), "split", 0)), attempt(5, number + 1)
        )
    kept = failures.for_ledger(BatchMetas(), dict)
    assert ["traceback" in one for one in kept] == [False] * 7 + [True] * 3
