"""Calls of user code that can be given up: whoever waits goes on, and so does the call.

Nothing can end a thread that runs user code. On Spark a cancelled job returns at once too, while its tasks
may run on for a while; what they write then is refused by the fence.

Invariant: once an attempt is given up, nobody waits for a call of it, and no call of it begins.
"""

from __future__ import annotations

import contextvars
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from txstream.api.errors import BatchFailedError
from txstream.transaction import TransactionAttempt

T = TypeVar("T")

_OURS = (Path(__file__).parent, Path(__file__).parents[1] / "engine")


@dataclass(eq=False)
class _Call(Generic[T]):
    """One call, on a thread of its own. `answer` and `error` are there when it is `over`."""

    attempt: TransactionAttempt
    work: Callable[[], T]
    answer: T | None = None
    error: BaseException | None = None
    over: bool = False
    thread: threading.Thread | None = None

    def run(self) -> None:
        try:
            self.answer = self.work()
        except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the call
            self.error = error

    def where(self) -> str:
        """The user's code that it is in."""
        frame = sys._current_frames().get(self.thread.ident or 0) if self.thread is not None else None
        frames = traceback.extract_stack(frame) if frame is not None else []
        theirs = [
            at for at, summary in enumerate(frames) if any(map(Path(summary.filename).is_relative_to, _OURS))
        ]
        inside = frames[theirs[-1] + 1 :] if theirs else []
        if not inside:
            return str(self.attempt)
        return (
            f"{self.attempt}, in {inside[0].name} ({Path(inside[0].filename).name}, line {inside[0].lineno})"
        )


class DetachedCalls:
    """The calls of all attempts of a run. From any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._calls: list[_Call[Any]] = []
        self._given_up: set[TransactionAttempt] = set()

    @property
    def given_up(self) -> frozenset[TransactionAttempt]:
        """The attempts that were given up."""
        with self._changed:
            return frozenset(self._given_up)

    def call(self, attempt: TransactionAttempt, work: Callable[[], T]) -> T:
        """What `work` answers or raises. Raises BatchFailedError when the attempt is given up before."""
        call = _Call(attempt, work)
        context = contextvars.copy_context()

        def run() -> None:
            context.run(call.run)
            with self._changed:
                call.over = True
                self._calls.remove(call)
                self._changed.notify_all()

        # A daemon: a bolt that hangs must not keep Python from ending.
        call.thread = threading.Thread(target=run, name=f"txstream-{attempt.attempt}", daemon=True)
        with self._changed:
            if attempt in self._given_up:
                raise BatchFailedError(f"{attempt} was cancelled")
            self._calls.append(call)
            call.thread.start()
            self._changed.wait_for(lambda: call.over or attempt in self._given_up)
            if not call.over:
                raise BatchFailedError(f"{attempt} was cancelled")
        if call.error is not None:
            raise call.error
        return call.answer  # type: ignore[return-value]  # of type T: it is over, without an error

    def give_up(self, attempt: TransactionAttempt) -> list[str]:
        """Let those who wait for this attempt go on; in what user code it still is."""
        with self._changed:
            self._given_up.add(attempt)
            self._changed.notify_all()
            return [call.where() for call in self._calls if call.attempt == attempt]

    def where(self) -> list[str]:
        """In what user code every call is that is not over."""
        with self._changed:
            return [call.where() for call in self._calls]
