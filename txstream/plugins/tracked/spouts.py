"""The tasks of spouts, in the driver's process: what each has emitted, and which of its trees are open.

Invariants. A tree ends once: `ack` or `fail` is called, with its message id, on the task that emitted it. It
ends at the latest when its time is over, whatever has become of its acker, because the spout task keeps its
own list. Only the thread that opened the user's spout calls it.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txstream.api.bolts import refuse_result
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.errors import BoltError, TopologyError, TxstreamError
from txstream.engine.batch.collector import Collector
from txstream.engine.batch.execution_plan import BoltSpec
from txstream.engine.batch.executor_failures import describe
from txstream.plugins.tracked.acker.ids import FIRST_GENERATION, RootIds, Roots, slots_of
from txstream.plugins.tracked.anchors import single_roots, with_roots
from txstream.plugins.tracked.outlet import Emission, Outlet, SentTo

_NEVER = np.inf
__tracebackhide__ = True  # tracebacks begin in the user's own code


class _Out(Collector):
    """Checks what a spout emits, as a bolt's collector does. A row has its message id beside its values."""

    message_id: MessageId | None = None

    def __init__(self, owner: SpoutTask, spec: BoltSpec, task: int) -> None:
        super().__init__(spec, task, owner._push)
        self._owner = owner

    def _checked(self, values: Sequence[Any], stream: str) -> Any:
        return self.message_id, super()._checked(values, stream)

    def _to_arrow(self, rows: list[Any], stream: str) -> pa.RecordBatch:
        message_ids, values = zip(*rows, strict=True)
        return self._owner._begin(super()._to_arrow(list(values), stream), message_ids)


class SpoutTask:
    """One task of a spout, and the `SpoutCollector` of its instance.

    `number` is the task's number among the `tasks` of all spouts; `clock` returns seconds. `acked_at_once`
    has the message ids of tuples that were emitted without being tracked. Tasks that come after others begin
    with a `first_generation` above the others' `generation`.
    """

    def __init__(
        self,
        spec: BoltSpec,
        task: int,
        number: int,
        tasks: int,
        outlet: Outlet,
        clock: Callable[[], float],
        first_generation: int = FIRST_GENERATION,
    ) -> None:
        self.spec = spec
        self.task = task
        self.emitted = self.acked = self.failed = self.timed_out = 0
        self.open = 0
        self.acked_at_once: list[MessageId] = []
        self.begun: list[Roots] = []
        self._outlet = outlet
        self._clock = clock
        self._tasks = tasks
        self._lock = outlet.lock
        self._out = _Out(self, spec, task)
        self._emissions = {stream: Emission() for stream in spec.streams}
        self._ids = RootIds(number, tasks, first_generation=first_generation)
        # By the number of a root's slot within this task.
        self._message_ids: list[MessageId | None] = []
        self._began: NDArray[np.float64] = np.empty(0)
        instance = pickle.loads(spec.pickled)  # noqa: S301 - pickled by this very driver
        if not isinstance(instance, Spout):
            raise TopologyError(f"component {spec.id!r} came back from pickle as {type(instance).__name__}")
        self.spout = instance

    def __repr__(self) -> str:
        return f"task {self.task} of {self.spec.id!r}"

    @property
    def generation(self) -> int:
        return self._ids.generation

    def follow(self, former: SpoutTask) -> None:
        """Go on with the counts of a task of the same spout that was closed. What it emitted last is still to
        be sent, but nobody hears of those trees."""
        self.begun += former.begun
        self.emitted += former.emitted
        self.acked += former.acked
        self.failed += former.failed
        self.timed_out += former.timed_out

    # --- SpoutCollector -----------------------------------------------------------------------------

    def emit(
        self, values: Sequence[object], message_id: MessageId | None = None, stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """See `SpoutCollector`."""
        with self._lock:
            self._out.message_id = message_id
            emission = self._emissions.get(stream)
            self._out.emit(values, stream)
            assert emission is not None  # for an unknown stream, `emit` has raised
            emission.rows += 1
            self._count(message_id)
            return SentTo(emission, emission.rows - 1, self.flush)

    def emit_direct(
        self,
        task: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> Sequence[int]:
        """See `SpoutCollector`."""
        with self._lock:
            self._out.message_id = message_id
            self._out.emit_direct(task, values, stream)
            self._count(message_id)
            return [task] if self._outlet.subscribers(self.spec.id, stream) else []

    def _count(self, message_id: MessageId | None) -> None:
        self.emitted += 1
        if message_id is not None:
            if self._outlet.log is None:
                self.acked_at_once.append(message_id)
            else:
                self.open += 1

    def flush(self) -> None:
        """Hand on to the outlet what was emitted."""
        with self._lock:
            self._out.flush()

    def _push(self, task: int, batch: pa.RecordBatch, stream: str, direct: int | None) -> None:
        emission = Emission()
        if direct is None:
            emission, self._emissions[stream] = self._emissions[stream], emission
        self._outlet.push(self.spec.id, stream, task, batch, direct, emission)

    # --- trees --------------------------------------------------------------------------------------

    def _begin(self, batch: pa.RecordBatch, message_ids: Sequence[MessageId | None]) -> pa.RecordBatch:
        """Return the tuples with their roots; each tuple that has a message id begins a tree."""
        if self._outlet.log is None:
            return batch
        tracked = np.fromiter((one is not None for one in message_ids), bool, len(message_ids))
        roots = self._ids.take(int(tracked.sum()))
        if len(roots):
            own = slots_of(roots) // self._tasks
            self._grow(int(own.max()) + 1)
            self._began[own] = self._clock()
            given = (one for one in message_ids if one is not None)
            for place, message_id in zip(own.tolist(), given, strict=True):
                self._message_ids[place] = message_id
            self.begun.append(roots)
        return with_roots(batch, single_roots(roots, tracked))

    def _grow(self, needed: int) -> None:
        there = len(self._began)
        if needed > there:
            more = max(needed - there, there // 4)
            self._began = np.concatenate((self._began, np.full(more, _NEVER)))
            self._message_ids += [None] * more

    def _end(self, roots: Roots) -> list[MessageId]:
        """End these trees. Return the message ids of those that were open until now."""
        with self._lock:
            roots = roots[self._ids.release(roots)]
            own = slots_of(roots) // self._tasks
            self._began[own] = _NEVER
            self.open -= len(roots)
            ended = []
            for place in own.tolist():
                ended.append(self._message_ids[place])
                self._message_ids[place] = None
            return ended

    def overdue(self, timeout_seconds: float) -> Roots:
        """Return the trees whose time is over."""
        with self._lock:
            return self._ids.roots_at(np.flatnonzero(self._began <= self._clock() - timeout_seconds))

    def ages(self) -> NDArray[np.float64]:
        """Return how old the open trees are, in seconds."""
        return self._clock() - self._began[self._began < _NEVER]

    @property
    def nbytes(self) -> int:
        """The bytes that its open trees take, without the message ids themselves."""
        return self._ids.nbytes + self._began.nbytes + sys.getsizeof(self._message_ids)

    def open_messages(self) -> list[MessageId]:
        """Return the message ids of the open trees that have been sent."""
        return [one for one in self._message_ids if one is not None]

    def fail_message(self, message_id: MessageId) -> None:
        """Fail the tree of this message."""
        self.fail(self._ids.roots_at(np.array([self._message_ids.index(message_id)])))

    # --- calls of the spout -------------------------------------------------------------------------

    def start(self, context: SpoutContext) -> None:
        """Open the spout."""
        self._call("open", context, self)

    def next_tuple(self) -> bool:
        """Ask for tuples. Return whether there was one."""
        before = self.emitted
        self._call("next_tuple")
        self.ack_untracked()
        return self.emitted > before

    def ack_untracked(self) -> None:
        """Ack the tuples that are not tracked."""
        while self.acked_at_once:
            with self._lock:
                acked, self.acked_at_once = self.acked_at_once, []
            self.acked += len(acked)
            for message_id in acked:
                self._call("ack", message_id)

    def ack(self, roots: Roots) -> None:
        """Ack these trees: they are complete."""
        ended = self._end(roots)
        self.acked += len(ended)
        for message_id in ended:
            self._call("ack", message_id)

    def fail(self, roots: Roots, *, timed_out: bool = False) -> int:
        """Fail these trees: they failed, or their time is over. Return how many were open."""
        ended = self._end(roots)
        if timed_out:
            self.timed_out += len(ended)
        else:
            self.failed += len(ended)
        for message_id in ended:
            self._call("fail", message_id)
        return len(ended)

    def waiting_for(self) -> str | None:
        """Return what the spout waits for, in words; None if it waits for nothing."""
        answer = self._ask("waiting_for")
        if answer is None or isinstance(answer, str):
            return answer
        raise BoltError(
            f"component {self.spec.id!r}, task {self.task}: waiting_for returned {answer!r:.100}; it returns "
            f"text, or None"
        )

    def activate(self) -> None:
        self._call("activate")

    def deactivate(self) -> None:
        self._call("deactivate")

    def close(self) -> None:
        """Close the spout, and hand on its last tuples."""
        self._call("close")
        self.flush()
        self._out.close()

    def _call(self, method: str, *given: object) -> None:
        """Call a method that returns nothing; see `_ask`."""
        result = self._ask(method, *given)
        if result is not None:
            refuse_result(self.spout, method, result)

    def _ask(self, method: str, *given: object) -> Any:
        """Call the user's spout. Its errors become a BoltError that names component, task and method."""
        try:
            return getattr(self.spout, method)(*given)
        except TxstreamError:
            raise
        except Exception as error:
            failure = describe(error, self.spec.id, self.task)
            answer = BoltError(f"component {self.spec.id!r}, task {self.task}, {method}: {failure.message}")
            answer.add_note(failure.details)
            raise answer from error
