"""What ties tuples to their trees: hidden columns beside a tuple's fields, and a Spark task's acks.

Before tuples are routed they carry the roots that they descend from. Each copy that is sent to a task gets
an id of its own, which its roots take when it is sent and again when it is acked: they are XORed with it.
What a Spark task has sent and acked is folded, so that its answer has each root once.

Invariant: a Spark task that is computed again draws the same ids. Otherwise others would have seen ids that
nobody acks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txstream.api.tuples import Chunk
from txstream.engine.batch.collector import HIDDEN, Collector, visible
from txstream.plugins.tracked.acker.ids import TupleIds, fold

if TYPE_CHECKING:
    from txstream.engine.batch.collector import Send
    from txstream.engine.batch.execution_plan import BoltSpec
    from txstream.plugins.tracked.acker.ids import Roots, Values

ROOTS = f"{HIDDEN}roots"
IDS = f"{HIDDEN}id"

_ROOTS_TYPE = pa.list_(pa.uint64())

OPEN, ACKED, FAILED = 0, 1, 2

# A row of the chunk that is being processed, or the roots of other anchors.
Anchor = int | tuple[int, ...]


class Marks:
    """The roots and ids of a chunk's tuples, and what became of each: OPEN, ACKED or FAILED. `owner` is the
    task that has them, for as long as its micro-batch lasts."""

    __slots__ = ("_lists", "ids", "owner", "roots", "state")

    def __init__(self, roots: pa.ListArray, ids: NDArray[np.uint64]) -> None:
        self.roots = roots
        self.ids = ids
        self.state = bytearray(len(ids))
        self.owner: object = None
        self._lists: list[list[int]] | None = None

    def of(self, row: int) -> list[int]:
        """Return the roots of one tuple."""
        if self._lists is None:
            self._lists = self.roots.to_pylist()
        return self._lists[row]

    def chosen(self, state: int) -> NDArray[np.intp]:
        """Return the rows in that state."""
        return np.flatnonzero(np.frombuffer(self.state, np.uint8) == state)


class AckLog:
    """What a Spark task, or the driver for its spouts, has sent and acked. The numbers in `seed` are nobody
    else's, and are the same when the Spark task is computed again."""

    def __init__(self, seed: Sequence[int]) -> None:
        self._ids = TupleIds(list(seed))
        self._roots: list[Roots] = []
        self._values: list[Values] = []

    def mark(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """Give ids to the tuples for one task, have their roots take them, and return the tuples with ids."""
        ids = self._ids.draw(part.num_rows)
        self.take(part.column(ROOTS), ids)
        return part.append_column(IDS, pa.array(ids))

    def take(self, roots: pa.ListArray, ids: Values) -> None:
        """Have each tuple's roots take its id, because it was sent or acked."""
        flat = flattened(roots)
        if len(flat):
            self._roots.append(flat)
            self._values.append(np.repeat(ids, roots.value_lengths().to_numpy()))

    def folded(self, roots: Sequence[Roots] = ()) -> tuple[Roots, Values]:
        """Empty the log. Return each root once, with the XOR of the ids that it took; `roots` are included
        even if they took none."""
        zeros = [np.zeros(len(some), np.uint64) for some in roots]
        taken, values = [*self._roots, *roots], [*self._values, *zeros]
        self._roots, self._values = [], []
        if not taken:
            return np.empty(0, np.uint64), np.empty(0, np.uint64)
        return fold(np.concatenate(taken), np.concatenate(values))


def flattened(roots: pa.ListArray) -> Roots:
    """Return all roots of all tuples in one array."""
    numbers: Roots = roots.flatten().to_numpy(zero_copy_only=False)
    return numbers


def with_roots(batch: pa.RecordBatch, roots: pa.ListArray) -> pa.RecordBatch:
    return batch.append_column(pa.field(ROOTS, _ROOTS_TYPE), roots)


def single_roots(roots: Roots, tracked: NDArray[np.bool_]) -> pa.ListArray:
    """Return the column of a spout's tuples: the `tracked` ones have one of `roots` each, in order."""
    offsets = np.zeros(len(tracked) + 1, np.int32)
    np.cumsum(tracked, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(roots, pa.uint64()))


def open_chunk(part: pa.RecordBatch, source: str, stream: str, task: int) -> Chunk:
    """Return a chunk of tuples as they came, without the hidden columns among its fields."""
    chunk = Chunk(visible(part), source, stream, task)
    chunk.marks = Marks(part.column(ROOTS), part.column(IDS).to_numpy(zero_copy_only=False))
    return chunk


class AnchoringCollector(Collector):
    """A task's collector. Its tuples descend from `anchor`, a row of `marks` or some roots; if `tracks` is
    False, from nothing."""

    anchor: Anchor = ()
    marks: Marks | None = None

    def __init__(self, spec: BoltSpec, task: int, send: Send, *, tracks: bool) -> None:
        super().__init__(spec, task, send)
        self._tracks = tracks
        # In the order of a stream's rows. A direct stream's rows are sorted by task, so each has its anchor.
        self._anchors: dict[str, list[Anchor]] = {
            stream: [] for stream in spec.streams if tracks and stream not in spec.direct_streams
        }

    def _checked(self, values: Sequence[Any], stream: str) -> Any:
        checked = super()._checked(values, stream)
        anchors = self._anchors.get(stream)
        if anchors is not None:
            anchors.append(self.anchor)
        elif self._tracks:
            return self.anchor, checked
        return checked

    def _to_arrow(self, rows: list[Any], stream: str) -> pa.RecordBatch:
        if not self._tracks:
            return super()._to_arrow(rows, stream)
        if stream in self._anchors:
            anchors, self._anchors[stream] = self._anchors[stream], []
            return self._anchored(super()._to_arrow(rows, stream), anchors)
        direct, values = zip(*rows, strict=True)
        return self._anchored(super()._to_arrow(list(values), stream), direct)

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._anchored(batch, [self.anchor] * batch.num_rows) if self._tracks else batch

    def _anchored(self, batch: pa.RecordBatch, anchors: Sequence[Anchor]) -> pa.RecordBatch:
        marks = self.marks
        if marks is not None and set(map(type, anchors)) == {int}:
            return with_roots(batch, marks.roots.take(pa.array(anchors, pa.int32())))
        roots = [marks.of(one) if isinstance(one, int) and marks is not None else one for one in anchors]
        return with_roots(batch, pa.array(roots, _ROOTS_TYPE))
