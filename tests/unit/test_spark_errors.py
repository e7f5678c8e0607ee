"""Spark's errors when a job dies, in the words that the user should read."""

from __future__ import annotations

from support.inmemory import attempt
from support.lists import each

from txstream.core.errors import (
    BatchFailedError,
    BoltError,
    PartitionUnavailableError,
    TxstreamError,
    UsageError,
)
from txstream.engine.batch.executor_failures import describe
from txstream.engine.spark.errors import spark_error

USERS = """
An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/me/prices.py", line 12, in measure
    raise ValueError("no price\\n  for this")
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: no price
  for this
"""

FROM_THE_JVM = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 4.0 failed 4 times, \
most recent failure: Lost task 0.3 in stage 4.0 (TID 8) (10.0.0.1 executor 1): \
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/spark/pyspark/worker.py", line 1, in main
    process()
  File "/home/me/prices.py", line 12, in measure
    return 1 / 0
ZeroDivisionError: division by zero

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
"""

CHAINED = """Traceback (most recent call last):
  File "/home/me/prices.py", line 3, in find
    table[key]
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/prices.py", line 5, in find
    raise RuntimeError from error
RuntimeError
"""


def told(text: str, *dataframes: str) -> TxstreamError:
    return spark_error(RuntimeError(text), attempt(3), dataframes)


def test_a_function_of_the_users() -> None:
    error = told(USERS, "price")
    assert type(error) is BoltError
    said = "ValueError: no price\n  for this (in prices.py, line 12)"
    assert str(error) == f"txid 3 attempt 1.1, component 'price': {said}"
    (trace,) = error.__notes__
    assert trace.startswith(
        'Traceback (on the executor, most recent call last):\n  File "/home/me/prices.py"'
    )
    assert trace.endswith("ValueError: no price\n  for this")


def test_it_is_found_in_what_the_jvm_says() -> None:
    error = told(FROM_THE_JVM, "price", "rate")
    said = "ZeroDivisionError: division by zero (in prices.py, line 12)"
    assert str(error) == f"txid 3 attempt 1.1, component 'price' or 'rate': {said}"
    assert "\tat " not in "".join(error.__notes__)


def test_of_chained_exceptions_the_last_is_named_and_all_are_shown() -> None:
    error = told(CHAINED, "price")
    assert str(error) == "txid 3 attempt 1.1, component 'price': RuntimeError (in prices.py, line 5)"
    assert "KeyError: 'x'" in error.__notes__[0]


def trace_of(raised: TxstreamError) -> str:
    notes = "".join(f"\n{note}" for note in getattr(raised, "__notes__", ()))
    kind = type(raised)
    return (
        "Traceback (most recent call last):\n"
        '  File "/site-packages/txstream/bolts/dataframes.py", line 1, in _blocks_for\n'
        f"{kind.__module__}.{kind.__qualname__}: {raised}{notes}\n"
    )


def test_errors_of_ours_come_back_as_what_they_were() -> None:
    error = told(trace_of(BatchFailedError("not now")), "price")
    assert type(error) is BatchFailedError
    assert error.without_data == "component 'price': BatchFailedError"
    assert str(error) == "txid 3 attempt 1.1, component 'price': not now"


def test_an_error_that_was_told_before_is_not_told_twice() -> None:
    """The error comes from a bolt above, whose messages were computed again."""
    try:
        raise ValueError("no number")
    except ValueError as raised:
        above = describe(raised, "lines", 2).to_error(attempt(3))
    assert "Traceback (on the executor" in above.__notes__[0]
    error = told(trace_of(above), "price")
    assert type(error) is type(above) is BoltError
    assert str(error) == str(above)
    assert error.__notes__ == above.__notes__
    unavailable = describe(PartitionUnavailableError("it is away"), "lines", None).to_error(attempt(3))
    assert type(told(trace_of(unavailable), "price")) is PartitionUnavailableError


@each(
    ("line", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'prices'", "ship your own modules with --py-files"),
        ("ModuleNotFoundError: No module named 'txstream'", "txstream package"),
        ("/usr/bin/python3: Error while finding module: No module named 'txstream'", "txstream package"),
    ],
)
def test_what_an_executor_cannot_import_is_told_with_the_remedy(line: str, remedy: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    import it\n{line}\n'
    for text in (trace, f"Job aborted: \n{line}\n\tat org.apache"):
        error = told(text)
        assert type(error) is UsageError, "no other attempt would find it"
        assert str(error).startswith(f"txid 3 attempt 1.1: its Spark job failed: {line} (")
        assert remedy in str(error)


@each(
    ("text", "reason"),
    [
        ("An error occurred\n: Job aborted due to stage failure: it crashed\n\tat x", ": Job aborted due to"),
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\nid/0", "[DIVIDE_BY_ZERO] Division by zero."),
        ("first\nJob 4 cancelled as part of cancellation", "Job 4 cancelled as part of cancellation"),
        ("", "no reason given"),
    ],
)
def test_anything_else_is_told_in_one_line(text: str, reason: str) -> None:
    assert str(told(text)).startswith(f"txid 3 attempt 1.1: its Spark job failed: {reason}")


def test_an_error_of_ours_on_the_driver_is_left_alone() -> None:
    error = BatchFailedError("no")
    assert spark_error(error, attempt(1), ()) is error


CRASHED = """org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed, \
most recent failure: Lost task 0.0 in stage 1.0: org.apache.spark.SparkException: \
Python worker exited unexpectedly (crashed){fault}
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handleFault(PythonRunner.scala:1)
"""


def test_a_worker_process_that_ends_says_by_which_signal() -> None:
    fault = ": Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n  File"
    error = told(CRASHED.format(fault=fault))
    assert isinstance(error, BoltError)
    assert error.without_data == "its worker process ended: signal 11 (Segmentation fault)"
    assert str(error) == f"{attempt(3)}: {error.without_data}"
    killed = told(CRASHED.format(fault=""))
    assert "its worker process ended; it was killed" in str(killed)
    assert "its Spark job failed" in str(told("Job aborted due to stage failure: no executors"))
