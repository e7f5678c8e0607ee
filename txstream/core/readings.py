"""What a batch has read: of each partition the number of records and a digest, and what decoding them needed.

The digest of a partition is the sum, modulo 2^64, of a number for each record, which is made of its offset,
key and value. So it does not depend on the order of records, or on how they are spread over reads and tasks,
and what is left out can be subtracted. The first ledger row that a database gets of a batch has its reading.
So a replay of what a database may have committed can be compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

import numpy as np

from txstream.core.digests import Numbers, mixed
from txstream.core.errors import InputChangedError
from txstream.core.wording import counted, in_order

_MODULUS: Final = 1 << 64
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class Reading:
    """`partitions` have the number of records and their digest. `fetched` are fingerprints of what decoding
    depended on and was fetched ("schema 7"), by name. Readings of disjoint parts of a batch add up."""

    partitions: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    fetched: Mapping[str, str] = field(default_factory=dict)

    def __add__(self, other: Reading) -> Reading:
        partitions = dict(self.partitions)
        for name, (records, number) in other.partitions.items():
            before, sum_before = partitions.get(name, (0, 0))
            partitions[name] = before + records, (sum_before + number) % _MODULUS
        return Reading(partitions, {**self.fetched, **other.fetched})

    def without(self, records: Iterable[tuple[str, int, bytes | None, bytes | None]]) -> Reading:
        """Return the reading without these records: partition, offset, key, value."""
        partitions = dict(self.partitions)
        for name, offset, key, value in records:
            if name in partitions:
                there, number = partitions[name]
                gone = sum_of(np.array([offset]), [key], [value])
                partitions[name] = there - 1, (number - gone) % _MODULUS
        return Reading(partitions, self.fetched)

    def differences(self, now: Reading) -> list[str]:
        """Return what differs from a later reading of the same batch, in words."""
        found = []
        for name in sorted({**self.partitions, **now.partitions}, key=in_order) if self.partitions else ():
            (then, digest), (there, digest_now) = (one.partitions.get(name, (0, 0)) for one in (self, now))
            if (then, digest) != (there, digest_now):
                found.append(
                    f"partition {name} had {counted(then, 'record')} (digest {digest:016x}) and has "
                    f"{there:,} now (digest {digest_now:016x})"
                )
        return found + self.changed(now)

    def changed(self, now: Reading) -> list[str]:
        """Return what was fetched under a known name and is something else now, in words."""
        return [
            f"{name} had the fingerprint {self.fetched[name]} and has {print_now} now"
            for name, print_now in now.fetched.items()
            if self.fetched.get(name, print_now) != print_now
        ]

    def to_document(self) -> dict[str, Any]:
        found: dict[str, Any] = {name: [n, f"{number:016x}"] for name, (n, number) in self.partitions.items()}
        return {"partitions": found} | ({"fetched": dict(self.fetched)} if self.fetched else {})

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Reading:
        found = document.get("partitions", {}).items()
        return cls({name: (n, int(number, 16)) for name, (n, number) in found}, document.get("fetched", {}))


NOTHING_READ: Final = Reading()


def sum_of(offsets: Any, keys: Sequence[bytes | None], values: Sequence[bytes | None]) -> int:
    """Return the digest of records: their offsets as an integer array, and their keys and values."""
    sums = [
        _NULL if value is None else crc32(value, 0 if key is None else crc32(key, len(key) + 1))
        for key, value in zip(keys, values, strict=True)
    ]
    content: Numbers = np.array(sums, np.uint64)
    places = mixed(offsets.astype(np.uint64) * _ODD + _ODD)
    return int(np.add.reduce(mixed(places + content * _ODD)))  # wraps round


def refuse_changes(changes: Sequence[str], what: str) -> None:
    """Raise InputChangedError if something that was fetched has changed."""
    if changes:
        raise InputChangedError(
            f"{what}: {'; '.join(changes[:3])}. A registry never gives an id to another schema, so it was "
            f"restored from an older copy, or is another one. Nothing of it was committed: name the registry "
            f"that the records were written with, or have that one mended"
        )
