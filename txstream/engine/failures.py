"""How a failure on an executor reaches the driver: as data, with the user's traceback, not as a Spark error.

A Spark task that raises is retried by Spark on its own terms and floods its log. Here a task that fails
returns a description instead; the driver raises it again as what it was.
"""

from __future__ import annotations

import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txstream.api import errors
from txstream.transaction import TransactionAttempt

_FRAMEWORK = Path(__file__).resolve().parent.parent
_MAX_TUPLE_CHARACTERS = 500


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on an executor. `error` is a txstream error's name, or BoltError for anything else."""

    error: str
    message: str
    component: str
    task: int | None
    details: str

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    def to_error(self, attempt: TransactionAttempt) -> errors.TxstreamError:
        """The error to raise on the driver; its note is the user's traceback."""
        kind = getattr(errors, self.error, errors.BoltError)
        if not issubclass(kind, errors.TxstreamError):
            kind = errors.BoltError
        raised: errors.TxstreamError = kind(
            f"{attempt}, component {self.component!r}{self._where()}: {self.message}"
        )
        if self.details:
            raised.add_note(self.details)
        return raised

    def _where(self) -> str:
        return "" if self.task is None else f", task {self.task}"


def describe(error: BaseException, component: str, task: int | None, tup: object = None) -> Failure:
    """An exception as data. The traceback begins in the user's own code."""
    if isinstance(error, errors.TxstreamError):
        name, message = type(error).__name__, str(error)
    else:
        name, message = "BoltError", f"{type(error).__name__}: {error}"
        place = _last_user_frame(error)
        if place:
            message += f" (in {place})"
    if tup is not None:
        shown = repr(tup)
        if len(shown) > _MAX_TUPLE_CHARACTERS:
            shown = shown[:_MAX_TUPLE_CHARACTERS] + "..."
        message += f", while processing {shown}"
    return Failure(name, message, component, task, _user_traceback(error))


def _user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(error.__traceback__)
    own = [i for i, frame in enumerate(frames) if Path(frame.filename).parent.parent == _FRAMEWORK]
    return list(frames[own[-1] + 1 :]) if own else list(frames)


def _last_user_frame(error: BaseException) -> str:
    frames = _user_frames(error)
    return f"{Path(frames[0].filename).name}, line {frames[0].lineno}" if frames else ""


def _user_traceback(error: BaseException) -> str:
    frames = _user_frames(error)
    if isinstance(error, errors.TxstreamError) and not frames:
        return ""
    lines = ["Traceback (on the executor, most recent call last):\n"]
    lines += traceback.format_list(frames)
    lines += traceback.format_exception_only(error)
    return "".join(lines).rstrip()
