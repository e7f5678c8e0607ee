"""What topologies read: partitions of keys, some of which are lost for a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from support.inmemory import Range

from txstream.api.errors import ServiceUnavailableError
from txstream.api.spouts import PartitionCoordinator, Unavailable
from txstream.metas import BatchMetas

if TYPE_CHECKING:
    from simulation.driver import Driver

Held = Mapping[str, tuple[int, int]]
"""What a batch holds by key: how many records, and the sum of their numbers."""


class Log:
    """Records are a key and a number, by which what a batch holds can be told from another one's."""

    def __init__(self) -> None:
        self.partitions: dict[str, list[str]] = {}
        self.lost: set[str] = set()

    def hold(self, metas: BatchMetas[Range]) -> Held:
        held: dict[str, tuple[int, int]] = {}
        for partition, taken in metas.partitions.items():
            for at in range(taken.start, taken.end):
                key = self.partitions[partition][at]
                n, total = held.get(key, (0, 0))
                held[key] = n + 1, total + at + 1
        return held

    def everything(self) -> BatchMetas[Range]:
        return BatchMetas({partition: Range(0, len(keys)) for partition, keys in self.partitions.items()})

    def reached(self, places: Mapping[str, Range]) -> bool:
        return all(
            not keys or (name in places and places[name].end == len(keys))
            for name, keys in self.partitions.items()
        )


class LogCoordinator(PartitionCoordinator[Range]):
    """What a driver asks of the log."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._log = driver.world.log

    def plan(self, last: Mapping[str, Range], limit: int) -> Mapping[str, Range | Unavailable]:
        random = self._driver.world.random
        self._reach()
        ranges: dict[str, Range | Unavailable] = {}
        for partition, keys in self._log.partitions.items():
            start = last[partition].end if partition in last else 0
            if partition in self._log.lost:
                ranges[partition] = Unavailable("lost")
            elif start < len(keys):
                ranges[partition] = Range(start, min(len(keys), start + random.randint(1, 4)))
        self._driver.world.note(f"{self._driver} plans", BatchMetas.from_plan(last, ranges))
        return ranges

    def unreadable(self, metas: Mapping[str, Range]) -> Mapping[str, Unavailable]:
        self._reach()
        return {partition: Unavailable("lost") for partition in self._log.lost & set(metas)}

    def _reach(self) -> None:
        self._driver.pass_point("before the source is asked")
        if self._driver.world.happens("source away"):
            raise ServiceUnavailableError("the source is away")
