"""What a test sees of each attempt: what its batch held, what its components emitted, how it ended, and the
calls of bolts.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from txstream.api.topology import Phase
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import UsageError
from txstream.core.placement import TaskPlace
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.engine.batch.runner_contract import BatchResult
from txstream.plugins.testing.recorded_calls import Call, CallKind

Row = tuple[Any, ...]


class AttemptState(StrEnum):
    """How far an attempt has got, or how it ended.

    FAILED: this attempt failed. DROPPED: an attempt of an earlier txid failed. LOST: the driver died.
    """

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"
    DROPPED = "dropped"
    LOST = "lost"


_ENDED = (AttemptState.COMMITTED, AttemptState.FAILED, AttemptState.DROPPED, AttemptState.LOST)


@dataclass
class Attempt:
    """One attempt of one txid, as the test saw it. `number` counts the attempts of a txid from 1.

    `metas` are the ranges that it holds. `error` is the error that it failed with. `processed` and `finished`
    are the results of the two phases, None for a phase that has not finished. `streams`, `in_commit` and
    `merge` come from its topology: all streams by component, the components that run in the commit phase, and
    the function that merges deltas.
    """

    id: TransactionAttempt
    number: int
    metas: BatchMetas[Any]
    streams: Mapping[str, Mapping[str, pa.Schema]]
    in_commit: frozenset[str]
    merge: Callable[..., Mapping[str, pa.Table]]
    state: AttemptState = AttemptState.PROCESSING
    error: BaseException | None = None
    processed: BatchResult | None = None
    finished: BatchResult | None = None

    @property
    def txid(self) -> Txid:
        return self.id.txid

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    def has_been_through(self, component: str) -> bool:
        """Whether the component's phase has finished."""
        return (self.finished if component in self.in_commit else self.processed) is not None

    @property
    def partitions(self) -> Mapping[str, Any]:
        """What the attempt read: a meta for each partition."""
        return self.metas.partitions

    @property
    def records(self) -> int:
        """The number of rows that the source emitted. Raises UsageError before they are processed."""
        return self._result(None).records

    def emitted(self, component: str, stream: str = DEFAULT_STREAM, *, task: int | None = None) -> list[Row]:
        """Return the tuples that a component emitted to a stream, sorted by task and then in emission order.

        `task` limits them to one task. Raises UsageError for an unknown component or stream, and before the
        component's phase has finished.
        """
        schema = self._schema(component, stream)
        found = [
            emitted
            for emitted in self._result(component).emitted
            if (emitted.component, emitted.stream) == (component, stream) and task in (None, emitted.task)
        ]
        tables = [emitted.tuples for emitted in sorted(found, key=lambda emitted: emitted.task)]
        return rows_of(pa.concat_tables([schema.empty_table(), *tables]))

    def emitted_by_task(self, component: str, stream: str = DEFAULT_STREAM) -> dict[int, list[Row]]:
        """As `emitted`, by task, for each task that emitted anything."""
        self._schema(component, stream)
        tasks = {
            emitted.task
            for emitted in self._result(component).emitted
            if (emitted.component, emitted.stream) == (component, stream)
        }
        return {task: self.emitted(component, stream, task=task) for task in sorted(tasks)}

    def places(self, component: str) -> list[TaskPlace]:
        """Return where each task of a component ran (slot, worker, host) and how many tuples it got. Raises
        UsageError as `emitted` does."""
        self._streams(component)
        return [place for place in self._result(component).places if place.component == component]

    def received(self, component: str) -> dict[int, int]:
        """Return how many tuples each task of a component got. Raises UsageError as `emitted` does."""
        return {place.task: place.tuples for place in self.places(component)}

    def deltas(self, component: str) -> list[Row]:
        """Return what a state bolt adds to its table: rows of the key columns, then a delta per value column.
        Raises UsageError for a component that fills no table, and before the phase has finished."""
        if self.finished is None:
            table = self.merge(self._result(component))
        else:
            table = self.merge(self._result(None), self.finished)
        if component not in table:
            raise UsageError(
                f"component {component!r} fills no table; {', '.join(map(repr, table)) or 'none'} do"
            )
        return rows_of(table[component])

    def _result(self, component: str | None) -> BatchResult:
        commits = component in self.in_commit
        result = self.finished if commits else self.processed
        if result is None:
            why = f"it {self.state}: {self.error}" if self.error is not None else f"it is {self.state}"
            raise UsageError(
                f"{self.id} has not been through {'the commit of its bolts' if commits else 'processing'} "
                f"({why}), so what it emitted there is not known"
            )
        return result

    def _schema(self, component: str, stream: str) -> pa.Schema:
        streams = self._streams(component)
        if stream not in streams:
            raise UsageError(
                f"component {component!r} has no stream {stream!r}; it declares "
                f"{', '.join(map(repr, streams)) or 'no output'}"
            )
        return streams[stream]

    def _streams(self, component: str) -> Mapping[str, pa.Schema]:
        streams = self.streams.get(component)
        if streams is None:
            raise UsageError(f"there is no component {component!r}; there are {', '.join(self.streams)}")
        return streams

    def __repr__(self) -> str:
        shown = f"{self.id}, number {self.number}: {self.state}"
        return f"<{shown} ({self.error})>" if self.error is not None else f"<{shown}>"


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """Return Arrow rows as tuples, in column order."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class History:
    """All attempts of all of the topology's drivers."""

    def __init__(self) -> None:
        self._attempts: dict[TransactionAttempt, Attempt] = {}

    def of(self, txid: int) -> list[Attempt]:
        """Return the attempts of a txid, in the order in which they began."""
        return [attempt for attempt in self._attempts.values() if attempt.txid == txid]

    def txids(self) -> Sequence[Txid]:
        return sorted({attempt.txid for attempt in self._attempts})

    def last_error(self) -> BaseException | None:
        """Return the error of the latest attempt that failed."""
        errors = [attempt.error for attempt in self._attempts.values() if attempt.error is not None]
        return errors[-1] if errors else None

    def add(self, attempt: Attempt) -> None:
        self._attempts[attempt.id] = attempt

    def find(self, attempt: TransactionAttempt) -> Attempt | None:
        return self._attempts.get(attempt)

    def move(self, attempt: TransactionAttempt, state: AttemptState) -> None:
        """Set the state of an attempt. An attempt that has ended keeps its state."""
        found = self._attempts.get(attempt)
        if found is not None and not found.has_ended:
            found.state = state

    def committed(self, attempt_id: int | None) -> None:
        """Record that a new driver found this attempt committed. Its own driver may not have lived to see
        it."""
        for attempt in self._attempts.values():
            if attempt.id.attempt == attempt_id:
                attempt.state = AttemptState.COMMITTED

    def lose_open(self) -> None:
        """Record the end of the driver: its open attempts are lost."""
        for attempt in self._attempts.values():
            if not attempt.has_ended:
                attempt.state = AttemptState.LOST


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
            call.attempt.txid, call.attempt.attempt,
            call.phase, call.component, call.task, call.kind, call.tuples,
        ]  # fmt: skip
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
