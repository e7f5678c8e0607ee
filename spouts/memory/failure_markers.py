"""Failures as data: `Fail` and `Crash`, put among the rows of a source, fail the batch that reads them.

    spout = MemorySpout(partitions={"a": ["one", Fail("flaky disk"), "two"]})

A marker takes an offset of its partition but is not a row. A source that meets one while emitting a batch
asks whether it is still due. It is due the first `times` times, counted over all attempts and runs; after
that it is skipped silently. With `times=0` it is never due: a position without a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NoReturn

from txstream.core.errors import BatchFailedError, UsageError
from txstream.core.fault_points import CrashError as CrashError


class Marker(ABC):
    """Something among a source's rows that is not a row."""

    __slots__ = ()

    times: int

    @abstractmethod
    def strike(self, where: str) -> NoReturn:
        """Cause the failure. `where` names partition and offset."""


@dataclass(frozen=True, slots=True)
class Fail(Marker):
    """The emitter raises BatchFailedError here: the batch is replayed."""

    reason: str = "a Fail marker stands here"
    times: int = 1

    def __post_init__(self) -> None:
        _check_times(self)

    def strike(self, where: str) -> NoReturn:
        raise BatchFailedError(f"{where}: {self.reason}")


@dataclass(frozen=True, slots=True)
class Crash(Marker):
    """CrashError is raised here, and stands for the death of the driver."""

    times: int = 1

    def __post_init__(self) -> None:
        _check_times(self)

    def strike(self, where: str) -> NoReturn:
        raise CrashError(f"{where}: a Crash marker stands here")


def _check_times(marker: Fail | Crash) -> None:
    times = marker.times
    if isinstance(times, bool) or not isinstance(times, int) or times < 0:
        raise UsageError(f"{type(marker).__name__}(times={times!r}): it must be a whole number from 0 on")
