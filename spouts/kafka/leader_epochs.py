"""Leader epochs (KIP-320): whether what was read of a log is still in it, or it was cut back and grew again.

Kafka counts the leaders of a partition. Every record batch bears the epoch of the leader that wrote it, and a
leader knows where each epoch ends in its log.

Invariants:

- A range is stored with the leader epoch of the offset before its end. An epoch has one leader, which adds to
  what it took over. So two logs that have the same epoch at the same offset are the same up to there, and a
  place has survived exactly if the log has the place's epoch at the last offset before it. To compare where
  the epoch ends is not enough: a replica that was left behind may come to lead with records that nobody else
  had, in an older epoch that ends past our place.
- The epoch is known before anything is read: the leader reports it when the range is planned. The reader
  compares it with the record batch (`fetch`).
- A log is cut back only where a new leader begins, and with it a new epoch. While the leader's epoch stays,
  what it has answered stays true, and nothing is asked. Every look at the logs names the epoch, so a new
  leader is noticed without a question. Then, and at the start, there is one round of questions; more follow
  only while a range ends in an epoch before the leader's own, which is searched by halves.
- No healthy log is refused. An ordinary new leader begins behind all that could be read. Retention moves the
  beginning of the log. Compaction may remove all records of an epoch, of which another replica then knows
  nothing: the record before the place decides, and if that is gone too, nothing contradicts the place.
- A leader with an older epoch than a place is not believed: it may be cut off and know nothing of newer ones.
  Only if no broker knows a newer one was the cluster itself set back.
- An unknown epoch (None) is never compared: that of ranges stored before epochs were, of places before which
  the log has nothing, and of brokers that do not answer (Kafka before 2.3), which is said once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import kafka.errors as kafka_errors

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka import KafkaRange
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.cluster_watch import ClusterWatch
from txstream.spouts.kafka.protocol import EpochEnd, Leader, Partition, PartitionLog, reason_of

log = logging.getLogger(__name__)

_UNKNOWN = EpochEnd(-1, -1)  # the answer of a log that knows no epochs
_NONE = None, None


@dataclass(frozen=True, slots=True)
class LostPlace:
    """What the log says of a place that did not survive, and where reading can go on."""

    what: str
    go_on: int


@dataclass(slots=True)
class _Epochs:
    """What one leader has answered about its log's epochs."""

    topic_id: str
    leader: Leader
    can_tell: bool = True
    ends: dict[int, EpochEnd] = field(default_factory=dict)
    confirmed: set[tuple[int, int]] = field(default_factory=set)  # places that `ends` alone does not show

    def of(self, offset: int) -> int | None:
        """The epoch of an offset; None while that is not known."""
        if not self.can_tell:
            return None
        newest = self.leader.epoch
        before = self.ends.get(newest - 1)
        if newest == 0 or (before is not None and before.end <= offset):
            return newest
        low, high = self._between(offset)
        return high if low + 1 == high else None

    def question(self, offset: int) -> int:
        """The epoch whose end brings `of` nearer to its answer."""
        low, high = self._between(offset)
        return high - 1 if high == self.leader.epoch else (low + high) // 2

    def _between(self, offset: int) -> tuple[int, int]:
        """The newest epoch that is known to end at or before the offset, and the oldest that may hold it."""
        low = max((epoch for epoch, found in self.ends.items() if found.end <= offset), default=-1)
        holds = (min(epoch, found.epoch) for epoch, found in self.ends.items() if found.end > offset)
        return low, min(holds, default=self.leader.epoch)

    def has(self, place: KafkaRange) -> bool:
        """Whether the log has this place, as far as it is known."""
        epoch = place.leader_epoch
        if epoch is None or not self.can_tell:
            return True
        return self.of(place.end - 1) == epoch or (place.end, epoch) in self.confirmed


class LeaderEpochs:
    """Asks leaders for the epochs of offsets, and keeps their answers until another leads."""

    def __init__(self, client: KafkaClient, watch: ClusterWatch) -> None:
        self._client = client
        self._watch = watch
        self._known: dict[str, _Epochs] = {}
        # The last place of each partition that was found in its leader's log. After a look at the cluster the
        # leader may be another object, though it is the same broker: then the place is compared again.
        self._survived: dict[str, tuple[KafkaRange, Leader]] = {}
        self._without: set[int] = set()
        self._said = False

    def has(self, name: str, place: KafkaRange) -> bool:
        """Whether it is known, without asking, that the log has this place."""
        known = self._known.get(name)
        return place.leader_epoch is None or (known is not None and known.has(place))

    def judge(
        self, places: Mapping[str, KafkaRange], logs: Mapping[str, PartitionLog], deadline: float
    ) -> tuple[dict[str, LostPlace], dict[str, Unavailable]]:
        """Return which of these places, the ends of ranges, are lost, and which cannot be judged now. A log
        is one of the same topic, and does not begin after the place. `deadline` is monotonic."""
        lost: dict[str, LostPlace] = {}
        doubtful: dict[str, int] = {}
        questions: dict[str, set[int]] = {}
        for name, place in places.items():
            survived, leader = self._survived.get(name, _NONE)
            if survived is place and leader is logs[name].leader:
                continue
            known, epoch = self._of(name, logs[name]), place.leader_epoch
            if epoch is None or known.has(place):
                self._survived[name] = place, logs[name].leader
                continue
            doubtful[name] = epoch
            if epoch <= known.leader.epoch:
                questions[name] = {epoch, epoch - 1, known.leader.epoch - 1}
        unavailable = self._ask(questions, deadline)
        for name, epoch in doubtful.items():
            if name not in unavailable and not self._known[name].has(places[name]):
                judge = self._judge if name in questions else self._judge_set_back
                verdict = judge(name, places[name].end, epoch, logs[name], deadline)
                if isinstance(verdict, LostPlace):
                    lost[name] = verdict
                elif verdict is not None:
                    unavailable[name] = verdict
        return lost, unavailable

    def complete(
        self, planned: Mapping[str, KafkaRange], logs: Mapping[str, PartitionLog], deadline: float
    ) -> tuple[dict[str, KafkaRange], dict[str, Unavailable]]:
        """Return these ranges with the epochs in which they end, and why some are not known now. `deadline`
        is monotonic."""
        completed = dict(planned)
        unavailable: dict[str, Unavailable] = {}
        left = [name for name, one in planned.items() if one.end > logs[name].first]
        while left:
            questions: dict[str, set[int]] = {}
            for name in left:
                epochs, offset = self._of(name, logs[name]), planned[name].end - 1
                epoch = epochs.of(offset)
                if epoch is not None:
                    completed[name] = replace(planned[name], leader_epoch=epoch)
                elif epochs.can_tell:
                    questions[name] = {epochs.question(offset)}
            missing = self._ask(questions, deadline)
            unavailable |= missing
            left = [name for name in questions if name not in missing]
        return {name: one for name, one in completed.items() if name not in unavailable}, unavailable

    def _of(self, name: str, log: PartitionLog) -> _Epochs:
        known = self._known.get(name)
        if known is None or (known.topic_id, known.leader) != (log.topic_id, log.leader):
            known = self._known[name] = _Epochs(log.topic_id, log.leader)
            if log.leader.epoch < 0 or log.leader.node in self._without:
                self._cannot_tell(known)
        return known

    def _cannot_tell(self, known: _Epochs) -> None:
        known.can_tell = False
        if not self._said:
            self._said = True
            log.warning(
                "broker %d does not report leader epochs (Kafka before 2.3): if a log is cut back and grows "
                "past what was read of it, that will not be noticed",
                known.leader.node,
            )

    def _ask(self, wanted: Mapping[str, Iterable[int]], deadline: float) -> dict[str, Unavailable]:
        """Ask where these epochs end, as far as it is not known. Return why some leaders gave no answer."""
        questions = {}
        for name, epochs in wanted.items():
            known = self._known[name]
            missing = [epoch for epoch in sorted(epochs) if epoch >= 0 and epoch not in known.ends]
            if missing:
                questions[Partition.parse(name)] = (known.leader, missing)
        if not questions:
            return {}
        answered, unanswered = self._client.epoch_ends(questions, max(0.05, deadline - time.monotonic()))
        for node, error in unanswered.items():
            if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
                self._without.add(node)
            else:
                self._watch.broker_failed(node, f"broker {node} does not answer ({reason_of(error)})")
        unavailable: dict[str, Unavailable] = {}
        for partition, (leader, _) in questions.items():
            known, answer = self._known[partition.name], answered.get(partition)
            if isinstance(answer, dict):
                known.ends |= answer
                if _UNKNOWN in answer.values():
                    self._cannot_tell(known)
            elif leader.node in self._without:
                self._cannot_tell(known)
            else:
                unavailable[partition.name] = self._not_told(answer or unanswered.get(leader.node))
        return unavailable

    def _not_told(self, error: Exception | None) -> Unavailable:
        self._watch.look_again()
        reason = "it left the partition out of its answer" if error is None else reason_of(error)
        return Unavailable(f"its leader does not report its epochs: {reason}")

    def _judge(
        self, name: str, end: int, epoch: int, log: PartitionLog, deadline: float
    ) -> LostPlace | Unavailable | None:
        """Judge a place whose epoch is not the one that the log has there, as its leader reports. None: it
        has survived."""
        known = self._known[name]
        found = known.ends.get(epoch)
        goes_on = f"has gone on in epoch {log.leader.epoch}, to offset {log.end}"
        if found is not None and found.end < end:
            return LostPlace(
                f"its last record was written in leader epoch {epoch}, which now ends at offset {found.end}; "
                f"the log was cut back there and {goes_on}",
                max(found.end, log.first),
            )
        written = self._client.epoch_at(
            Partition.parse(name), log.leader, end - 1, max(0.05, deadline - time.monotonic())
        )
        if isinstance(written, Exception):
            return self._not_told(written)
        if written is None or written == epoch:
            known.confirmed.add((end, epoch))
            return None
        return LostPlace(
            f"its last record was written in leader epoch {epoch}, and offset {end - 1} is now one of epoch "
            f"{written}; another replica's log has taken over and {goes_on}",
            end,
        )

    def _judge_set_back(
        self, name: str, end: int, epoch: int, log: PartitionLog, deadline: float
    ) -> LostPlace | Unavailable:
        """Judge a place whose epoch is newer than its leader's."""
        newest = self._client.newest_leader_epoch(
            Partition.parse(name), max(0.05, deadline - time.monotonic())
        )
        if newest != log.leader.epoch:
            self._watch.look_again()
            return Unavailable(
                f"its leader has epoch {log.leader.epoch}, its place epoch {epoch}; being checked"
            )
        return LostPlace(
            f"its last record was written in leader epoch {epoch}, and no broker knows one after {newest}; "
            f"the cluster was set back to an older copy, in which the log ends at offset {log.end}",
            min(end, log.end),
        )
