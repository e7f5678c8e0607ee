"""The recorded calls of bolts, in the order in which they were made."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from txstream.api.topology import Phase
from txstream.engine.batch.recorded_calls import Call, CallKind
from txstream.transaction import AttemptId, TransactionAttempt, Txid


class CallLog(Protocol):
    """Records calls, from any thread, and returns them."""

    def __call__(self, call: Call) -> None: ...

    def calls(self) -> list[Call]:
        """Return all calls so far. Tuples that one task got in a row are one call."""


class CallList:
    """The calls made in this process."""

    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._lock = threading.Lock()

    def __call__(self, call: Call) -> None:
        with self._lock:
            self._calls.append(call)

    def calls(self) -> list[Call]:
        with self._lock:
            return _folded(self._calls)


class CallFile:
    """The calls made in several processes on this machine, one line of a file each. The kernel appends each
    line whole, so all processes see one order. Pickle ships this object to executors."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, call: Call) -> None:
        document = [
            *(call.attempt.txid, call.attempt.attempt),
            *(call.phase, call.component, call.task, call.kind, call.tuples),
        ]
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, json.dumps(document).encode() + b"\n")
        finally:
            os.close(file)

    def calls(self) -> list[Call]:
        if not self.path.exists():
            return []
        return _folded(_parse(line) for line in self.path.read_text(encoding="utf-8").splitlines())


def _parse(line: str) -> Call:
    txid, attempt, phase, component, task, kind, tuples = json.loads(line)
    return Call(
        TransactionAttempt(Txid(txid), AttemptId(attempt)),
        Phase(phase),
        component,
        task,
        CallKind(kind),
        tuples,
    )


def _folded(calls: Iterable[Call]) -> list[Call]:
    folded: list[Call] = []
    for call in calls:
        if folded and call.kind is CallKind.EXECUTE and replace(folded[-1], tuples=call.tuples) == call:
            folded[-1] = replace(call, tuples=folded[-1].tuples + call.tuples)
        else:
            folded.append(call)
    return folded
