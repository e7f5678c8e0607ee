"""The driver's side of `KafkaSource`: plans the next batch from the last places and the logs alone.

Invariants:

- A plan begins each partition exactly where the last one ended, or says that it cannot: `Unavailable`,
  `DataLostError`, or a range with `skipped_from` when the source is set to continue after a gap.
- All questions of one plan share one deadline. A broker that misses it is left to `ClusterWatch`, so later
  plans do not wait for it again.
- If a topic has a place and is gone, that is lost data, however the topics were chosen. Only `last` says
  which topics of a pattern have a place.
- What is remembered between plans is where partitions without a place begin, until that is committed
  (`starting_places`), and what the present leaders have answered (`leader_epochs`), which can be
  asked again.

Over 500 lines: one plan, whose parts share its deadline and what it has seen of the logs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import kafka.errors as kafka_errors

from txstream.api.spouts import PartitionCoordinator, SpoutContext, Unavailable
from txstream.core.errors import (
    DataLostError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.spouts.kafka import KNOWN, KafkaRange, KafkaSource
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.cluster_watch import ClusterView, ClusterWatch
from txstream.spouts.kafka.columns import services
from txstream.spouts.kafka.compaction import warn_of_compaction
from txstream.spouts.kafka.leader_epochs import LeaderEpochs, LostPlace
from txstream.spouts.kafka.log_ends import LogReader
from txstream.spouts.kafka.open_transactions import OpenTransactions
from txstream.spouts.kafka.protocol import (
    LATEST_STABLE,
    LATEST_WRITTEN,
    NO_NODE,
    Partition,
    PartitionLog,
    TopicInfo,
    reason_of,
)
from txstream.spouts.kafka.publish_group import PublishGroup
from txstream.spouts.kafka.read_first import share_first
from txstream.spouts.kafka.starting_places import StartingPlaces, has_place

log = logging.getLogger(__name__)

PLANNING_SECONDS = 2.0
_MISSING_TOPIC_SECONDS = 3.0
_FEW_RECORDS = 4_000
"""As long as no more wait, they are read with the plan."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where reading continues; after a gap, `skipped_from` is where it should have continued."""

    position: int
    skipped_from: int | None = None


@dataclass(frozen=True, slots=True)
class Target:
    """A log as it was at one moment: its first offset, where a run that begins without any place starts to
    read it, the end of what is written, and its topic's id. What an open transaction holds back lies before
    that end: it was written, and is read once the transaction has ended."""

    first: int
    start: int
    end: int
    topic_id: str = ""


class KafkaPartitionCoordinator(PartitionCoordinator[KafkaRange]):
    """Plans ranges. Raises ServiceUnavailableError when no broker answers or a named topic does not exist."""

    def __init__(self, source: KafkaSource, context: SpoutContext) -> None:
        self._source = source
        self._context = context
        self._planning_seconds = min(PLANNING_SECONDS, context.connect_timeout_seconds)
        self._address = source.address(context)
        self._services = services(source, context)
        self._selection = source.selection
        for topic in self._selection.left_out:
            log.warning(
                "the topic %r matches %r and is not read, because the topology writes to it",
                *(topic, self._selection.pattern),
            )
        read_committed = source.isolation_level == "read_committed"
        self._latest = LATEST_STABLE if read_committed else LATEST_WRITTEN
        self._knows_places = False
        self._few_wait = False
        self._named: tuple[ClusterView, frozenset[str], set[str]] | None = None
        self._client = self._make_client("plan")
        try:
            self._client.connect(context.connect_timeout_seconds)
            found = self._find_topics()
            if context.is_transactional:
                warn_of_compaction(self._client, found, self._planning_seconds)
        except BaseException:
            self._client.close()
            raise
        self._watch = ClusterWatch(
            lambda: self._make_client("watch"), self._selection, source.partition_discovery_seconds
        )
        self._watch.start(found)
        self._logs = LogReader(self._client, self._watch)
        self._transactions = OpenTransactions(self._client)
        self._epochs = LeaderEpochs(self._client, self._watch)
        self._starts = StartingPlaces(
            source.starting_offsets,
            self._logs.names(self._watch.view()),
            self._logs,
            read_committed=read_committed,
        )
        self._group: PublishGroup | None = None
        self.wants_committed = source.publish_group is not None
        if source.publish_group is not None:
            self._group = PublishGroup(
                *(self._address, source.client_options, source.publish_group),
                client_id=f"txstream-{context.topology_id}-{context.component}-publish",
            )
            try:
                self._group.refuse_members()
            except BaseException:
                self.close()
                raise

    def is_ready(self) -> bool:
        view = self._watch.view()
        if self._selection.pattern is not None and not self._knows_places:
            return True  # only a plan's places show that a topic is gone
        if self._source.on_data_loss == "fail" and self._vanished(view):
            return True  # `plan` reports it
        return any(
            leader.node != NO_NODE and leader.node not in view.down
            for topic in view.topics.values()
            if topic.info is not None
            for leader in topic.info.leaders.values()
        )

    def plan(self, last: Mapping[str, KafkaRange], limit: int) -> Mapping[str, KafkaRange | Unavailable]:
        deadline = time.monotonic() + self._planning_seconds
        self.read_ahead = {}
        view = self._watch.view()
        names = self._names(view, last)
        if self._source.on_data_loss == "fail":
            self._refuse_vanished(self._vanished(view))
        few, self._few_wait = self._few_wait, False
        logs = self._logs.look_for_new(names, view, self._latest, deadline, last) if few else None
        is_new_only, unavailable = logs is not None, dict[str, Unavailable]()
        if logs is None:
            logs, unavailable = self._logs.look(names, view, self._latest, deadline)
        self._transactions.see(logs, names)
        self._transactions.ask(deadline)
        self.held_back = self._transactions.held_back()
        begun = {name: log for name, log in logs.items() if not has_place(name, last)}
        for name, reason in self._starts.look_up(begun, view, deadline, last).items():
            unavailable[name] = reason
            del logs[name]
        places: dict[str, _Place] = {}
        for name, place in self._places(logs, last, view, deadline).items():
            if isinstance(place, Unavailable):
                unavailable[name] = place
            else:
                places[name] = place
        answer: dict[str, KafkaRange | Unavailable] = {
            name: self._starts.left_out(name, why, last) for name, why in unavailable.items()
        }
        readable = sum(logs[name].end - place.position for name, place in places.items())
        self.untaken_records = readable + self._transactions.records
        decided = [name for name in begun if name in places and self._starts.decide(name, last)]
        if not decided and self._starts.must_begin_first(last):
            decided = list(places)
        first_places = {
            name: KafkaRange(
                places[name].position,
                places[name].position,
                logs[name].topic_id,
                places[name].skipped_from,
                first_place=KNOWN,
            )
            for name in decided
        }
        if first_places:  # they are committed before anything is read, with their epochs where known
            completed, _ = self._epochs.complete(first_places, logs, deadline)
            return {**answer, **first_places, **completed}
        cap, is_first = self._source.max_records_per_partition, self._source.is_first
        whole = {name: logs[name].end - place.position for name, place in places.items()}
        backlogs = {name: min(left, limit if cap is None else cap) for name, left in whole.items()}
        progress = sum(place.end for place in last.values()) if readable > limit else 0
        shares, later = share_first(is_first, backlogs, last, unavailable, whole, limit, progress)
        planned: dict[str, KafkaRange] = {}
        for name, place in ((one, places[one]) for one in places if one in shares or one not in later):
            taken = shares.get(name, 0)
            if taken or name not in last or place.skipped_from is not None:
                planned[name] = KafkaRange(
                    place.position, place.position + taken, logs[name].topic_id, place.skipped_from
                )
        completed, missing = self._epochs.complete(planned, logs, deadline)
        if later and any(map(is_first, missing)):
            completed = {name: one for name, one in completed.items() if name not in later}
        taken_now = {name for name, one in completed.items() if not one.is_empty}
        self.passed_over = [name for name, left in whole.items() if left > 0 and name not in taken_now]
        if is_new_only:
            self.read_ahead = self._logs.new_records(completed)
        self._few_wait = readable <= _FEW_RECORDS and not (answer or missing)
        self.untaken_records -= sum(shares.values())
        if missing and not last:  # a first batch without them would decide where they begin
            return {**answer, **missing}
        return {**answer, **missing, **(completed or self._starts.over_nothing(last))}

    def unreadable(self, metas: Mapping[str, KafkaRange]) -> Mapping[str, Unavailable]:
        """Raises DataLostError when a planned range can never be read again, whatever `on_data_loss` says."""
        planned = {name: meta for name, meta in metas.items() if not meta.is_empty}
        topics = self._expect(planned)
        view = self._watch.view()
        self._refuse_vanished(topics.intersection(self._vanished(view)))
        deadline = time.monotonic() + self._planning_seconds
        logs, unavailable = self._logs.look(planned, view, LATEST_WRITTEN, deadline)
        lost, unjudged = self._judge(planned, logs, deadline)
        unavailable |= unjudged
        for name, log in logs.items():
            meta = planned[name]
            if name in lost:
                raise self._lost_plan(name, meta, lost[name].what)
            if self._is_another_topic(meta, log):
                if view.topics[Partition.parse(name).topic].confirmed:
                    raise self._lost_plan(name, meta, "its topic was deleted and created again")
                self._watch.look_again()
                unavailable[name] = Unavailable("its topic seems to be another one; being checked")
            elif log.first > meta.start:
                raise self._lost_plan(name, meta, f"the log begins at offset {log.first}")
            elif log.end < meta.end:
                raise self._lost_plan(name, meta, f"the log ends at offset {log.end}")
        return unavailable

    def services_away(self) -> Mapping[str, str]:
        away = {}
        for service in self._services:
            try:
                service.check(self._planning_seconds)
            except ServiceUnavailableError as error:
                away[service.shown] = str(error)
        return away

    def targets(self) -> Mapping[str, Target]:
        """The ends of what is written in all partitions, read once. Raises PartitionUnavailableError."""
        deadline = time.monotonic() + self._planning_seconds
        while True:
            view = self._watch.view()
            names = self._logs.names(view)
            logs, unavailable = self._logs.look(names, view, self._latest, deadline, to_the_end=True)
            self._transactions.see(logs, names)
            self.held_back = self._transactions.held_back()
            unavailable |= self._starts.look_up(logs, view, deadline, {})
            for name, topic in view.topics.items():
                if topic.info is None:
                    unavailable[name] = Unavailable("the topic does not exist")
                elif topic.info.refused:
                    unavailable[name] = Unavailable(topic.info.refused)
            if not unavailable:
                return {
                    name: Target(
                        log.first, self._starts.start_of(name, log, {}), log.written or log.end, log.topic_id
                    )
                    for name, log in logs.items()
                }
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                listed = "; ".join(f"{name}: {unavailable[name].reason}" for name in sorted(unavailable))
                raise PartitionUnavailableError(f"cannot tell where the log ends now: {listed}")
            self._watch.wait_for_look(view.looks, remaining)

    def reached(self, last: Mapping[str, KafkaRange], targets: Mapping[str, Any]) -> bool:
        if self.lag_records(last, targets) > 0:
            return False
        if any(self._starts.decide(name, last) for name in targets):
            return False  # the next run would begin elsewhere
        if not targets and self._starts.over_nothing(last):
            return False  # so would it
        if any(name in last and self._is_elsewhere(name, last[name], targets[name]) for name in targets):
            return False  # `plan` must judge it, even if the new topic is empty
        if not all(self._epochs.has(name, last[name]) for name in targets if name in last):
            return False  # `plan` must judge whether the log still has it
        if self._selection.pattern is None or self._source.on_data_loss == "skip":
            return True
        # Targets cover only topics that exist. `plan` must judge a topic that has a place and is gone.
        topics = self._expect(last)
        known = self._watch.view().topics
        return all(name in known and known[name].info is not None for name in topics)

    def lag_records(self, last: Mapping[str, KafkaRange], targets: Mapping[str, Any]) -> int:
        """The lag in offsets, including those that compaction or markers left empty."""
        lag = 0
        for name, target in targets.items():
            start = target.start if self._starts.decide(name, last) else target.first
            if has_place(name, last) and not self._is_elsewhere(name, last[name], target):
                start = last[name].end
            lag += max(0, target.end - start)
        return lag

    def _is_elsewhere(self, name: str, meta: KafkaRange, target: Target) -> bool:
        """Is this place in a deleted topic, and the target in the one that has its name now? The target may
        also be the older one, if the topic is created again later."""
        topic = self._watch.view().topics.get(_topic_of(name))
        now = topic.info.id if topic is not None and topic.info is not None else ""
        return bool(meta.topic_id and now) and now == target.topic_id != meta.topic_id

    def committed(self, places: Mapping[str, KafkaRange]) -> None:
        if self._group is not None:
            self._group.put({name: meta.end for name, meta in places.items() if meta.is_placed})

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
        self._watch.close()
        self._client.close()

    # --- the cluster -----------------------------------------------------------------------------------

    def _make_client(self, role: str) -> KafkaClient:
        options = {
            name: value
            for name, value in self._source.client_options.items()
            if name not in ("fetch_max_bytes", "max_partition_fetch_bytes")
        }
        default = f"txstream-{self._context.topology_id}-{self._context.component}-{role}"
        return KafkaClient(self._address, options, client_id=options.get("client_id", default))

    def _find_topics(self) -> dict[str, TopicInfo]:
        """Look for the topics for some seconds: not every broker knows a new topic at once."""
        deadline = time.monotonic() + min(_MISSING_TOPIC_SECONDS, self._context.connect_timeout_seconds)
        while True:
            try:
                found = self._selection.look(self._client, (), self._context.connect_timeout_seconds)
            except (kafka_errors.KafkaError, OSError) as error:
                raise self._not_described(self._selection, reason_of(error)) from error
            if self._selection.pattern is not None:
                return found
            for name, topic in found.items():
                if topic.refused:
                    raise self._not_described(f"the topic {name!r}", topic.refused)
            missing = [name for name in self._selection.names if name not in found or not found[name].leaders]
            if not missing:
                return found
            if time.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    f"topic {missing[0]!r} does not exist on {self._address}; create it, for example with "
                    f"`txstream topic create {missing[0]} --partitions N`"
                )
            self._client.pause(0.2)

    def _not_described(self, what: object, reason: str) -> ServiceUnavailableError:
        return ServiceUnavailableError(f"Kafka at {self._address} does not describe {what}: {reason}")

    def _expect(self, places: Iterable[str]) -> set[str]:
        """Return the source's topics of these partitions. From now on the watch reports when one is gone."""
        topics = {topic for topic in set(map(_topic_of, places)) if self._selection.reads(topic)}
        self._watch.expect(topics)
        self._knows_places = True
        return topics

    def _names(self, view: ClusterView, last: Mapping[str, KafkaRange]) -> set[str]:
        """Return the partitions to plan: those that the cluster has, and those of our topics with a place."""
        known = self._named
        if known is None or known[0] is not view or known[1] != last.keys():
            topics = self._expect(last)
            placed = (name for name in last if _topic_of(name) in topics)
            known = self._named = view, frozenset(last), {*self._logs.names(view), *placed}
        return known[2]

    # --- places ----------------------------------------------------------------------------------------

    def _places(
        self,
        logs: Mapping[str, PartitionLog],
        last: Mapping[str, KafkaRange],
        view: ClusterView,
        deadline: float,
    ) -> dict[str, _Place | Unavailable]:
        places: dict[str, _Place | Unavailable] = {}
        beyond: dict[str, _Place] = {}
        lost, unjudged = self._judge(last, logs, deadline)
        for name, log in logs.items():
            meta = last.get(name)
            if meta is not None and not meta.is_placed:
                meta = None
            position = self._starts.start_of(name, log, last) if meta is None else meta.end
            if name in unjudged:
                places[name] = unjudged[name]
            elif name in lost:
                places[name] = self._behind_the_gap(name, position, lost[name].go_on, lost[name].what)
            elif meta is not None and self._is_another_topic(meta, log):
                places[name] = self._place_in_another_topic(name, position, log, view)
            elif position < log.first:
                places[name] = self._behind_the_gap(
                    name, position, log.first, f"the log begins at offset {log.first}"
                )
            elif position > log.end:
                beyond[name] = _Place(position)
            else:
                places[name] = _Place(position)
        if beyond:
            places.update(self._places_beyond(beyond, logs, last, view, deadline))
        return places

    def _judge(
        self, metas: Mapping[str, KafkaRange], logs: Mapping[str, PartitionLog], deadline: float
    ) -> tuple[dict[str, LostPlace], dict[str, Unavailable]]:
        """Return which of the places at the ends of these ranges their logs no longer have, and which cannot
        be judged now."""
        places = {
            name: metas[name]
            for name, log in logs.items()
            if name in metas and log.first <= metas[name].end and not self._is_another_topic(metas[name], log)
        }
        return self._epochs.judge(places, logs, deadline)

    def _is_another_topic(self, meta: KafkaRange, log: PartitionLog) -> bool:
        return bool(meta.topic_id and log.topic_id and meta.topic_id != log.topic_id)

    def _place_in_another_topic(
        self, name: str, position: int, log: PartitionLog, view: ClusterView
    ) -> _Place | Unavailable:
        if not view.topics[Partition.parse(name).topic].confirmed:
            self._watch.look_again()
            return Unavailable("its topic seems to have been created again; being checked")
        return self._behind_the_gap(name, position, log.first, "its topic was deleted and created again")

    def _places_beyond(
        self,
        beyond: Mapping[str, _Place],
        logs: Mapping[str, PartitionLog],
        last: Mapping[str, KafkaRange],
        view: ClusterView,
        deadline: float,
    ) -> dict[str, _Place | Unavailable]:
        """Judge places past the log's end. Either only the committed part ends there (an open transaction,
        after a change of the isolation level), or the log was cut back, or it is another topic's."""
        fresh = self._watch.wait_for_look(view.looks, max(0.0, deadline - time.monotonic()))
        written, _ = self._logs.look(beyond, fresh, LATEST_WRITTEN, deadline)
        places: dict[str, _Place | Unavailable] = {}
        for name, place in beyond.items():
            log = written.get(name)
            if log is None or log.topic_id != logs[name].topic_id:
                places[name] = Unavailable("its log ends before its place; being checked")
            elif place.position <= log.end:
                places[name] = place
            elif not has_place(name, last):
                raise UsageError(
                    f"start= begins {name} at offset {place.position}, but its log ends at "
                    f"{log.end}; give an offset from {log.first} to {log.end}, or 'latest'"
                )
            else:
                places[name] = self._behind_the_gap(
                    name, place.position, logs[name].end, f"the log ends at offset {log.end}"
                )
        return places

    # --- losses ----------------------------------------------------------------------------------------

    def _behind_the_gap(self, name: str, position: int, go_on: int, what: str) -> _Place:
        if self._source.on_data_loss == "skip":
            return _Place(go_on, position)
        raise DataLostError(
            f"partition {name} cannot go on at offset {position}: {what}; to go on behind the gap, and have "
            f"it recorded, use KafkaSource(..., on_data_loss='skip'), or start under a new topology id"
        )

    def _lost_plan(self, name: str, meta: KafkaRange, what: str) -> DataLostError:
        return DataLostError(
            f"partition {name} cannot be read again from offset {meta.start} to {meta.end}, as its stored "
            f"plan has it: {what}; an open transactional batch cannot be repeated without it: start under a "
            f"new topology id"
        )

    def _vanished(self, view: ClusterView) -> list[str]:
        """Expected topics that are gone: named ones existed when this coordinator was opened, those of a
        pattern have a place."""
        return [name for name, topic in view.topics.items() if topic.info is None and topic.confirmed]

    def _refuse_vanished(self, topics: Iterable[str]) -> None:
        for name in topics:
            raise DataLostError(
                f"the topic {name!r} no longer exists on {self._address}, so what this topology has not "
                f"read of it is lost; create it and start under a new topology id"
            )


def _topic_of(partition: str) -> str:
    return Partition.parse(partition).topic
