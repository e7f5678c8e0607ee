"""Bolts whose calls are recorded, for tests that look at the order of calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import pyarrow as pa

from txstream.api.bolts import BasicBolt, BatchBolt, Bolt, StateCommitter, TopologyContext
from txstream.api.topology import Phase
from txstream.api.tuples import Chunk, Tuple
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import BoltSpec

__tracebackhide__ = True  # tracebacks begin in the user's own code


class CallKind(StrEnum):
    """Which of a bolt's methods was called. DELTAS means that a state was asked for its folded deltas."""

    PREPARE = "prepare"
    EXECUTE = "execute"
    FINISH_BATCH = "finish_batch"
    DELTAS = "deltas"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a task's method. For EXECUTE it may be several calls in a row, with `tuples` in all."""

    attempt: TransactionAttempt
    phase: Phase
    component: str
    task: int
    kind: CallKind
    tuples: int = 0

    def __str__(self) -> str:
        count = f" x{self.tuples}" if self.kind is CallKind.EXECUTE else ""
        return f"{self.phase} {self.component}[{self.task}] {self.kind}{count}"


# Called before each call of a bolt, in the process that makes the call. It is shipped with the bolt's spec.
CallSink = Callable[[Call], None]


@dataclass(frozen=True)
class RecordedSpec(BoltSpec):
    """A bolt's spec whose instances report every call to `sink`."""

    sink: CallSink | None = None

    def create(self) -> Bolt:
        """A fresh instance that records its calls from `prepare` on."""
        bolt = super().create()
        if self.sink is not None:
            _Recorder(self, self.sink).watch(bolt)
        return bolt


def recorded(spec: BoltSpec, sink: CallSink) -> BoltSpec:
    """The same bolt, watched. A bolt that Spark computes has no calls to record."""
    if spec.is_dataframe:
        return spec
    return RecordedSpec(**{field.name: getattr(spec, field.name) for field in fields(spec)}, sink=sink)


class _Recorder:
    """Watches one instance. If a bolt calls its own method, such as `execute` from `execute_chunk`, that is
    not recorded again."""

    def __init__(self, spec: BoltSpec, sink: CallSink) -> None:
        self._component = spec.id
        self._phase = Phase.COMMIT if spec.in_commit else Phase.PROCESS
        self._sink = sink
        self._context: TopologyContext | None = None
        self._in_chunk = False

    def watch(self, bolt: Bolt) -> None:
        """Put the recording methods on the instance, where they hide those of its class."""
        if isinstance(bolt, BasicBolt):
            self._watch_basic(bolt)
        elif isinstance(bolt, BatchBolt):
            self._watch_batch(bolt)

    def _tell(self, kind: CallKind, tuples: int = 0) -> None:
        context = self._context
        if context is not None:
            self._sink(Call(context.attempt, self._phase, self._component, context.task_index, kind, tuples))

    def _watch_basic(self, bolt: BasicBolt) -> None:
        methods: Any = bolt  # typed as Any: what they return by mistake is handed on, to be refused
        prepare, execute, execute_batch = methods.prepare, methods.execute, methods.execute_batch

        def prepare_told(context: TopologyContext) -> Any:
            self._context = context
            self._tell(CallKind.PREPARE)
            return prepare(context)

        def execute_told(tup: Tuple, collector: Any) -> Any:
            if not self._in_chunk:
                self._tell(CallKind.EXECUTE, 1)
            return execute(tup, collector)

        def execute_batch_told(batch: pa.RecordBatch, collector: Any) -> Any:
            self._tell(CallKind.EXECUTE, batch.num_rows)
            self._in_chunk = True
            try:
                return execute_batch(batch, collector)
            finally:
                self._in_chunk = False

        _put(bolt, prepare=prepare_told, execute=execute_told, execute_batch=execute_batch_told)

    def _watch_batch(self, bolt: BatchBolt) -> None:
        methods: Any = bolt
        prepare, execute, execute_chunk = methods.prepare, methods.execute, methods.execute_chunk
        finish_batch = methods.finish_batch

        def prepare_told(context: TopologyContext, collector: Any, batch_id: TransactionAttempt) -> Any:
            self._context = context
            self._tell(CallKind.PREPARE)
            return prepare(context, collector, batch_id)

        def execute_told(tup: Tuple) -> Any:
            if not self._in_chunk:
                self._tell(CallKind.EXECUTE, 1)
            return execute(tup)

        def execute_chunk_told(chunk: Chunk) -> Any:
            self._tell(CallKind.EXECUTE, len(chunk))
            self._in_chunk = True
            try:
                return execute_chunk(chunk)
            finally:
                self._in_chunk = False

        def finish_told() -> Any:
            self._tell(CallKind.FINISH_BATCH)
            return finish_batch()

        _put(
            bolt,
            prepare=prepare_told,
            execute=execute_told,
            execute_chunk=execute_chunk_told,
            finish_batch=finish_told,
        )
        if isinstance(bolt, StateCommitter):
            deltas = bolt.deltas

            def deltas_told() -> Any:
                self._tell(CallKind.DELTAS)
                return deltas()

            _put(bolt, deltas=deltas_told)


def _put(bolt: Bolt, **methods: Callable[..., Any]) -> None:
    for name, method in methods.items():
        # Avoids a bolt's own __setattr__, if it has one. A bolt without __dict__ cannot be watched.
        object.__setattr__(bolt, name, method)
