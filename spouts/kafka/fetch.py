"""Fetches planned ranges: several partitions and brokers in one loop, until each range is read to its end.

Invariants:

- A range is finished when its position has reached its end, whatever records there were on the way.
  Compaction gaps, markers and aborted transactions are read past; a log that is too short is not.
- There is no fetch session. A fetch asks only for ranges that are being read. What its answer brought beyond
  them serves a later range only if that one was planned so (`kept_answers`).
- While an answer is decoded and the caller works, the next fetch of the same ranges is on its way: for each
  broker one answer of at most `max_bytes`, besides the one being worked on. It asks for what follows if all
  of the previous answer is sound. An answer for a position other than the one reached is dropped.
- A fetch names the topic by its id where the broker supports that. A topic created again under the same name
  is then an unknown topic, and its records are not mistaken for the old one's.
- A range ends in the leader epoch that was planned, so what was read is what was planned, even if the log was
  cut back and has grown again (`leader_epochs`).
- A partition that makes no progress ends in an error: `DataLostError` as soon as its leader's log shows that
  the range cannot come, otherwise `PartitionUnavailableError` after the fetch timeout. Only waiting counts
  towards the timeout, not the time that the caller takes between two chunks.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, NoReturn
from uuid import UUID

import kafka.errors as kafka_errors
from kafka.protocol.consumer import FetchRequest, IsolationLevel

from txstream.core.errors import (
    DataLostError,
    DecodeError,
    PartitionUnavailableError,
    ShortReadError,
    TxstreamError,
)
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.kept_answers import KeptAnswer, KeptAnswers
from txstream.spouts.kafka.protocol import (
    EARLIEST,
    FETCH_WITHOUT_TAGS,
    LATEST_WRITTEN,
    NAMES_ONLY_VERSION,
    NO_NODE,
    Leader,
    PartitionError,
    TopicInfo,
    partition_error,
    reason_of,
)
from txstream.spouts.kafka.range_read import Fetch, RangeRead
from txstream.spouts.kafka.record_batches import (
    CorruptBatchError,
    Fetched,
    OldFormatError,
    decode_records,
    position_behind,
)

CHUNK_OFFSETS = 50_000
_FIRST_BATCH_BYTES = 256 * 1024
_FIRST_BYTES_PER_OFFSET = 256.0
_EMPTY_WAIT_MS = 100
_ASIDE_SECONDS = 2.0
_CONFIRM_SECONDS = 1.0
_LOG_END_CHECK_SECONDS = 0.5
_FETCHES_OF_A_DAMAGED_BATCH = 3
_CALLER_SECONDS = 3600.0  # how long an answer may stay unread before its connection is given up
_OFFSET_OUT_OF_RANGE = kafka_errors.OffsetOutOfRangeError.errno


class RangeFetcher:
    """Reads ranges through one client. Keeps what it learns about topics and sizes for the next ranges."""

    def __init__(
        self,
        client: KafkaClient,
        *,
        read_committed: bool,
        fetch_timeout_seconds: float,
        skip_lost: bool,
        max_partition_bytes: int,
        max_bytes: int,
    ) -> None:
        self._client = client
        self._read_committed = read_committed
        self._timeout = fetch_timeout_seconds
        self._skip_lost = skip_lost
        self._max_partition_bytes = max_partition_bytes
        self._max_bytes = max_bytes
        self._topics: dict[str, TopicInfo] = {}
        self._stale = False
        self._bytes_per_offset: dict[str, float] = {}
        self._largest_batch: dict[str, int] = {}
        self._kept = KeptAnswers()
        self._lock = Lock()

    def run(self, reads: Sequence[RangeRead]) -> Iterator[list[RangeRead]]:
        """Yield reads that have new rows or have reached their end. The caller then takes their columns."""
        unfinished = [read for read in reads if not read.finished]
        pending: dict[int, Fetch] = {}
        with self._lock:
            kept = [(read, answer) for read in unfinished if (answer := self._kept.of(read)) is not None]
            served = self._decode(kept)
        if served:
            yield served
            unfinished = [read for read in unfinished if not read.finished]
        while unfinished:
            with self._lock:  # the client serves one thread at a time, and others while this caller works
                progressed = self._step(unfinished, pending)
            yield progressed
            unfinished = [read for read in unfinished if not read.finished]

    def keep_ahead(self, ahead: Mapping[str, tuple[KafkaRange, bytes]]) -> None:
        """Take record batches that somebody else has fetched, from the starts of these ranges on."""
        with self._lock:
            for name, (wanted, data) in ahead.items():
                self._kept.put(name, KeptAnswer(data, wanted.start, wanted.topic_id, time.monotonic()))

    def _step(self, unfinished: list[RangeRead], pending: dict[int, Fetch]) -> list[RangeRead]:
        began = time.monotonic()
        self._send(unfinished, pending)
        busy = {read for fetch in pending.values() for read in fetch.asked}
        idle_until = min((r.not_before for r in unfinished if r not in busy), default=began + self._timeout)
        self._client.drive(
            lambda: any(fetch.future.is_done for fetch in pending.values()),
            min(began + self._timeout, max(idle_until, began + 0.01)),
        )
        answers: list[tuple[RangeRead, Any]] = []
        for node in [node for node, fetch in pending.items() if fetch.future.is_done]:
            future, asked, _ = pending.pop(node)
            wanted = [read for read, position in asked.items() if read.position == position]
            if future.exception is None:
                answers += self._receive(future.value, wanted)
            else:
                self._stale = True
                for read in wanted:
                    read.put_off(f"broker {node}: {reason_of(future.exception)}")
        self._read_ahead(answers, pending)
        progressed = self._decode(answers)
        waited = time.monotonic() - began
        for read in set(unfinished).difference(progressed):
            read.waited_seconds += waited
            if read.waited_seconds >= self._timeout:
                self._hang_up(read, pending)
                raise PartitionUnavailableError(
                    f"partition {read.name} gave nothing for {self._timeout:g} s at offset {read.position} "
                    f"of the planned {read.planned}: {read.reason}; the batch is tried again"
                )
        return progressed

    # --- asking ----------------------------------------------------------------------------------------

    def _read_ahead(self, answers: Sequence[tuple[RangeRead, Any]], pending: dict[int, Fetch]) -> None:
        """Ask for what follows these answers before they are decoded. A range that got nothing, because the
        others filled the answer, is asked for again with them."""
        for read, data in answers:
            read.ahead = position_behind(data.records or b"", read.position, read.range.end)
        if not self._stale and any(read.ahead > read.position for read, _ in answers):
            self._send([read for read, _ in answers if read.ahead < read.range.end], pending, is_ahead=True)
            self._client.flush()

    def _hang_up(self, read: RangeRead, pending: Mapping[int, Fetch]) -> None:
        """Close the connections of this read's fetches ahead: their long timeout would keep them blocked."""
        for node, fetch in pending.items():
            if fetch.is_ahead and read in fetch.asked:
                self._client.hang_up(node)

    def _send(self, reads: Sequence[RangeRead], pending: dict[int, Fetch], *, is_ahead: bool = False) -> None:
        busy = {read for fetch in pending.values() for read in fetch.asked}
        now = time.monotonic()
        due = [read for read in reads if read not in busy and read.not_before <= now]
        if not due:
            return
        if self._stale or any(read.partition.topic not in self._topics for read in due):
            self._refresh(reads)
        by_node: dict[int, list[RangeRead]] = defaultdict(list)
        for read in due:
            leader = self._leader(read)
            if leader is not None and leader.node not in pending:
                by_node[leader.node].append(read)
        for node, asked in by_node.items():
            timeout = self._timeout + (_CALLER_SECONDS if is_ahead else 0)
            future = self._client.send(node, self._fetch_request(asked), timeout)
            pending[node] = Fetch(future, {read: read.ahead for read in asked}, is_ahead)

    def _refresh(self, reads: Sequence[RangeRead]) -> None:
        names = {read.partition.topic for read in reads}
        try:
            found = self._client.topics(names, _ASIDE_SECONDS)
            self._topics = {**{n: t for n, t in self._topics.items() if n not in names}, **found}
            self._stale = False
        except (kafka_errors.KafkaError, OSError) as error:
            for read in reads:
                read.put_off(reason_of(error))

    def _leader(self, read: RangeRead) -> Leader | None:
        """The leader to ask, None when there is none now. Raises when the topic is gone or is another one."""
        topic = self._topics.get(read.partition.topic)
        known = read.range.topic_id
        if topic is None or (known and topic.id and topic.id != known):
            # One broker may learn of a new or deleted topic later than the others: wait for confirmation.
            now = time.monotonic()
            if read.strange_since is None:
                read.strange_since = now
            elif now - read.strange_since >= _CONFIRM_SECONDS:
                what = "no longer exists" if topic is None else "was deleted and created again"
                self._lost(read, f"the topic {read.partition.topic!r} {what}")
            self._stale = True
            read.put_off(f"the topic {read.partition.topic!r} is not known as planned")
            return None
        read.strange_since = None
        leader = topic.leaders.get(read.partition.number)
        if leader is None or leader.node == NO_NODE:
            self._stale = True
            read.put_off(topic.refused or "it has no leader")
            return None
        return leader

    def _fetch_request(self, asked: list[RangeRead]) -> Any:
        # Kafka fills its answer in the order of the request: ranges that got nothing last time come first.
        by_topic: dict[str, list[RangeRead]] = defaultdict(list)
        for read in sorted(asked, key=lambda read: (read.ahead > read.position, -read.waited_seconds)):
            by_topic[read.partition.topic].append(read)
        has_ids = all(self._topics[name].id for name in by_topic)
        topic_type = FetchRequest.FetchTopic
        return FetchRequest(
            max_wait_ms=_EMPTY_WAIT_MS,
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=(
                IsolationLevel.READ_COMMITTED if self._read_committed else IsolationLevel.READ_UNCOMMITTED
            ),
            session_id=0,
            session_epoch=-1,
            min_version=4,
            max_version=FETCH_WITHOUT_TAGS if has_ids else NAMES_ONLY_VERSION,
            topics=[
                topic_type(
                    topic=name,
                    topic_id=UUID(self._topics[name].id) if has_ids else None,
                    partitions=[
                        topic_type.FetchPartition(
                            partition=read.partition.number,
                            current_leader_epoch=self._topics[name].leaders[read.partition.number].epoch,
                            fetch_offset=read.ahead,
                            partition_max_bytes=self._fetch_bytes(read),
                        )
                        for read in reads
                    ],
                )
                for name, reads in by_topic.items()
            ],
        )

    def _fetch_bytes(self, read: RangeRead) -> int:
        """Estimate the bytes of the rest of the range, or of a chunk of it, from what its topic took so far.
        Add room for the rest of the batches in which it begins and ends: half a batch each."""
        topic = read.partition.topic
        per_offset = self._bytes_per_offset.get(topic, _FIRST_BYTES_PER_OFFSET)
        around = self._largest_batch.get(topic, _FIRST_BATCH_BYTES)
        offsets = min(read.range.end - read.ahead, CHUNK_OFFSETS)
        return max(around, min(int(offsets * per_offset * 1.05) + around, self._max_partition_bytes))

    # --- answers ---------------------------------------------------------------------------------------

    def _receive(self, response: Any, asked: Sequence[RangeRead]) -> list[tuple[RangeRead, Any]]:
        """Return the answers without errors. An error puts its range off or is raised."""
        reads: Mapping[tuple[str, int], RangeRead] = {
            (key, read.partition.number): read
            for read in asked
            for key in (read.partition.topic, self._topic_id(read))
        }
        answers = []
        missing = set(asked)
        for topic in response.responses:
            key = topic.topic or str(topic.topic_id)
            for data in topic.partitions:
                read = reads.get((key, data.partition_index))
                if read is None:
                    continue
                missing.discard(read)
                if self._is_an_answer(read, data):
                    answers.append((read, data))
        for read in missing:
            error = partition_error(response.error_code or 0)
            self._stale = True
            read.put_off(str(error) if error else "its leader left it out of the answer")
        return answers

    def _topic_id(self, read: RangeRead) -> str:
        topic = self._topics.get(read.partition.topic)
        return topic.id if topic is not None else ""

    def _is_an_answer(self, read: RangeRead, data: Any) -> bool:
        if data.error_code == _OFFSET_OUT_OF_RANGE:
            self._out_of_range(read)
            return False
        error = partition_error(data.error_code)
        if error is not None:
            self._stale = self._stale or error.stale
            read.put_off(str(error))
            return False
        return True

    def _decode(self, answers: Sequence[tuple[RangeRead, Any]]) -> list[RangeRead]:
        """Decode the answers. Return the ranges that have advanced."""
        parts = [
            Fetched(data.records or b"", read.position, read.range.end, data.aborted_transactions)
            for read, data in answers
        ]
        decode_records(parts, read_committed=self._read_committed)
        self._learn_sizes(answers, parts)
        return [
            read for (read, data), part in zip(answers, parts, strict=True) if self._take(read, data, part)
        ]

    def _learn_sizes(self, answers: Sequence[tuple[RangeRead, Any]], parts: Sequence[Fetched]) -> None:
        sizes: Counter[str] = Counter()
        offsets: Counter[str] = Counter()
        for (read, _), part in zip(answers, parts, strict=True):
            topic = read.partition.topic
            if part.largest:
                self._largest_batch[topic] = max(part.largest, self._largest_batch.get(topic, 0))
            sizes[topic] += part.size
            offsets[topic] += part.covered
        self._bytes_per_offset |= {topic: sizes[topic] / offsets[topic] for topic in +offsets}

    def _take(self, read: RangeRead, data: Any, part: Fetched) -> bool:
        """Give a range what was decoded of it. True if it has advanced."""
        read.ahead = read.position
        match part.error:
            case CorruptBatchError():
                self._damaged(read, part.error)
                return False
            case OldFormatError():
                raise DecodeError(
                    f"the records at offset {part.error.offset} of topic {read.partition.topic!r}, partition "
                    f"{read.partition.number}, are in message format {part.error.magic}, which brokers wrote "
                    f"before Kafka 0.11 and txstream does not read; write the topic's records again with a "
                    f"current producer, where the topic's message.format.version (the broker's "
                    f"log.message.format.version; gone since Kafka 4) is 0.11.0 or later"
                ) from part.error
        planned = read.range.leader_epoch
        if planned is not None and part.last_epoch not in (None, planned):
            self._lost(
                read,
                f"offset {read.range.end - 1} was planned in leader epoch {planned} and is now one of epoch "
                f"{part.last_epoch}: the log was cut back, and what is there now is not what was planned",
            )
        if part.position > read.position:
            read.columns.add(part.blocks, part.unpacked)
            read.advance(part.position)
            if read.finished:
                self._kept.keep(read, data, part)
            return True
        readable = data.last_stable_offset if self._read_committed else data.high_watermark
        if readable is not None and 0 <= readable < read.range.end:
            read.reason = f"only offsets below {readable} can be read now"
            self._check_log_end(read)
        return False

    def _damaged(self, read: RangeRead, damage: CorruptBatchError) -> None:
        read.damaged += 1
        text = f"the record batch at offset {damage.offset} is damaged: {damage.reason}"
        if read.damaged >= _FETCHES_OF_A_DAMAGED_BATCH:
            self._lost(read, f"{text}, in {read.damaged} fetches")
        read.put_off(text)

    def _check_log_end(self, read: RangeRead) -> None:
        """Raise if the plan ends past the log's own end. What is readable may lag for a moment after a change
        of leaders, the log's own end does not: nothing beyond it will come."""
        now = time.monotonic()
        leader = self._topics[read.partition.topic].leaders[read.partition.number]
        if now - read.end_checked_at < _LOG_END_CHECK_SECONDS:
            return
        read.end_checked_at = now
        end = self._client.log_end(read.partition, leader, _ASIDE_SECONDS)
        if isinstance(end, int) and 0 <= end < read.range.end:
            self._lost(read, f"the log ends at offset {end}")

    def _out_of_range(self, read: RangeRead) -> None:
        leader = self._topics[read.partition.topic].leaders[read.partition.number]
        found, _ = self._client.offsets({read.partition: leader}, [EARLIEST, LATEST_WRITTEN], _ASIDE_SECONDS)
        bounds = found.get(read.partition)
        if bounds is not None and not isinstance(bounds, PartitionError):
            first, end = bounds
            if read.position < first:
                self._lost(read, f"the log begins at offset {first}")
            if read.position > end:
                self._lost(read, f"the log ends at offset {end}")
        self._stale = True
        read.put_off(f"offset {read.position} is out of range")

    def _lost(self, read: RangeRead, what: str) -> NoReturn:
        kind: Callable[[str], TxstreamError] = DataLostError
        remedy = (
            "what is lost cannot be read again; with on_data_loss='skip' a new plan goes on behind it, or "
            "start under a new topology id"
        )
        if self._skip_lost:  # the next plan continues after the gap and records it
            kind, remedy = ShortReadError, "the next plan of this batch goes on behind it and records the gap"
        raise kind(
            f"partition {read.name}, planned {read.planned}, position {read.position}: {what}; {remedy}"
        )
