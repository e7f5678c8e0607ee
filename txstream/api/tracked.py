"""What a user implements for tracked tuples: spouts whose tuples are acked or failed one by one.

A spout lives in the driver's process, one instance per task, from `open` to `close`. Bolts run on executors,
in micro-batches: a fresh instance for each task of each micro-batch, unpickled there. So a bolt must ack or
fail a tuple in the micro-batch that brought it. One that is held longer can be acked by nobody: its trees
time out, and the log and `txstream status` name the bolt.

Delivery is at least once. A tree that failed or timed out comes again if its spout emits it again, and so do
tuples of it that bolts have seen already.
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
    """Takes what a spout emits, at any time from the beginning of `open` to the end of `close`, from any
    thread. Arity is checked at once, types when the tuples leave for the bolts."""

    def emit(
        self, values: Sequence[object], message_id: MessageId | None = None, stream: str = DEFAULT_STREAM
    ) -> Sequence[int]:
        """One tuple, its values in the order of the stream's fields.

        With a message id its tree is tracked: `ack` or `fail` of this very spout task gets that id when the
        tree has ended. Without one nobody hears of it again. Answers the ids of the tasks that get the tuple,
        as `context.task_ids` has them and `emit_direct` takes them. It is worked out when it is looked at.
        Raises TupleError.
        """

    def emit_direct(
        self,
        task: int,
        values: Sequence[object],
        message_id: MessageId | None = None,
        stream: str = DEFAULT_STREAM,
    ) -> Sequence[int]:
        """As `emit`, to the task with this id, of a bolt that subscribes to this stream, which must be
        declared direct."""


class Spout(ABC):
    """A source whose tuples are tracked. Declare the output as a bolt does, by `output` or by
    `declare_output_fields`.

    All spout tasks of a topology share one thread, which calls every method below: none of them may block.
    Each task is a copy of the instance that was given to `set_spout`, made by pickle: open connections in
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
        """Emit what there is, one tuple or several, and return at once, also when there is nothing.

        Called over and over while fewer than `max_spout_pending` trees of this task are open. When no spout
        task emits anything, the calls become rarer, down to one in 50 ms.
        """

    def ack(self, message_id: MessageId) -> None:  # noqa: B027 - a spout without message ids needs none
        """The tree of this message is complete: the source may forget it."""

    def fail(self, message_id: MessageId) -> None:  # noqa: B027
        """The tree of this message failed, or took longer than the message timeout. Emit it again now or from
        `next_tuple`; bolts may have seen a part of the tree."""

    def activate(self) -> None:  # noqa: B027
        """Called after `open` and after a pause, before `next_tuple`."""

    def deactivate(self) -> None:  # noqa: B027
        """`next_tuple` is not called from now on, until `activate`; `ack` and `fail` are. Also before
        `close`."""

    def close(self) -> None:  # noqa: B027
        """Called last, when every tree has ended or timed out. A killed process calls nothing."""


class RichCollector(Protocol):
    """Takes what a RichBolt emits, and what has become of the tuples it got."""

    def emit(self, anchors: Anchors, values: Sequence[object], stream: str = DEFAULT_STREAM) -> None:
        """One tuple that descends from `anchors`; with None or an empty list it is outside of every tree.
        Raises UsageError for an anchor that was acked or failed, TupleError as in every bolt."""

    def emit_direct(
        self, task: int, anchors: Anchors, values: Sequence[object], stream: str = DEFAULT_STREAM
    ) -> None:
        """As `emit`, to the task with this id (see `context.task_ids`), of a bolt that subscribes to this
        stream, which must be declared direct."""

    def ack(self, tup: Tuple) -> None:
        """This tuple is processed; emit what descends from it before. Raises UsageError for one that was
        acked or failed already."""

    def fail(self, tup: Tuple, reason: str | None = None) -> None:
        """Have all its roots emitted again, as soon as the micro-batch is over. Raises as `ack`."""


class RichBolt(Bolt):
    """A bolt that anchors and acks by itself: for joins and aggregations of several tuples, and for tuples
    that fail one by one.

    One fresh instance per task and micro-batch: open what is dear in `prepare_worker`. Every tuple must be
    acked or failed before the micro-batch ends, in `cleanup` at the latest.
    """

    def prepare(self, context: TopologyContext, collector: RichCollector) -> None:
        """Called first, once. The default keeps both, as `self.context` and `self.collector`."""
        self.context = context
        self.collector = collector

    @abstractmethod
    def execute(self, tup: Tuple) -> None:
        """Called once per tuple. BatchFailedError (FailedException) fails the tuple, with what it says as the
        reason; any other exception counts as a bug, and fails all trees of the micro-batch."""

    def cleanup(self) -> None:
        """Called when all of the task's tuples in this micro-batch have come: the last chance to emit and
        ack."""
