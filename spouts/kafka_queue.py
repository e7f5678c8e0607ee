"""`KafkaQueueSpout`: Kafka topics, shared by a consumer group, as a source of tracked tuples.

Invariants:

- The offset committed for a partition is that of its oldest record whose tree is open, or the end of what was
  read. So the group moves past a record only when the trees of all records up to it are complete.
- A partition that the group takes away is forgotten, with everything pending of it: its next owner continues
  from the committed offset. A later ack changes nothing, even if the partition has come back: message ids
  carry the number of the assignment.
- Only the reader's thread, `_read`, polls Kafka's consumer: joining a group takes polls that wait, and the
  spout's own thread must not wait. Pending rows are shared with it, and with the group's callbacks on a
  thread of the client, under `_lock`. Nobody holds the lock while waiting for Kafka.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.errors import IllegalStateError, KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.errors import DataLostError, ServiceUnavailableError, TopologyError
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout, SpoutCollector
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka_arguments import ALL_OTHERS
from txstream.spouts.kafka_columns import json_reader, record_batch
from txstream.spouts.kafka_protocol import Partition, reason_of
from txstream.spouts.kafka_record_blocks import RecordColumns, Records

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_POLL_MILLISECONDS = 500
_PAUSE_SECONDS = 0.02
_POLL_RECORDS = 500
_MOST_READY = 2 * _POLL_RECORDS
_STARTS = ("earliest", "latest")


class KafkaMessage(NamedTuple):
    """The message id of a record. `assignment` counts how often this task was given partitions."""

    topic: str
    partition: int
    offset: int
    assignment: int


@dataclass
class _Assigned:
    """A partition that this task has. `pending` holds rows by offset, ascending, from the time they are read
    until their trees are complete. `end` is the offset after the last one read, None before the first."""

    assignment: int
    pending: OrderedDict[int, tuple[Any, ...]] = field(default_factory=OrderedDict)
    end: int | None = None
    committed: int | None = None

    @property
    def due(self) -> int | None:
        """The offset that may be committed now; None when that is nothing new."""
        offset = next(iter(self.pending), self.end)
        return None if offset == self.committed else offset


class KafkaQueueSpout(Spout):
    """Kafka topics as a source of tracked tuples: `KafkaQueueSpout(KafkaSource("orders", ...))`.

    The tasks and any other members of the group share the partitions. Records are decoded as the source says;
    message ids are `KafkaMessage`s. A record whose tree fails is emitted again from memory. When a process
    dies, its open records come again, to whoever gets its partitions, and so do completed records after the
    oldest open one: offsets are committed only up to that one. The same holds for a partition that moves.

    source: topics, formats and connection. `starting_offsets` may only be "earliest" or "latest", for
        partitions of which the group has no offset; `on_data_loss` says what happens when the group's offset
        is no longer there; `max_records_per_partition` does not apply.
    group: the consumer group, by default the topology's id. Other members must use cooperative-sticky
        assignment too.
    commit_seconds: how often offsets are committed.
    session_timeout_seconds: a task without a sign of life for this long loses its partitions to others.

    Raises TopologyError for invalid arguments.
    """

    def __init__(
        self,
        source: KafkaSource,
        *,
        group: str | None = None,
        commit_seconds: float = 1.0,
        session_timeout_seconds: float = 45.0,
    ) -> None:
        if not isinstance(source, KafkaSource):
            raise TopologyError(f"KafkaQueueSpout takes a KafkaSource, not {type(source).__name__}")
        if source.selection.pattern is not None:
            raise TopologyError("KafkaQueueSpout reads topics by their names; topic_pattern does not apply")
        start = source.starting_offsets.get(ALL_OTHERS)
        if len(source.starting_offsets) > 1 or start not in _STARTS:
            raise TopologyError(
                "KafkaQueueSpout takes its offsets from the group; starting_offsets must be 'earliest' or "
                "'latest', for partitions of which the group has none"
            )
        if source.max_records_per_partition is not None:
            raise TopologyError(
                "max_records_per_partition is about batches; tracked tuples have max_spout_pending"
            )
        self.source = source
        self.group = group
        self.commit_seconds = commit_seconds
        self.session_timeout_seconds = session_timeout_seconds

    def __repr__(self) -> str:
        return f"KafkaQueueSpout({self.source!r})"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self.source.output)

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        """Join the group. Raises ServiceUnavailableError when no broker answers or a named topic does not
        exist."""
        source = self.source
        source.coordinator(context).close()  # checks the address, the options and the topics
        self._collector = collector
        self._json = json_reader(source)
        self._lock = threading.Lock()
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._assignments = 0
        self._ready: deque[KafkaMessage] = deque()
        self._active = True
        self._stopping = threading.Event()
        self._joined = threading.Event()
        self._error: Exception | None = None
        with self._kafka():
            self._consumer = KafkaConsumer(
                **{
                    "client_id": f"txstream-{context.topology_id}-{context.component}",
                    **source.client_options,
                },
                bootstrap_servers=source.address(context).split(","),
                group_id=self.group or context.topology_id,
                isolation_level=source.isolation_level,
                enable_auto_commit=False,
                auto_offset_reset="none",
                allow_auto_create_topics=False,
                partition_assignment_strategy=(CooperativeStickyAssignor,),
                session_timeout_ms=int(self.session_timeout_seconds * 1000),
                heartbeat_interval_ms=int(self.session_timeout_seconds * 1000 / 3),
                metadata_max_age_ms=int(source.partition_discovery_seconds * 1000),
                bootstrap_timeout_ms=int(context.connect_timeout_seconds * 1000),
            )
            self._consumer.subscribe(topics=source.selection.names, listener=_Listener(self))
        self._reader = threading.Thread(target=self._read, name=f"{context.component} reader", daemon=True)
        self._reader.start()
        # Wait for partitions: `--until caught-up` takes a spout that emits nothing for one that has nothing.
        self._joined.wait(context.connect_timeout_seconds)

    def next_tuple(self) -> None:
        """Raises the reader's error: DecodeError, DataLostError, ServiceUnavailableError."""
        while self._ready:
            message = self._ready.popleft()
            row = self._row(message)
            if row is not None:
                self._collector.emit(row, message)
                return
        if self._error is not None:
            raise self._error

    def ack(self, message_id: MessageId) -> None:
        assert isinstance(message_id, KafkaMessage)
        with self._lock:
            state = self._state(message_id)
            if state is not None:
                state.pending.pop(message_id.offset, None)

    def fail(self, message_id: MessageId) -> None:
        assert isinstance(message_id, KafkaMessage)
        if self._row(message_id) is not None:
            self._ready.appendleft(message_id)

    def activate(self) -> None:
        self._active = True

    def deactivate(self) -> None:
        """Stop reading, but stay in the group."""
        self._active = False

    def close(self) -> None:
        """Commit and leave the group, so that others need not wait. Takes some seconds at most."""
        self._stopping.set()
        self._reader.join(3 * _CLOSE_SECONDS)

    # --- what is pending ------------------------------------------------------------------------------------

    def _state(self, message: KafkaMessage) -> _Assigned | None:
        """The partition of a message, if this task still has it under the same assignment."""
        state = self._assigned.get(TopicPartition(message.topic, message.partition))
        return state if state is not None and state.assignment == message.assignment else None

    def _row(self, message: KafkaMessage) -> tuple[Any, ...] | None:
        with self._lock:
            state = self._state(message)
            return None if state is None else state.pending.get(message.offset)

    def _due(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        with self._lock:
            states = {place: self._assigned[place] for place in partitions if place in self._assigned}
            dues = {place: state.due for place, state in states.items()}
        return {place: OffsetAndMetadata(due, "", -1) for place, due in dues.items() if due is not None}

    def _committed(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], answer: Any) -> None:
        if isinstance(answer, Exception):  # the next commit tries again, if the partition is still ours
            log.info("%r: offsets were not committed (%s)", self, reason_of(answer))
            return
        with self._lock:
            for place, offset in offsets.items():
                if place in self._assigned:
                    self._assigned[place].committed = offset.offset

    # --- Kafka ----------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """The reader's thread."""
        commit_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                if len(self._ready) < _MOST_READY:
                    self._poll()
                else:
                    self._stopping.wait(_PAUSE_SECONDS)
                if time.monotonic() >= commit_at:
                    offsets = self._due(list(self._assigned))
                    if offsets:
                        self._consumer.commit_async(offsets, callback=self._committed)
                    commit_at = time.monotonic() + self.commit_seconds
        except Exception as error:  # noqa: BLE001 - next_tuple raises it
            self._error = error
        self._leave()

    def _leave(self) -> None:
        try:
            offsets = self._due(list(self._assigned))
            if offsets:
                self._consumer.commit(offsets, timeout_ms=int(_CLOSE_SECONDS * 1000))
        except KafkaError as error:
            log.warning("%r: the last offsets cannot be committed (%s)", self, reason_of(error))
        finally:
            self._consumer.close(autocommit=False, timeout_ms=int(_CLOSE_SECONDS * 1000))

    def _poll(self) -> None:
        if self._active:
            self._consumer.resume(*self._consumer.paused())
        else:  # polling paused partitions keeps the task in the group
            self._consumer.pause(*self._consumer.assignment())
        began = self._assignments
        found: dict[TopicPartition, list[Any]] = {}
        with self._kafka():
            try:
                found = self._consumer.poll(_POLL_MILLISECONDS, max_records=_POLL_RECORDS)
            except NoOffsetForPartitionError as error:
                self._begin(error.args[0])
            except OffsetOutOfRangeError as error:
                self._passed_over(error.args[0])
        for place, records in found.items():
            with self._lock:
                state = self._assigned.get(place)
            if state is not None and state.assignment <= began:
                self._take(place, state, records)
                continue
            # It was assigned to us during the poll: these records may be from an earlier assignment.
            with self._kafka(), contextlib.suppress(ValueError, IllegalStateError):  # it is no longer ours
                self._consumer.seek(place, min(records[0].offset, self._consumer.position(place)))

    def _take(self, place: TopicPartition, state: _Assigned, records: list[Any]) -> None:
        partition = Partition(place.topic, place.partition)
        batch = record_batch(self.source, self._json, partition, _columns(records))
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        with self._lock:
            for record, row in zip(records, rows, strict=True):
                state.pending[record.offset] = row
                self._ready.append(
                    KafkaMessage(place.topic, place.partition, record.offset, state.assignment)
                )
            state.end = records[-1].offset + 1

    def _begin(self, partitions: Iterable[TopicPartition]) -> None:
        places = [place for place in partitions if place in self._consumer.assignment()]
        if places and self.source.starting_offsets[ALL_OTHERS] == "earliest":
            self._consumer.seek_to_beginning(*places)
        elif places:
            self._consumer.seek_to_end(*places)

    def _passed_over(self, offsets: Mapping[TopicPartition, int]) -> None:
        lost = ", ".join(f"{place.topic}/{place.partition} at {offset}" for place, offset in offsets.items())
        if self.source.on_data_loss == "fail":
            raise DataLostError(
                f"the group's offsets are out of the range of what Kafka still has: {lost}; records were "
                f"deleted unread. Set the group's offsets, or go on behind the gap with on_data_loss='skip'"
            )
        log.warning("%r: records are lost, going on behind the gap: %s", self, lost)
        self._consumer.seek_to_beginning(*offsets)

    @contextlib.contextmanager
    def _kafka(self) -> Iterator[None]:
        """Raise Kafka's errors that will not pass by themselves; log the others."""
        try:
            yield
        except KafkaError as error:
            if not error.retriable:
                raise ServiceUnavailableError(f"{self!r} cannot be read: {reason_of(error)}") from error
            log.info("%r: %s; trying again", self, reason_of(error))

    # --- the group, on the client's thread ------------------------------------------------------------------

    def gained(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            self._assignments += 1
            for place in partitions:
                self._assigned[place] = _Assigned(self._assignments)
        self._joined.set()

    def lost(self, partitions: Iterable[TopicPartition]) -> None:
        with self._lock:
            for place in partitions:
                self._assigned.pop(place, None)

    async def losing(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit what is complete while the partitions are still ours: the next owner begins after it."""
        offsets = self._due(partitions)
        self.lost(partitions)
        if offsets:
            try:
                await self._consumer.commit_async(offsets)
            except KafkaError as error:
                log.info("%r: offsets were not committed (%s)", self, reason_of(error))


class _Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]  # it has no type information
    def __init__(self, spout: KafkaQueueSpout) -> None:
        self._spout = spout

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._spout.gained(assigned)

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        await self._spout.losing(revoked)

    async def on_partitions_lost(self, lost: Iterable[TopicPartition]) -> None:
        self._spout.lost(lost)


def _columns(records: list[Any]) -> RecordColumns:
    found = Records(
        offsets=np.array([record.offset for record in records], np.int64),
        timestamps=np.array([record.timestamp for record in records], np.int64),
        log_append=np.array([record.timestamp_type == 1 for record in records], np.bool_),
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers={
            row: [(name.encode(), value) for name, value in record.headers]
            for row, record in enumerate(records)
            if record.headers
        },
    )
    return RecordColumns([found.block])
