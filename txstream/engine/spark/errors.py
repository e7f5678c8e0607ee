"""Turns what Spark raises when a job dies into the error of a bolt.

A bolt's own failure comes back as an answer (see `executor_failures`). The other failures happen inside
Spark: in user functions that a DataFrame calls, in expressions that the JVM evaluates, and when a worker
process ends.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from txstream.core import errors
from txstream.core.transaction import TransactionAttempt

_TRACEBACK = "Traceback (most recent call last):"
_OURS = "Traceback (on the executor, most recent call last):"
_FRAME = re.compile(r'  File "(?:.*/)?([^"/]+)", line (\d+), in ')
_OF_SPARK = re.compile(r'  File "[^"]*/pyspark(?:\.zip)?/')
# The end of a traceback: the error's class and its message.
_RAISED = re.compile(r"([\w.]*\.)?(\w+)(?:: (.*))?", re.DOTALL)
_FAULT = re.compile(r"Fatal Python error: ([^\n\r]+)")
_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Aborted": signal.SIGABRT,
    "Bus error": signal.SIGBUS,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
    "Illegal instruction": signal.SIGILL,
}
_ERRORS_MODULE = f"{errors.__name__}."


def spark_error(
    error: BaseException, attempt: TransactionAttempt, dataframes: Sequence[str]
) -> errors.TxstreamError:
    """Return the error to raise for one of Spark's. `dataframes` are the DataFrame bolts that it computed.

    A TxstreamError that a worker process raised keeps its class. A module that the process lacks is a
    UsageError, anything else a BoltError.
    """
    if isinstance(error, errors.TxstreamError):
        return error
    text = str(getattr(error, "java_exception", None) or error)
    who = _who(attempt, dataframes)
    missing = _missing_module(text)
    if missing is not None:
        return errors.UsageError(f"{who}: its Spark job failed: {missing}")
    trace = _python_traceback(text)
    if trace is None:
        ended = _ended(text)
        failed = ended or f"its Spark job failed: {_reason(text)}"
        error = _of(errors.BoltError(f"{who}: {failed}"), failed, dataframes)
        error.without_data = ended
        return error
    kind, message, details = _raised(trace)
    # A bolt further up has named itself in what it reported.
    if message.startswith(str(attempt)):
        raised = kind(message)
    else:
        raised = _of(kind(f"{who}: {message}"), message, dataframes)
    if kind is errors.BatchFailedError:  # the words are the bolt's
        raised.without_data = f"{_named(dataframes)}{kind.__name__}"
    raised.add_note(details)
    return raised


def _of(error: errors.TxstreamError, words: str, dataframes: Sequence[str]) -> errors.TxstreamError:
    """Return the error, which tells of the DataFrame bolt that it comes from if there is only one."""
    if len(dataframes) == 1:
        error.component, error.words = dataframes[0], words
    return error


def _who(attempt: TransactionAttempt, dataframes: Sequence[str]) -> str:
    return f"{attempt}, {_named(dataframes)}".removesuffix(": ").removesuffix(", ")


def _named(dataframes: Sequence[str]) -> str:
    return f"component {' or '.join(map(repr, dataframes))}: " if dataframes else ""


def _missing_module(text: str) -> str | None:
    """What an executor could not import, with the remedy; None if that is not the cause."""
    for line in map(str.strip, reversed(text.splitlines())):
        if "No module named" in line and "txstream" in line:
            return f"{line} (make the framework a zip with `txstream package`, ship it with --py-files)"
        if line.startswith(("ModuleNotFoundError", "ImportError")):
            return f"{line} (ship your own modules with --py-files, Settings.py_files)"
    return None


def _ended(text: str) -> str | None:
    """How a worker process ended, if that is the cause. A fault in C leaves a word; SIGKILL leaves none."""
    if "Python worker exited unexpectedly" not in text:
        return None
    fault = _FAULT.search(text)
    number = _SIGNALS.get(fault[1]) if fault else None
    if fault is None or number is None:
        return "its worker process ended; it was killed, perhaps for lack of memory, or has ended itself"
    return f"its worker process ended: signal {int(number)} ({fault[1]})"


def _python_traceback(text: str) -> str | None:
    """The traceback of a worker process, without the JVM's stack after it; None if there is none."""
    start = text.find(_TRACEBACK)
    if start < 0:
        return None
    lines = []
    for line in text[start:].splitlines():
        if line.startswith("\tat "):
            break
        lines.append(line)
    return "\n".join(lines).rstrip()


def _raised(trace: str) -> tuple[type[errors.TxstreamError], str, str]:
    """The class for the driver, the message, and the traceback to show. txstream's are known by name."""
    lines = trace.splitlines()
    frames = max(at for at, line in enumerate(lines) if line == _TRACEBACK) + 1
    end = next((at for at in range(frames, len(lines)) if not lines[at].startswith(" ")), len(lines))
    said, _, note = "\n".join(lines[end:]).partition(f"\n{_OURS}")
    details = f"{_OURS}{note}" if note else trace.replace(_TRACEBACK, _OURS)
    match = _RAISED.fullmatch(said)
    if match is not None and match[1] == _ERRORS_MODULE:
        kind = getattr(errors, match[2], None)
        if isinstance(kind, type) and issubclass(kind, errors.TxstreamError):
            return kind, match[3] or match[2], details
    users = [line for line in lines[frames:end] if _FRAME.match(line) and not _OF_SPARK.match(line)]
    place = _FRAME.match(users[0]) if users else None
    where = f" (in {place[1]}, line {place[2]})" if place else ""
    return errors.BoltError, f"{said}{where}", details


def _reason(text: str) -> str:
    """The line that says what happened, without the JVM's stack."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    ends = (line for line in lines if "Job aborted" in line or "cancelled" in line)
    return next(ends, lines[0] if lines else "no reason given")
