"""What a tier that tracks tuples adds to bolt tasks: the port between the engine's tasks and such a tier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.api.tuples import Chunk, Tuple
    from txstream.engine.batch.collector import Collector, OpenChunk, Send
    from txstream.engine.batch.execution_plan import BoltSpec
    from txstream.engine.batch.messages import Tracked


class TieredTask(Protocol):
    """One bolt task; also the collector that a RichBolt is given."""

    out: Collector

    def tuples(self, chunk: Chunk) -> Iterator[Tuple]:
        """Yield the tuples of a chunk. What is emitted meanwhile descends from the present one."""

    def ack_open(self, chunk: Chunk) -> None:
        """Ack the tuples of a chunk that were not failed."""

    def fail(self, tup: Tuple, reason: str | None = None) -> None:
        """Fail one tuple."""


class Tracking(Protocol):
    """The trees of tuples in one Spark task of one stage."""

    open_chunk: OpenChunk

    def mark(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give ids to the tuples that are emitted."""

    def told(self, tasks: Iterable[Any]) -> Tracked:
        """Return what the Spark task answers once its bolt tasks are over."""


class TaskTier(Protocol):
    """What the group `txstream.tasks` has for a tier."""

    def tracking(self, seed: Sequence[int]) -> Tracking:
        """Return what keeps the trees of a Spark task. `seed` is different for each."""

    def task(self, spec: BoltSpec, task: int, send: Send, *, tracks: bool) -> TieredTask:
        """Return what a bolt task works with."""
