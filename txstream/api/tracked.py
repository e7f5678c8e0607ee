"""What a user implements for tracked tuples: spouts whose tuples are acked or failed one by one.

A spout lives in the driver's process, one instance per task, from `open` to `close`. Bolts run on executors,
in micro-batches: a fresh instance is unpickled for each task of each micro-batch. So a bolt must ack or fail
a tuple in the micro-batch that brought it. A tuple that is held longer can no longer be acked: its trees time
out, and the log and `txstream status` name the bolt.

Delivery is at least once. A tree that failed or timed out comes again if its spout emits it again, with
tuples that bolts may have seen already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import ClassVar, Protocol

import pyarrow as pa

from txstream.api.bolts import Bolt, OutputFieldsDeclarer, TopologyContext
from txstream.api.spouts import SpoutContext
from txstream.api.tuples import DEFAULT_STREAM, Tuple

MessageId = Hashable

Anchors = Tuple | Sequence[Tuple] | None
"""What an emitted tuple descends from: a tuple, several, or nothing. Its failure fails all of their roots."""


class SpoutCollector(Protocol):
    """Takes what a spout emits, from any thread, from the beginning of `open` to the end of `close`. It
    checks arity at once, and types when the tuples leave for the bolts."""

    def emit(
        self, values: Sequence[object], message_id: MessageId | None = None, stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """Emit one tuple, its values in the order of the stream's fields.

        With a message id its tree is tracked: when the tree ends, `ack` or `fail` of this same spout task
        gets the id. Without one the spout hears nothing more of it. Returns the ids of the tasks that get the
        tuple, as in `context.task_ids` and as `emit_direct` takes them; they are computed when they are
        looked at. Raises TupleError.
        """

    def emit_direct(
        self,
        task: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> Sequence[int]:
        """Like `emit`, to the task with this id. Its bolt must subscribe to this stream, which must be
        declared direct."""


class Spout(ABC):
    """A source whose tuples are tracked. Declare the output as for a bolt, by `output` or
    `declare_output_fields`.

    All spout tasks of a topology share one thread, which calls every method below, so none of them may block.
    Each task is a copy, made by pickle, of the instance that was given to `set_spout`: open connections in
    `open`.
    """

    output: ClassVar[str | pa.Schema | None] = None

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        """Called once when the topology is built."""
        if self.output is not None:
            declarer.declare(self.output)

    @abstractmethod
    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        """Called first, once per task; `context` says which task this is. Keep the collector."""

    @abstractmethod
    def next_tuple(self) -> None:
        """Emit what there is, one tuple or several, and return at once, even if there is nothing.

        Called over and over while fewer than `max_spout_pending` trees of this task are open. While no spout
        task emits anything, the calls become rarer, down to one in 50 ms.
        """

    def ack(self, message_id: MessageId) -> None:  # noqa: B027 - a spout without message ids needs none
        """Called when the tree of this message is complete: the source may forget it."""

    def fail(self, message_id: MessageId) -> None:  # noqa: B027
        """Called when the tree of this message failed, or took longer than the message timeout. Emit it again
        now or from `next_tuple`. Bolts may have seen part of the tree."""

    def waiting_for(self) -> str | None:
        """Return what this task waits for before it can say that its source has nothing more, in a few words
        that follow "waiting for": "the queue at ..., which does not answer". None if its source has nothing.

        Called over and over while `next_tuple` emits nothing; answer at once, from what is known. While a
        task waits, `--until caught-up` does not end the run, and `txstream status` and the run show the
        words. A spout that emits nothing because it cannot look at its source must say so here: otherwise
        silence is taken for the end. The default never waits.
        """
        return None

    def activate(self) -> None:  # noqa: B027
        """Called after `open` and after a pause, before `next_tuple`; not at all while the topology is
        paused."""

    def deactivate(self) -> None:  # noqa: B027
        """Called before a pause and before `close`. Until `activate`, `next_tuple` is not called, but `ack`
        and `fail` are."""

    def close(self) -> None:  # noqa: B027
        """Called last, once every tree has ended or timed out. A killed process calls nothing."""


class RichCollector(Protocol):
    """Takes what a RichBolt emits, and its acks and fails."""

    def emit(self, anchors: Anchors, values: Sequence[object], stream: str = DEFAULT_STREAM) -> None:
        """Emit one tuple that descends from `anchors`; with None or an empty list it belongs to no tree.
        Raises UsageError for an anchor that was acked or failed, and TupleError as in every bolt."""

    def emit_direct(
        self, task: int, anchors: Anchors, values: Sequence[object], stream: str = DEFAULT_STREAM
    ) -> None:
        """Like `emit`, to the task with this id (see `context.task_ids`). Its bolt must subscribe to this
        stream, which must be declared direct."""

    def ack(self, tup: Tuple) -> None:
        """Mark this tuple as processed; emit what descends from it before. Raises UsageError if it was acked
        or failed already."""

    def fail(self, tup: Tuple, reason: str | None = None) -> None:
        """Fail all roots of this tuple, as soon as the micro-batch is over; their spouts may emit them again.
        Raises as `ack`."""


class RichBolt(Bolt):
    """A bolt that anchors and acks itself: for joins and aggregations of several tuples, and for tuples that
    fail one by one.

    There is one fresh instance per task and micro-batch: open what is expensive in `prepare_worker`. Every
    tuple must be acked or failed before the micro-batch ends, in `cleanup` at the latest.
    """

    def prepare(self, context: TopologyContext, collector: RichCollector) -> None:
        """Called first, once. The default keeps both, as `self.context` and `self.collector`."""
        self.context = context
        self.collector = collector

    @abstractmethod
    def execute(self, tup: Tuple) -> None:
        """Called once per tuple. BatchFailedError (FailedException) fails the tuple, with its message as the
        reason; any other exception counts as a bug and fails all trees of the micro-batch."""

    def cleanup(self) -> None:
        """Called after all of the task's tuples in this micro-batch: the last chance to emit and ack."""
