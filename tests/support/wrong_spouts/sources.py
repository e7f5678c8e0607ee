"""Sources that are wrong in readiness, catching up, lag, closing or the threads that may ask them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from support.line_source import LineCoordinator, LineEmitter, LineRange, LineSource
from support.wrong_spouts.registry import Plan, breaks
from txstream.core.errors import PartitionUnavailableError
from txstream.core.transaction import TransactionAttempt


@breaks("identity-is-stable")
class Renamed(LineSource):
    numbers = itertools.count()

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.number = next(self.numbers)

    def identity(self) -> Mapping[str, Any]:
        return {"folder": str(self.folder), "number": self.number}


@breaks("identity-is-stable")
class NotJson(LineSource):
    def identity(self) -> Mapping[str, Any]:
        return {"folder": self.folder}


@breaks("ready-when-rows-wait")
class NeverReady(LineCoordinator):
    def is_ready(self) -> bool:
        return False


@breaks("any-thread-may-ask")
class Homebound(LineCoordinator):
    """Like a connection of sqlite3, it serves only the thread that opened it."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.home = threading.get_ident()

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        if threading.get_ident() != self.home:
            raise RuntimeError("this connection belongs to another thread")
        return super().plan(last, limit)


@breaks("caught-up-in-the-end")
class NeverEmpty(LineCoordinator):
    """Waits for an empty log to have something."""

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return bool(last) and super().reached(last, targets)


@breaks("caught-up-in-the-end")
class FollowingTheEnd(LineCoordinator):
    """Compares with where the log ends now, not with the given targets."""

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return super().reached(last, self.targets())


@breaks("caught-up-in-the-end")
class Impatient(LineCoordinator):
    """Believes that one batch is enough."""

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return bool(last) or not any(targets.values())


@breaks("lag-goes-to-zero")
class ConstantLag(LineCoordinator):
    def lag_records(self, last: Mapping[str, LineRange], targets: Mapping[str, int]) -> int | None:
        return sum(targets.values())


@breaks("lag-goes-to-zero")
class BatchLag(LineCoordinator):
    """Counts partitions that lag, not records."""

    def lag_records(self, last: Mapping[str, LineRange], targets: Mapping[str, int]) -> int | None:
        return sum(self.start(partition, last) < end for partition, end in targets.items())


@breaks("lag-goes-to-zero")
class NothingUntaken(LineCoordinator):
    """Counts what the plan would have taken without its limit."""

    untaken_records = 0


@breaks("closing-is-private")
class SharedConnection(LineEmitter):
    """All emitters share one connection, and the first to close closes it."""

    connected: ClassVar[set[Any]] = set()

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.connected.add(source.folder)

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        if self.source.folder not in self.connected:
            raise PartitionUnavailableError("the connection is closed")
        return super().read(attempt, partition, meta)

    def close(self) -> None:
        self.connected.discard(self.source.folder)


@breaks("closes")
class ClosedOnce(LineCoordinator):
    def close(self) -> None:
        del self.log


@breaks("closes")
class ClosedOnlyIfUsed(LineEmitter):
    file: Any = None

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        self.file = self.log
        return super().read(attempt, partition, meta)

    def close(self) -> None:
        self.file.first("a")
