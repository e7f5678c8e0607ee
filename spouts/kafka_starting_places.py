"""Where partitions without a place begin.

Invariants:

- A source's rule for "all others" holds for the partitions that were there when the run opened it, and only
  if the run began without any place. Every other partition begins at its beginning: nobody could have read it
  before.
- "latest" and a timestamp are looked up once for each partition and kept. Otherwise a topology without a
  first batch would skip whatever arrives between two plans.
- A timestamp is looked up after the log's end. So a record that arrives in between is either found or lies
  past the end; it is never skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from txstream.api.spouts import Unavailable
from txstream.spouts.kafka_arguments import ALL_OTHERS, StartingOffset, epoch_milliseconds
from txstream.spouts.kafka_cluster_watch import ClusterView
from txstream.spouts.kafka_log_ends import LogReader, PartitionLog
from txstream.spouts.kafka_protocol import OffsetQuery


class StartingPlaces:
    """The starting places of one run. `rules` always has an entry for all others; `opening` holds the
    partitions that were there when the run opened the source."""

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
        self._began_without_places = False

    def begin(self, last: Mapping[str, object]) -> bool:
        """Does a plan from these places belong to a run that began without any place?

        Places never go away, so one plan without places shows it.
        """
        self._began_without_places = self.is_first_start(last)
        return self._began_without_places

    def is_first_start(self, last: Mapping[str, object]) -> bool:
        """As `begin`, for places from which no plan need be made."""
        return self._began_without_places or not last

    def look_up(
        self, logs: Mapping[str, PartitionLog], view: ClusterView, deadline: float, *, first_start: bool
    ) -> dict[str, Unavailable]:
        """Look up what `start_of` needs for these partitions. Return why that failed for some. `deadline` is
        monotonic."""
        unavailable: dict[str, Unavailable] = {}
        by_time: dict[datetime, list[str]] = {}
        for name, log in logs.items():
            rule = self._rule(name, first_start)
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

    def start_of(self, name: str, log: PartitionLog, *, first_start: bool) -> int:
        """Return the offset to begin at."""
        rule = self._rule(name, first_start)
        if rule == "earliest":
            return log.first
        if rule == "latest":
            return self._pins[name]
        if isinstance(rule, datetime):  # records may have been deleted since the lookup
            return max(self._pins[name], log.first)
        return int(rule)

    def must_wait_for(self, unavailable: Iterable[str]) -> bool:
        """Before the first batch: would one of these begin at the wrong offset if it were found after it?"""
        return self._rules[ALL_OTHERS] != "earliest" and any(
            name in self._opening and name not in self._rules and name not in self._pins
            for name in unavailable
        )

    def _rule(self, name: str, first_start: bool) -> StartingOffset:
        rule = self._rules.get(name)
        if rule is not None:
            return rule
        return self._rules[ALL_OTHERS] if first_start and name in self._opening else "earliest"
