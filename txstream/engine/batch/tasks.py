"""One bolt task of one attempt: the instance, what it got and how long it took.

Invariant: an exception of the user's code leaves here as a `TaskFailedError`, which names component, task and
the tuple that was being processed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from txstream.api.bolts import BasicBolt, BatchBolt, StateCommitter, TopologyContext, refuse_result
from txstream.api.tuples import Chunk, Tuple
from txstream.digests import TableDigest
from txstream.engine.batch.collector import Collector, Send
from txstream.engine.batch.failures import CrashError, Failure, describe
from txstream.engine.batch.plan import BoltSpec
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.commit.state_tasks import TaskStates
from txstream.transaction import TransactionAttempt


class TaskFailedError(Exception):
    """Carries a described failure out of nested calls, within the engine."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass
class Stopwatch:
    """Time by task, each its own: what a task hands on in place is processed inside its call, and must not
    count twice."""

    _inner: list[float] = field(default_factory=list)

    def start(self) -> float:
        self._inner.append(0.0)
        return time.perf_counter()

    def stop(self, started: float) -> float:
        """Seconds since `started`, without those of stopwatches that ran inside."""
        elapsed = time.perf_counter() - started
        inner = self._inner.pop()
        if self._inner:
            self._inner[-1] += elapsed
        return elapsed - inner


class TaskRuntime:
    """One bolt task of this attempt: the instance, its collector, its states, and how many tuples it got.

    `committed` is the attempt that was committed last, where that is known. `written` is what
    the task has written, by state, once it is finished.
    """

    def __init__(
        self,
        spec: BoltSpec,
        task: int,
        slot: int,
        attempt: TransactionAttempt,
        process: WorkerProcess,
        send: Send,
        stopwatch: Stopwatch,
        committed: TransactionAttempt | None = None,
    ) -> None:
        self.spec = spec
        self.task = task
        self.received = 0
        self.seconds = 0.0
        self.written: Mapping[str, TableDigest] = {}
        self.collector = Collector(spec, task, send)
        process.left_open.append(self.collector)
        self._stopwatch = stopwatch
        self._tuple: Tuple | None = None
        plan = process.plan
        with self.working():
            self.bolt = spec.create()
            self._states = TaskStates(spec, task, attempt, process, committed)
            context = TopologyContext(
                topology_id=plan.topology_id,
                component=spec.id,
                task_index=task,
                task_count=spec.tasks,
                attempt=attempt,
                settings=plan.settings,
                task_counts=plan.task_counts,
                slot=slot,
                worker=process.worker,
                host=process.host,
                resource=process.resource(spec, self.bolt),
                states=self._states.states,
            )
            if isinstance(self.bolt, BatchBolt):
                self._call("prepare", context, self.collector, attempt)
            elif isinstance(self.bolt, BasicBolt):
                self._call("prepare", context)

    def receive(self, chunk: Chunk) -> None:
        self.received += len(chunk)
        with self.working():
            bolt = self.bolt
            execute: Any = getattr(bolt, "execute", None)
            if isinstance(bolt, BasicBolt):
                collector = self.collector
                for tup in chunk.tuples():
                    self._tuple = tup
                    if (result := execute(tup, collector)) is not None:
                        refuse_result(bolt, "execute", result)
            elif isinstance(bolt, BatchBolt):
                if type(bolt).execute_chunk is BatchBolt.execute_chunk:
                    for tup in chunk.tuples():
                        self._tuple = tup
                        if (result := execute(tup)) is not None:
                            refuse_result(bolt, "execute", result)
                else:
                    self._call("execute_chunk", chunk)
            self._tuple = None
            self.collector.flush()

    def finish(self) -> None:
        with self.working():
            if isinstance(self.bolt, BatchBolt) and not isinstance(self.bolt, StateCommitter):
                self._call("finish_batch")
            self.collector.flush()
            self.collector.close()
            self.written = self._states.flush()

    def _call(self, method: str, *given: object) -> None:
        """What a method returns, a generator say, would be lost without a word."""
        result = getattr(self.bolt, method)(*given)
        if result is not None:
            refuse_result(self.bolt, method, result)

    def working(self) -> _Working:
        """Enter it around a call of the bolt."""
        return _Working(self)


class _Working:
    """Around every call of the user's code: takes its time, and describes what it raises."""

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime

    def __enter__(self) -> None:
        self._started = self._runtime._stopwatch.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        runtime = self._runtime
        runtime.seconds += runtime._stopwatch.stop(self._started)
        if error is not None and not isinstance(error, (TaskFailedError, CrashError)):
            failure = describe(error, runtime.spec.id, runtime.task, runtime._tuple)
            raise TaskFailedError(failure) from error
