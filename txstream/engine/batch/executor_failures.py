"""How a failure on an executor reaches the driver: as data, with the user's traceback, not as a Spark error.

Spark retries a Spark task that raises, by its own rules, and fills its log with it. Here a Spark task that
fails returns a description instead, and the driver raises the error again from that.
"""

from __future__ import annotations

import os
import socket
import traceback
import zoneinfo
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

from txstream.api.tuples import DEFAULT_STREAM
from txstream.core import errors
from txstream.core.transaction import TransactionAttempt
from txstream.core.wording import storable
from txstream.engine.batch.sought import Sought

# The callers of user code, beside modules that say by `__tracebackhide__`, as for pytest, that they are such.
# Bolts, spouts and examples that ship with txstream are shown like a user's own.
_FRAMEWORK = Path(__file__).resolve().parents[2]
_CALLERS = (f"{_FRAMEWORK / 'engine'}{os.sep}", f"{_FRAMEWORK / 'api'}{os.sep}")
_MAX_TUPLE_CHARACTERS = 500
_MAX_CHARACTERS = 8_000


OF_A_RECORD = (errors.BoltError, errors.DecodeError, errors.StateValueError, errors.TupleError)
"""What one record can make an attempt fail with. What else user code raises becomes a BoltError."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on an executor. `error` is the name of a txstream error, BoltError for anything else;
    `kind` is the exception's own name and the place where it was raised, `record` the record's place in the
    source, if its tuple says that, `row` the row that a store has refused, and `given` the tuple, as `Sought`
    has it. `late` are the `places` of a LateRecordError; `all_late`: the tuples were the spout's own, and all
    of them late."""

    error: str
    message: str
    component: str
    task: int | None
    details: str
    kind: str = ""
    record: str | None = None
    row: Sequence[str] | None = None
    given: Sequence[Any] | None = None
    late: Sequence[tuple[str, int]] = ()
    all_late: bool = False

    def to_document(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def to_error(self, attempt: TransactionAttempt) -> errors.TxstreamError:
        """Return the error to raise on the driver. Its note is the user's traceback."""
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, errors.TxstreamError)):
            kind = errors.BoltError
        raised: errors.TxstreamError = kind(
            f"{attempt}, component {self.component!r}{self._where()}: {self.message}"
        )
        # Others' messages hold no data: txstream wrote them, or they say why a partition cannot be read.
        if kind in (errors.BoltError, errors.BatchFailedError, errors.TupleError):
            raised.without_data = f"component {self.component!r}: {self.kind}"
        raised.record = self.record
        if self.row is not None and isinstance(raised, errors.StateValueError):
            raised.of_row(*self.row)
        if self.given is not None:
            raised.given = Sought(self.given[0], self.given[1], self.component)
        raised.component, raised.kind = self.component, self.kind.partition(" ")[0]
        raised.words = self.message.partition(", while processing ")[0]
        if self.details:
            raised.add_note(self.details)
        return raised

    def _where(self) -> str:
        return "" if self.task is None else f", task {self.task}"


class TaskFailedError(Exception):
    """Carries a described failure out of nested calls. Used only within the engine."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def describe(
    error: BaseException, component: str, task: int | None, tup: Any = None, *, spout: str | None = None
) -> Failure:
    """Return an exception as data. Its traceback begins in the user's own code. `spout` is the component
    whose tuples may have kept where their records are."""
    frames = _user_frames(error)
    place = f" (in {Path(frames[0].filename).name}, line {frames[0].lineno})" if frames else ""
    if isinstance(error, errors.TxstreamError):
        name, message = _known_name(error), str(error)
    else:
        name, message = "BoltError", f"{type(error).__name__}: {error}{place}"
        if lacks_time_zones(error):
            name = "UsageError"
            message += f"; no time zone database on host {socket.gethostname()}: install tzdata there"
        if isinstance(error, ModuleNotFoundError):
            # A replay would not find the module either.
            name = "UsageError"
            message += (
                "; a worker lacks it: ship modules of your own with --py-files (Settings.py_files), install "
                "others where the workers run"
            )
    if tup is not None:
        shown = repr(tup)
        if len(shown) > _MAX_TUPLE_CHARACTERS:
            shown = shown[:_MAX_TUPLE_CHARACTERS] + "..."
        message += f", while processing {shown}"
    kind, record = storable(f"{type(error).__name__}{place}"), _record_of(tup, spout)
    if record is not None:
        message += f"; {record}"
    # Cut here already: the driver takes in what all tasks say, and puts before it who failed.
    message, details = (storable(text, _MAX_CHARACTERS) for text in (message, _user_traceback(error, frames)))
    row = error.row if isinstance(error, errors.StateValueError) else None
    given = None if tup is None else Sought.of(dict(zip(tup.fields, tup.values, strict=True)))[:2]
    found = Failure(name, message, component, task, details, kind, record, row, given)
    if isinstance(error, errors.LateRecordError):
        all_late = spout is not None and error.only_late_from == spout
        return replace(found, late=error.places, all_late=all_late)
    return found


def lacks_time_zones(error: BaseException) -> bool:
    """Whether Arrow has raised because this host has no time zone database. No record is to blame."""
    if not isinstance(error, pa.ArrowInvalid):
        return False
    try:
        zoneinfo.ZoneInfo("UTC")
    except zoneinfo.ZoneInfoNotFoundError:
        return "zone" in str(error)
    return False


def _record_of(tup: Any, spout: str | None) -> str | None:
    """Return where a tuple's record is, if it is the spout's own and has kept Kafka's columns. A bolt's
    fields of these names may mean anything."""
    if tup is None or spout is None or (tup.source_component, tup.source_stream) != (spout, DEFAULT_STREAM):
        return None
    if not {"topic", "partition", "offset"} <= {*tup.fields}:
        return None
    return f"the record is at offset {tup['offset']} of partition {tup['topic']}/{tup['partition']}"


def _known_name(error: errors.TxstreamError) -> str:
    """The name of the error's class, or of its nearest base that the driver knows: a user's subclass of
    BatchFailedError must stay a BatchFailedError."""
    known = (kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    return str(next(known).__name__)


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames from the first one outside the engine on; none if only the engine was running."""
    trace = error.__traceback__
    while trace is not None and _is_caller(trace.tb_frame):
        trace = trace.tb_next
    return list(traceback.extract_tb(trace))


def _is_caller(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(_CALLERS) or bool(frame.f_globals.get("__tracebackhide__"))


def _user_traceback(error: BaseException, frames: list[traceback.FrameSummary]) -> str:
    if not frames:
        if isinstance(error, errors.TxstreamError):
            return ""
        frames = list(traceback.extract_tb(error.__traceback__))  # a bug of the engine: show it all
    lines = ["Traceback (on the executor, most recent call last):\n"]
    lines += traceback.format_list(frames)
    lines += traceback.format_exception_only(error)
    return "".join(lines).rstrip()
