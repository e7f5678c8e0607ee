"""What is new at the ends of logs: where they end now, and the few records that have come, by one fetch.

A live plan asks for both all the time. One fetch answers both, and over many partitions a fetch session
(KIP-227) has the broker tell only of those with something new. Records that are read here go with the batch's
work order to the executor, which then has nothing to ask for.

Invariants:

- An answer is of all partitions, or there is none: the caller then asks in the way that says what is wrong.
  A partition that is left out of `look` has no records that wait, and its place was looked at before.
- Each fetch begins at the partition's place, in the topic with the planned id, with the leader's epoch. A
  place that the log does not have, or another leader, is an error, and so no answer.
- What a session's answer leaves out is as it was. After any error the next fetch begins a new session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from kafka.protocol.consumer import FetchRequest, IsolationLevel

from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.protocol import FETCH_WITHOUT_TAGS, Leader, Partition, PartitionLog

_MOST_BYTES = 64 * 1024
_LONGEST_SESSION = 1 << 30  # its epoch is a number of 32 bits
_WITH_IDS = 13  # the first version of a fetch that names topics by their ids


class NewRecords(NamedTuple):
    """Record batches of a partition from an offset on, as its leader sent them."""

    start: int
    data: bytes


class _Followed(NamedTuple):
    """A partition of a session."""

    name: str
    topic: UUID
    number: int
    leader: Leader


@dataclass(slots=True)
class _Session:
    """A fetch session with one broker, and the last places from which it was asked. With the `epoch` 0 it is
    yet to begin, and ends the one that has its `id`."""

    partitions: Sequence[_Followed]
    id: int
    epoch: int = 0
    places: dict[str, KafkaRange] = field(default_factory=dict)


class LogTail:
    """Follows the logs of partitions whose leaders are known."""

    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._leaders: Mapping[Partition, Leader] = {}
        self._topic_ids: Mapping[str, str] = {}
        self._sessions: dict[int, _Session] = {}
        self._followed: dict[tuple[UUID, int], _Followed] = {}
        self._logs: dict[str, PartitionLog] = {}
        self._waiting: set[str] = set()
        self.records: Mapping[str, NewRecords] = {}

    def look(
        self,
        leaders: Mapping[Partition, Leader],
        topic_ids: Mapping[str, str],
        planned: Mapping[str, KafkaRange],
        timeout_seconds: float,
        *,
        read_committed: bool,
    ) -> dict[str, PartitionLog] | None:
        """Return the logs of those of these partitions in which records wait, or whose place in what is
        `planned` is another object than at the last look; None if that cannot be told in this way. `records`
        then are what has come since."""
        self.records = {}
        if leaders is not self._leaders and (leaders, topic_ids) != (self._leaders, self._topic_ids):
            self._begin(leaders, topic_ids)
        if not self._sessions:
            return None
        level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        records: dict[str, NewRecords] = {}
        changed: set[str] = set()
        asked = {
            node: [_request(session, planned, level, changed)] for node, session in self._sessions.items()
        }
        for node, answer in self._client.ask(asked, timeout_seconds).items():
            session = self._sessions[node]
            if isinstance(answer, Exception) or not self._take(session, answer[0], level, changed, records):
                self._leaders = {}
                return None
        seen = changed | self._waiting
        self._waiting = {name for name in seen if self._logs[name].end > planned[name].end}
        self.records = records
        return {name: self._logs[name] for name in seen}

    def _begin(self, leaders: Mapping[Partition, Leader], topic_ids: Mapping[str, str]) -> None:
        before, self._sessions = self._sessions, {}
        self._leaders, self._topic_ids = leaders, topic_ids
        self._logs, self._waiting = {}, set()
        if not all(topic_ids.get(partition.topic) for partition in leaders):
            return  # an old broker
        by_node: dict[int, list[_Followed]] = defaultdict(list)
        for partition, leader in leaders.items():
            topic = UUID(topic_ids[partition.topic])
            by_node[leader.node].append(_Followed(partition.name, topic, partition.number, leader))
        for node, some in by_node.items():
            self._sessions[node] = _Session(some, before[node].id if node in before else 0)
        self._followed = {(one.topic, one.number): one for some in by_node.values() for one in some}

    def _take(
        self,
        session: _Session,
        response: Any,
        level: IsolationLevel,
        changed: set[str],
        records: dict[str, NewRecords],
    ) -> bool:
        """Take in an answer. False if it does not tell of all partitions."""
        if response.error_code or response.throttle_time_ms:
            return False  # one that is throttled tells of nothing
        told = 0
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._followed.get((topic.topic_id, data.partition_index))
                end = written = data.high_watermark
                if level is IsolationLevel.READ_COMMITTED:
                    end = data.last_stable_offset
                if followed is None or data.error_code or end < 0 or data.log_start_offset < 0:
                    return False
                told += 1
                name, topic_id = followed.name, str(topic.topic_id)
                self._logs[name] = PartitionLog(
                    data.log_start_offset, end, topic_id, followed.leader, written
                )
                changed.add(name)
                if data.records and not data.aborted_transactions:
                    records[name] = NewRecords(session.places[name].end, bytes(data.records))
        if session.epoch == 0 and told < len(session.partitions):
            return False
        session.id = response.session_id  # 0 if the broker keeps none
        session.epoch = session.epoch + 1 if session.id else 0
        return True


def _request(
    session: _Session, planned: Mapping[str, KafkaRange], level: IsolationLevel, changed: set[str]
) -> Any:
    """Ask for what has moved; a session that begins asks for all. Adds what has moved to `changed`."""
    if session.epoch in (0, _LONGEST_SESSION):
        session.epoch, session.places = 0, {}
    topic_type = FetchRequest.FetchTopic
    moved: dict[UUID, list[Any]] = defaultdict(list)
    places = session.places
    for name, topic, number, leader in session.partitions:
        place, before = planned[name], places.get(name)
        if place is before:
            continue
        places[name] = place
        changed.add(name)
        if before is None or place.end != before.end:
            moved[topic].append(
                topic_type.FetchPartition(
                    partition=number,
                    current_leader_epoch=leader.epoch,
                    fetch_offset=place.end,
                    partition_max_bytes=_MOST_BYTES,
                )
            )
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_MOST_BYTES,
        isolation_level=level,
        session_id=session.id,
        session_epoch=session.epoch,
        min_version=_WITH_IDS,
        max_version=FETCH_WITHOUT_TAGS,
        topics=[topic_type(topic_id=topic, partitions=some) for topic, some in moved.items()],
    )
