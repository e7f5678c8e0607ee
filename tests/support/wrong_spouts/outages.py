"""Sources that are wrong when a partition is unreadable or its rows are lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from support.line_source import LineCoordinator, LineEmitter, LineLog, LineRange, LineSource
from support.wrong_spouts.registry import Plan, breaks
from txstream.api.spouts import Unavailable
from txstream.core.errors import DataLostError, PartitionUnavailableError
from txstream.core.transaction import TransactionAttempt


def hidden(log: LineLog) -> list[str]:
    return sorted(path.stem for path in log.folder.glob("*.hidden"))


def wait_for_the_end(log: LineLog) -> None:
    """Hang for as long as the outage lasts, or until the test is long over."""
    ended = threading.Event()
    for _ in range(200):
        if not hidden(log) or ended.wait(0.01):
            return


@breaks("plans-around-an-outage")
class Silent(LineCoordinator):
    """Leaves an unreadable partition out without saying so."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        return {name: meta for name, meta in plan.items() if isinstance(meta, LineRange)}


@breaks("plans-around-an-outage")
class AllOrNothing(LineCoordinator):
    """One outage makes it leave out all partitions."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        away = {name: meta for name, meta in plan.items() if isinstance(meta, Unavailable)}
        return away or plan


@breaks("plans-around-an-outage")
class Raising(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        for name in hidden(self.log):
            raise PartitionUnavailableError(f"{name} does not answer")
        return super().plan(last, limit)


@breaks("plans-around-an-outage")
class Hanging(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        wait_for_the_end(self.log)
        return super().plan(last, limit)


@breaks("an-outage-keeps-the-place")
class StartingOver(LineCoordinator):
    """Forgets the place of a partition that was unreadable."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.away: set[str] = set()

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        self.away |= set(hidden(self.log))
        return super().plan(last, limit)

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return 0 if partition in self.away else super().start(partition, last)


@breaks("a-read-in-an-outage-raises")
class Shortened(LineEmitter):
    """Takes an outage for the end of the file."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        try:
            return super().read(attempt, partition, meta)
        except PartitionUnavailableError:
            return []


@breaks("a-read-in-an-outage-raises")
class RawErrors(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        self.log.lines(partition)
        return super().read(attempt, partition, meta)


@breaks("reads-again-after-an-outage")
class Resentful(LineEmitter):
    """Never again tries what has failed once."""

    failed = False

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        if self.failed:
            raise PartitionUnavailableError(f"{partition}: the connection is broken")
        try:
            return super().read(attempt, partition, meta)
        except PartitionUnavailableError:
            self.failed = True
            raise


@breaks("unreadable-names-what-cannot-be-read")
class Optimistic(LineCoordinator):
    def unreadable(self, metas: Mapping[str, LineRange]) -> Mapping[str, Unavailable]:
        return {}


@breaks("lost-rows-are-told")
class WhatIsLeft(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        try:
            return super().read(attempt, partition, meta)
        except DataLostError:
            return self.log.lines(partition)[self.log.first(partition) : meta.end]


@breaks("a-lost-place-is-told")
class Jumping(LineCoordinator):
    """Goes on where the log begins now, past the lost rows."""

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return max(super().start(partition, last), self.log.first(partition))
