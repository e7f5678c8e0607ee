"""Where partitions without a place begin.

Invariants:

- A source's rule for "all others" holds for the partitions that were there when the topology began. Every
  other partition begins at its beginning: it cannot have been read before.
- A place that a rule decides becomes the partition's first place, which the engine commits before any record
  behind it is read. A partition that cannot be asked when the topology begins is stored without a place, so
  that it is not taken for a new one later; its rule is applied when it can first be asked.
- With a rule other than "earliest", the topology begins with a batch of places only, even if all partitions
  that can be asked are "earliest". The next run then knows which partitions were there.
- A topology that begins over nothing stores `NO_TOPIC_YET`, a place that no partition has: without it the
  next driver would take topics that came meanwhile for ones that were there.
- "latest" and a timestamp are looked up once for each partition and kept until they are committed. Otherwise
  a plan that is made again would skip whatever came in between.
- A timestamp is looked up after the log's end. So a record that arrives in between is either found or lies
  past the end; it is never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka import KNOWN, UNKNOWN, KafkaRange
from txstream.spouts.kafka.arguments import ALL_OTHERS, StartingOffset, epoch_milliseconds
from txstream.spouts.kafka.cluster_watch import ClusterView
from txstream.spouts.kafka.log_ends import LogReader
from txstream.spouts.kafka.protocol import OffsetQuery, PartitionLog

Places = Mapping[str, KafkaRange]

NO_TOPIC_YET = "(no topic yet)/0"  # a name that no topic can have


class StartingPlaces:
    """The starting places of one run. `rules` always has an entry for all others; `opening` holds the
    partitions that were there when the run opened the source. `last` are the places that a plan starts from;
    they are empty until a topology has begun."""

    def __init__(
        self,
        rules: Mapping[str, StartingOffset],
        opening: Iterable[str],
        logs: LogReader,
        *,
        read_committed: bool,
    ) -> None:
        self._rules = rules
        self._opening = frozenset(opening)
        self._logs = logs
        self._read_committed = read_committed
        self._pins: dict[str, int] = {}

    def decide(self, name: str, last: Places) -> bool:
        """Whether a rule decides where this partition begins, rather than a place that it has or its log."""
        return not has_place(name, last) and self._rule(name, last) != "earliest"

    def must_begin_first(self, last: Places) -> bool:
        """Must the places of the first plan be stored before anything is read?"""
        return not last and any(rule != "earliest" for rule in self._rules.values())

    def over_nothing(self, last: Places) -> dict[str, KafkaRange]:
        """Return what a plan without any range stores, so that the topology has begun; empty if it has, or if
        its rule for "all others" says of new partitions what it says of old ones."""
        if last or self._rules[ALL_OTHERS] == "earliest":
            return {}
        return {NO_TOPIC_YET: KafkaRange(0, 0, first_place=KNOWN)}

    def left_out(self, name: str, why: Unavailable, last: Places) -> Unavailable:
        """Return why a plan goes without a partition, with what later plans must know of it."""
        if name in last or not self.decide(name, last):
            return why
        return Unavailable(why.reason, place=KafkaRange(0, 0, first_place=UNKNOWN))

    def look_up(
        self, logs: Mapping[str, PartitionLog], view: ClusterView, deadline: float, last: Places
    ) -> dict[str, Unavailable]:
        """Look up what `start_of` needs for these partitions. Return why that failed for some. `deadline` is
        monotonic."""
        unavailable: dict[str, Unavailable] = {}
        by_time: dict[datetime, list[str]] = {}
        for name, log in logs.items():
            rule = self._rule(name, last)
            if name in self._pins:
                continue
            if rule == "latest":
                self._pins[name] = log.end
            elif isinstance(rule, datetime):
                by_time.setdefault(rule, []).append(name)
        for moment, names in by_time.items():
            query = OffsetQuery(epoch_milliseconds(moment), self._read_committed)
            found, missing = self._logs.find(names, view, query, deadline)
            unavailable.update(missing)
            for name, offset in found.items():
                self._pins[name] = offset if offset >= 0 else logs[name].end
        return unavailable

    def start_of(self, name: str, log: PartitionLog, last: Places) -> int:
        """Return the offset to begin at."""
        rule = self._rule(name, last)
        if rule == "earliest":
            return log.first
        if rule == "latest":
            return self._pins[name]
        if isinstance(rule, datetime):  # records may have been deleted since the lookup
            return max(self._pins[name], log.first)
        return int(rule)

    def _rule(self, name: str, last: Places) -> StartingOffset:
        rule = self._rules.get(name)
        if rule is not None:
            return rule
        was_there = name in last or (not last and name in self._opening)
        return self._rules[ALL_OTHERS] if was_there else "earliest"


def has_place(name: str, last: Places) -> bool:
    return name in last and last[name].is_placed
