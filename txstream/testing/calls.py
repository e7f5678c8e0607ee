"""The calls of bolts, in the order in which they were made."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from txstream.engine.recording import Call, CallKind


class CallLog:
    """Takes calls from any thread of this process; tuples that one task gets in a row are one call."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        with self._lock:
            if self._calls and call.kind is CallKind.EXECUTE:
                last = self._calls[-1]
                if _who(last) == _who(call):
                    self._calls[-1] = Call(
                        call.attempt,
                        call.phase,
                        call.component,
                        call.task,
                        call.kind,
                        last.tuples + call.tuples,
                    )
                    return
            self._calls.append(call)

    def __iter__(self) -> Iterator[Call]:
        with self._lock:
            return iter(list(self._calls))


def _who(call: Call) -> tuple[object, ...]:
    return call.attempt, call.component, call.task, call.kind
