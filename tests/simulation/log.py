"""What topologies read: partitions of keys, some of which are lost for a time."""

from __future__ import annotations

from collections.abc import Mapping

from support.inmemory import Range

from txstream.metas import BatchMetas

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
