"""The thread on which a check makes its calls to a source or a store.

A source or store that hangs must not hang the suite, so the calls run on a thread of their own. Some clients
may be used only by the thread that opened them, so one thread makes all calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from txstream.core.errors import TxstreamError

Answer = TypeVar("Answer")
Call = tuple[Future[Any], Callable[[], Any]]


class NoAnswerError(TxstreamError):
    """The call did not return in time. Its thread is given up."""


class CallThread:
    """Calls functions one after the other on a daemon thread. Once a call has not returned in time, no later
    call is answered."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="conformance", daemon=True)
        self._thread.start()
        self.lost = False

    def call(self, function: Callable[[], Answer], timeout_seconds: float | None = None) -> Answer:
        """Return or raise what the function does. Raises NoAnswerError at the timeout and ever after."""
        if threading.current_thread() is self._thread:
            return function()
        if self.lost:
            raise NoAnswerError("an earlier call has not come back")
        future = self.begin(function)
        if not wait([future], timeout_seconds).done:
            self.lost = True
            raise NoAnswerError(f"no answer within {timeout_seconds:g} s")
        return future.result()

    def begin(self, function: Callable[[], Answer]) -> Future[Answer]:
        """Start a call and do not wait for it."""
        future: Future[Answer] = Future()
        self._calls.put((future, function))
        return future

    def close(self) -> None:
        """End the thread once it has made all calls that it was given."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised where the answer is waited for
                future.set_exception(error)
