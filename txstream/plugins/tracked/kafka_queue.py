"""`KafkaQueueSpout`: Kafka topics, shared by a consumer group, as a source of tracked tuples.

Invariants:

- The offset committed for a partition is that of its oldest record whose tree is open, or the end of what was
  read. So the group moves past a record only when the trees of all records up to it are complete.
- A partition that the group takes away is forgotten, with everything pending of it: its next owner continues
  from the committed offset. A later ack changes nothing, even if the partition has come back: message ids
  carry the number of the assignment.
- The group has an offset for every partition before a record of it is read. The first ones are committed for
  all partitions of a topic at once, by the task that has its first partition. So where a topic has some, a
  partition without one is new, and begins at its beginning.
- Only the reader's thread, `_read`, polls Kafka's consumer: joining a group takes polls that wait, and the
  spout's own thread must not wait. It polls as long as the task lives, with its partitions paused while
  nothing more is wanted; otherwise the group would take it for dead. Pending rows are shared with it, and
  with the group's callbacks on a thread of the client, under `_lock`. Nobody holds the lock while waiting
  for Kafka.
- The task waits for something unless Kafka said lately, after the last record was read, that the whole group
  is at the end of every partition, whoever has it.
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
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout, SpoutCollector
from txstream.core.errors import DataLostError, ServiceUnavailableError, TopologyError
from txstream.core.wording import counted
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka.arguments import ALL_OTHERS
from txstream.spouts.kafka.columns import joined_batch, readers
from txstream.spouts.kafka.protocol import Partition, reason_of
from txstream.spouts.kafka.record_blocks import RecordColumns, Records

log = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_POLL_MILLISECONDS = 500
_FULL_MILLISECONDS = 20
_ANSWER_MILLISECONDS = 2000
# What Kafka said of the ends holds for so long: a poll and the question may take a second or two.
_FRESH_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_LOOK_AGAIN_SECONDS = 5.0
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

    source: topics, formats and connection. `start` may only be "earliest" or "latest", for topics
        of which the group has no offset. What it comes to is committed before the first record is read.
        Partitions that a topic gets later begin at their beginning. `on_data_loss` says what happens when the
        group's offset is no longer there; `max_records_per_partition` does not apply.
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
                "KafkaQueueSpout takes its offsets from the group; start= must be 'earliest' or "
                "'latest', for topics of which the group has none"
            )
        if source.max_records_per_partition is not None:
            raise TopologyError(
                "max_records_per_partition is about batches; tracked tuples have max_spout_pending"
            )
        if source.tombstones == "skip":
            raise TopologyError("tombstones='skip' is about batches; tracked tuples take 'refuse' or 'null'")
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
        self._readers = readers(source, context)
        self._lock = threading.Lock()
        self._assigned: dict[TopicPartition, _Assigned] = {}
        self._assignments = 0
        self._ready: deque[KafkaMessage] = deque()
        self._active = True
        self._stopping = threading.Event()
        self._error: Exception | None = None
        self._group = self.group or context.topology_id
        # When Kafka was last asked for the ends, and what was missing then; None once a record came after it.
        self._looked: tuple[float, str | None] | None = None
        self._look_at = 0.0
        self._others: dict[TopicPartition, int] = {}
        with self._kafka():
            self._consumer = KafkaConsumer(
                **{
                    "client_id": f"txstream-{context.topology_id}-{context.component}",
                    **source.client_options,
                },
                bootstrap_servers=source.address(context).split(","),
                group_id=self._group,
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

    def waiting_for(self) -> str | None:
        looked = self._looked
        if looked is None or time.monotonic() - looked[0] > _FRESH_SECONDS:
            return f"an answer of Kafka about the ends of {', '.join(map(repr, self.source.selection.names))}"
        return looked[1]

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
                self._poll()
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
        is_full = len(self._ready) >= _MOST_READY
        began = self._assignments
        found: dict[TopicPartition, list[Any]] = {}
        with self._unless_lost():
            if self._active and not is_full:
                self._consumer.resume(*self._consumer.paused())
            else:  # polling paused partitions keeps the task in the group
                self._consumer.pause(*self._consumer.assignment())
        with self._kafka():
            try:
                milliseconds = _FULL_MILLISECONDS if is_full else _POLL_MILLISECONDS
                found = self._consumer.poll(milliseconds, max_records=_POLL_RECORDS)
                if not found and not is_full and time.monotonic() >= self._look_at:
                    with self._unless_lost():
                        self._look()
            except NoOffsetForPartitionError as error:
                self._begin(error.args[0])
            except OffsetOutOfRangeError as error:
                self._passed_over(error.args[0])
        if found:
            self._looked, self._look_at = None, 0.0
        for place, records in found.items():
            with self._lock:
                state = self._assigned.get(place)
            if state is not None and state.assignment <= began:
                self._take(place, state, records)
                continue
            # It was assigned to us during the poll: these records may be from an earlier assignment.
            with self._kafka(), self._unless_lost(), contextlib.suppress(ValueError):  # it is no longer ours
                self._consumer.seek(place, min(records[0].offset, self._consumer.position(place)))

    def _take(self, place: TopicPartition, state: _Assigned, records: list[Any]) -> None:
        partition = Partition(place.topic, place.partition)
        batch = joined_batch(self.source, self._readers, [(partition, _columns(records))])
        rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
        with self._lock:
            for record, row in zip(records, rows, strict=True):
                state.pending[record.offset] = row
                self._ready.append(
                    KafkaMessage(place.topic, place.partition, record.offset, state.assignment)
                )
            state.end = records[-1].offset + 1

    def _begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit where the group begins in partitions for which it has no offset; the next poll goes on."""
        consumer, assignment = self._consumer, self._consumer.assignment()
        for topic in {place.topic for place in partitions if place in assignment}:
            everywhere = self._partitions(topic)
            missing = [place for place in everywhere if self._offset_of_group(place) is None]
            if len(missing) < len(everywhere):
                begin = consumer.beginning_offsets(
                    [place for place in missing if place in assignment], _ANSWER_MILLISECONDS
                )
            elif everywhere and everywhere[0] in assignment:
                is_earliest = self.source.starting_offsets[ALL_OTHERS] == "earliest"
                ask = consumer.beginning_offsets if is_earliest else consumer.end_offsets
                begin = ask(everywhere, _ANSWER_MILLISECONDS)
            else:  # the task that has the first partition says where
                self._stopping.wait(_FULL_MILLISECONDS / 1000)
                continue
            log.info("%r: the group %r begins at %s", self, self._group, begin)
            try:
                consumer.commit(
                    {place: OffsetAndMetadata(offset, "", -1) for place, offset in begin.items()},
                    timeout_ms=_ANSWER_MILLISECONDS,
                )
            except KafkaError as error:  # the group has changed, perhaps; the next poll asks again
                log.info("%r: offsets were not committed (%s)", self, reason_of(error))

    def _partitions(self, topic: str) -> list[TopicPartition]:
        numbers = self._consumer.partitions_for_topic(topic)
        return [TopicPartition(topic, number) for number in sorted(numbers or ())]

    def _offset_of_group(self, place: TopicPartition) -> int | None:
        found: int | None = self._consumer.committed(place, timeout_ms=_ANSWER_MILLISECONDS)
        return found

    def _look(self) -> None:
        """Ask whether the group is at the end of every partition. Our own places move past what is no record,
        such as the markers of transactions."""
        began = time.monotonic()
        self._look_at = began + _LOOK_AGAIN_SECONDS  # unless it answers: what is there is read meanwhile
        topics = {topic: self._partitions(topic) for topic in self.source.selection.names}
        missing = [f"topic {topic!r}, which Kafka does not show" for topic in topics if not topics[topic]]
        everywhere = [place for places in topics.values() for place in places]
        ends = self._consumer.end_offsets(everywhere, _ANSWER_MILLISECONDS) if everywhere else {}
        own = self._consumer.assignment()
        for place in everywhere:
            name = f"{place.topic}/{place.partition}"
            if place in own:
                at = self._consumer.position(place, _ANSWER_MILLISECONDS)
                with self._lock:
                    if place in self._assigned:
                        self._assigned[place].end = at
                whose = ""
            else:
                at = self._others.get(place)
                if at is None or at < ends[place]:
                    at = self._offset_of_group(place)
                    if at is not None:
                        self._others[place] = at
                whose = f", which another member of the group {self._group!r} has or had"
            if at is None:
                missing.append(f"{name}, where the group {self._group!r} has no offset yet")
            elif at < ends[place]:
                missing.append(f"{name}, {counted(ends[place] - at, 'record')} before its end{whose}")
        more = f"; and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        self._looked = (began, f"{missing[0]}{more}" if missing else None)
        self._look_at = began + _LOOK_SECONDS

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
    def _unless_lost(self) -> Iterator[None]:
        """Log that a partition is no longer ours: the client's thread may give one up at any moment, and then
        kafka-python raises IllegalStateError, or a bare KeyError. Not for `poll`, which may have taken
        records: that error ends the run, and the next one reads them again. (Errors of the broker it raises
        before it takes records, or keeps for the next call.)"""
        try:
            yield
        except (IllegalStateError, KeyError) as error:
            if isinstance(error, KeyError) and not isinstance(error.args[0], TopicPartition):
                raise
            log.info("%r: a partition was lost meanwhile (%s); trying again", self, error)

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
