"""How far a run is behind its source. Asked on a scrape, through a coordinator of its own, so that no plan
waits for it.

Invariants. Of what the source does not tell now there is no figure: neither 0 nor the last one. Only scrapes
call this, one at a time.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from txstream.api.spouts import PartitionCoordinator, PartitionedSpout, SpoutContext
from txstream.core.errors import TxstreamError

_ASK_SECONDS = 2.0  # Prometheus gives a scrape 10 s
_KEPT_ENDS = 60
ALL_PARTITIONS = "all"


class Lag(NamedTuple):
    """`records` by topic and partition, and how many of them are `held_back`. `seconds` is how long ago the
    log ended at the places that are committed now, or at least so long; None while nothing can be said."""

    records: Mapping[tuple[str, str], int]
    held_back: Mapping[tuple[str, str], int]
    seconds: float | None


class SourceLag:
    """See the module. A topic with more than `most_partitions` partitions has one figure."""

    def __init__(
        self,
        source: PartitionedSpout[Any],
        context: SpoutContext,
        most_partitions: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._context = replace(
            context,
            connect_timeout_seconds=min(_ASK_SECONDS, context.connect_timeout_seconds),
            fetch_timeout_seconds=min(_ASK_SECONDS, context.fetch_timeout_seconds),
        )
        self._most_partitions = most_partitions
        self._now = now
        self._coordinator: PartitionCoordinator[Any] | None = None
        # When the log ended where, oldest first; of those that are reached, only the newest.
        self._ends: list[tuple[float, Mapping[str, Any]]] = []

    def ask(self, places: Mapping[str, Any]) -> Lag | None:
        """Return the lag behind these committed places, or None if the source does not tell."""
        try:
            if self._coordinator is None:
                self._coordinator = self._source.coordinator(self._context)
            ends = self._coordinator.targets()
            return self._lag(self._coordinator, places, ends)
        except TxstreamError:
            return None

    def close(self) -> None:
        if self._coordinator is not None:
            with contextlib.suppress(TxstreamError):
                self._coordinator.close()

    def _lag(
        self, coordinator: PartitionCoordinator[Any], places: Mapping[str, Any], ends: Mapping[str, Any]
    ) -> Lag | None:
        by_topic: dict[str, dict[str, int]] = defaultdict(dict)
        for name, end in ends.items():
            here = {name: places[name]} if name in places else {}
            records = coordinator.lag_records(here, {name: end})
            if records is None:
                return None
            topic, _, partition = name.rpartition("/")
            by_topic[topic][partition] = records
        found: dict[tuple[str, str], int] = {}
        held_back: Counter[tuple[str, str]] = Counter()
        for topic, partitions in by_topic.items():
            are_many = len(partitions) > self._most_partitions
            for partition, records in partitions.items():
                shown = topic, ALL_PARTITIONS if are_many else partition
                found[shown] = found.get(shown, 0) + records
                held = coordinator.held_back.get(f"{topic}/{partition}")
                if held is not None:
                    held_back[shown] += held.records
        return Lag(found, held_back, self._seconds(coordinator, places, ends, is_behind=any(found.values())))

    def _seconds(
        self,
        coordinator: PartitionCoordinator[Any],
        places: Mapping[str, Any],
        ends: Mapping[str, Any],
        *,
        is_behind: bool,
    ) -> float | None:
        now = self._now()
        while len(self._ends) > 1 and not coordinator.lag_records(places, self._ends[1][1]):
            del self._ends[0]
        if len(self._ends) >= _KEPT_ENDS:
            del self._ends[1::2]  # an outage: its age is known well enough with fewer
        self._ends.append((now, ends))
        if not is_behind:
            self._ends = [(now, ends)]
            return 0.0
        return now - self._ends[0][0] if len(self._ends) > 1 else None
