"""The acks of one bolt task in one micro-batch: what a RichBolt's collector does, and a BasicBolt has done
for it.

Invariants. A tuple is acked or failed at most once. Nothing is emitted that descends from a tuple that was
already acked or failed: its tree may have ended. Nobody can ack what is still open when the task is over, so
it is reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.tuples import DEFAULT_STREAM, Chunk, Tuple
from txstream.core.errors import UsageError
from txstream.core.wording import storable
from txstream.engine.batch.messages import Tracked
from txstream.plugins.tracked.anchors import (
    ACKED,
    FAILED,
    OPEN,
    AckLog,
    Anchor,
    AnchoringCollector,
    Marks,
    flattened,
    open_chunk,
)

if TYPE_CHECKING:
    from txstream.api.tracked import Anchors
    from txstream.engine.batch.collector import Send
    from txstream.engine.batch.execution_plan import BoltSpec
    from txstream.plugins.tracked.acker.ids import Roots

_DONE = {ACKED: "acked", FAILED: "failed"}
_LONGEST_REASON = 200
_MOST_REASONS = 20


class TrackedTasks:
    """The `TaskTier` of tracked tuples."""

    @staticmethod
    def tracking(seed: Sequence[int]) -> TaskTracking:
        """See `TaskTier`."""
        return TaskTracking(seed)

    @staticmethod
    def task(spec: BoltSpec, task: int, send: Send, *, tracks: bool) -> TrackedTask:
        """See `TaskTier`."""
        return TrackedTask(spec, task, send, tracks=tracks)


class TaskTracking(AckLog):
    """The trees of tuples in one Spark task of one stage."""

    open_chunk = staticmethod(open_chunk)

    def told(self, tasks: Iterable[TrackedTask | None]) -> Tracked:
        """Return what the Spark task answers once its bolt tasks are over."""
        told = Tracked()
        for task in tasks:
            if task is not None:
                task.finish(self, told)
        told.acks = self.folded()
        return told


class TrackedTask:
    """One bolt task, and the `RichCollector` of a RichBolt. Tuples of an untracked topology have no marks."""

    def __init__(self, spec: BoltSpec, task: int, send: Send, *, tracks: bool) -> None:
        self.out = AnchoringCollector(spec, task, send, tracks=tracks)
        self.reasons: Counter[str] = Counter()
        self._component = spec.id
        self._marks: list[Marks] = []

    # --- for the engine -----------------------------------------------------------------------------

    def tuples(self, chunk: Chunk) -> Iterator[Tuple]:
        """Yield the tuples of a chunk. What is emitted meanwhile descends from the present one, unless the
        bolt gives anchors."""
        marks: Marks | None = chunk.marks
        out = self.out
        out.marks = marks
        if marks is None:
            yield from chunk.tuples()
            return
        marks.owner = self
        self._marks.append(marks)
        for row, tup in enumerate(chunk.tuples()):
            out.anchor = row
            yield tup
        out.anchor = ()

    def ack_open(self, chunk: Chunk) -> None:
        """Ack the tuples of a chunk that were not failed."""
        if chunk.marks is not None:
            chunk.marks.state = chunk.marks.state.replace(bytes([OPEN]), bytes([ACKED]))

    def finish(self, log: AckLog, into: Tracked) -> None:
        """End the task: its acks go to `log`, the rest into `into`, which the Spark task answers."""
        self.out.marks = None
        for marks in self._marks:
            marks.owner = None
            acked, failed, still_open = (marks.chosen(state) for state in (ACKED, FAILED, OPEN))
            if len(acked) == len(marks.ids):
                log.take(marks.roots, marks.ids)
            elif len(acked):
                log.take(marks.roots.take(pa.array(acked)), marks.ids[acked])
            into.acked[self._component] += len(acked)
            if len(failed):
                into.failed[self._component] += len(failed)
                into.failed_roots.append(_roots_at(marks, failed))
            if len(still_open):
                into.held.setdefault(self._component, []).append(_roots_at(marks, still_open))
        for reason, times in self.reasons.items():
            into.reasons[self._component, reason] += times

    # --- RichCollector ------------------------------------------------------------------------------

    def emit(self, anchors: Anchors, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """See `RichCollector`."""
        self.out.anchor = self._anchor(anchors)
        self.out.emit(values, stream)

    def emit_direct(
        self, task: int, anchors: Anchors, values: Sequence[Any], stream: str = DEFAULT_STREAM
    ) -> None:
        """See `RichCollector`."""
        self.out.anchor = self._anchor(anchors)
        self.out.emit_direct(task, values, stream)

    def ack(self, tup: Tuple) -> None:
        """See `RichCollector`."""
        self._settle(tup, ACKED)

    def fail(self, tup: Tuple, reason: str | None = None) -> None:
        """See `RichCollector`."""
        self._settle(tup, FAILED)
        shown = storable(str(reason or "no reason given")[:_LONGEST_REASON])
        if shown in self.reasons or len(self.reasons) < _MOST_REASONS:
            self.reasons[shown] += 1

    def _settle(self, tup: Tuple, state: int) -> None:
        marks = self._marks_of(tup, _DONE[state])
        if marks is not None:
            row = tup._row
            if marks.state[row] != OPEN:
                raise UsageError(
                    f"component {self._component!r} {_DONE[state]} a tuple that it had "
                    f"{_DONE[marks.state[row]]} already: {tup!r:.200}"
                )
            marks.state[row] = state

    def _anchor(self, anchors: Anchors) -> Anchor:
        if anchors is None:
            return ()
        if isinstance(anchors, Tuple):
            marks = self._live_anchor(anchors)
            if marks is None:
                return ()
            return anchors._row if marks is self.out.marks else tuple(marks.of(anchors._row))
        roots: set[int] = set()
        for tup in anchors:
            marks = self._live_anchor(tup)
            if marks is not None:
                roots.update(marks.of(tup._row))
        return tuple(sorted(roots))

    def _live_anchor(self, tup: Tuple) -> Marks | None:
        marks = self._marks_of(tup, "anchored a tuple to")
        if marks is not None and (state := marks.state[tup._row]) != OPEN:
            raise UsageError(
                f"component {self._component!r} emitted a tuple anchored to one that it had {_DONE[state]} "
                f"already: {tup!r:.200}; emit first, then ack"
            )
        return marks

    def _marks_of(self, tup: Tuple, verb: str) -> Marks | None:
        if not isinstance(tup, Tuple):
            raise UsageError(f"component {self._component!r} {verb} {tup!r:.200}, which is no Tuple")
        marks: Marks | None = tup._chunk.marks
        if marks is not None and marks.owner is not self:
            raise UsageError(
                f"component {self._component!r} {verb} a tuple of an earlier micro-batch, or of another "
                f"bolt: {tup!r:.200}; what is not acked or failed when a micro-batch ends times out"
            )
        return marks


def _roots_at(marks: Marks, rows: Any) -> Roots:
    return flattened(marks.roots.take(pa.array(rows)))
