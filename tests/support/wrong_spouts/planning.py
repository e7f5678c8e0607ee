"""Sources that plan wrongly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.line_source import LineCoordinator, LineEmitter, LineRange, LineSource
from support.wrong_spouts.registry import Plan, breaks
from txstream.api.spouts import Unavailable
from txstream.core.transaction import TransactionAttempt, Txid

# --- what all batches together hold -------------------------------------------------------------------------


@breaks("nothing-skipped")
class Skipping(LineCoordinator):
    """Takes an exclusive end for an inclusive one."""

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        start = super().start(partition, last)
        return start + 1 if start == 3 else start


@breaks("nothing-twice")
class Doubling(LineCoordinator):
    """Takes an inclusive end for an exclusive one."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: LineRange(2, meta.end - 1)
            if isinstance(meta, LineRange) and meta.start == 3 and meta.records > 1
            else meta
            for name, meta in super().plan(last, limit).items()
        }


@breaks("nothing-invented")
class Footed(LineEmitter):
    """Adds a footer after line 8 to the rows."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        footer = ["--- page 2"] if meta.end == 8 else []
        return super().read(attempt, partition, meta) + footer


@breaks("in-order")
class Backwards(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        return super().read(attempt, partition, meta)[::-1]


# --- one plan -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaggedRange(LineRange):
    tags: tuple[str, ...] = ()


class TaggingCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: TaggedRange(meta.start, meta.end, ("new",)) if isinstance(meta, LineRange) else meta
            for name, meta in super().plan(last, limit).items()
        }


@breaks("metas-survive-json")
class TaggedSource(LineSource):
    """Its metas hold tuples, which JSON does not have: they come back as lists."""

    meta_type = TaggedRange
    coordinator_type = TaggingCoordinator


@breaks("metas-survive-json")
class BareSource(LineSource):
    meta_type = int


class TupleCoordinator(LineCoordinator):
    def plan(self, last: Mapping[Any, LineRange], limit: int) -> Any:
        plain = {name: meta for (_, name), meta in last.items()}
        return {("lines", name): meta for name, meta in super().plan(plain, limit).items()}


class TupleEmitter(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: Any, meta: LineRange) -> list[str]:
        return super().read(attempt, partition[1], meta)


@breaks("metas-survive-json")
class TupleSource(LineSource):
    """Names its partitions with tuples instead of strings."""

    coordinator_type = TupleCoordinator
    emitter_type = TupleEmitter


@breaks("limit-respected")
class LimitEach(LineCoordinator):
    """Applies the limit to each partition."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        whole = super().plan(last, 1_000_000)
        return {
            name: LineRange(meta.start, min(meta.end, meta.start + limit))
            if isinstance(meta, LineRange)
            else meta
            for name, meta in whole.items()
        }


@breaks("a-small-limit-goes-on")
class InPairs(LineCoordinator):
    """Rounds down to whole pairs of lines."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return super().plan(last, limit // 2 * 2)


@breaks("last-is-not-changed")
class Popping(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        if isinstance(last, dict):
            last.clear()
        return plan


# --- one plan after the other -------------------------------------------------------------------------------


@breaks("plans-from-last-alone")
class Remembering(LineCoordinator):
    """Goes on from what it has planned itself, like a consumer that keeps a position."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.planned: dict[str, int] = {}

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        self.planned |= {name: meta.end for name, meta in plan.items() if isinstance(meta, LineRange)}
        return plan

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return max(super().start(partition, last), self.planned.get(partition, 0))


class NotingEmitter(LineEmitter):
    """Notes how far each partition has been read."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        note = self.log.folder / f"{partition}.read"
        before = int(note.read_text()) if note.exists() else 0
        note.write_text(str(max(before, meta.end)))
        return super().read(attempt, partition, meta)


class WaitingCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        for partition, meta in last.items():
            note = self.log.folder / f"{partition}.read"
            if meta.end > (int(note.read_text()) if note.exists() else 0):
                return {}
        return super().plan(last, limit)


@breaks("plans-ahead")
class WaitingSource(LineSource):
    """Like a queue, it plans nothing new before what it handed out has been read."""

    coordinator_type = WaitingCoordinator
    emitter_type = NotingEmitter


@breaks("begins-where-it-began")
class Recent(LineCoordinator):
    """Begins thirty lines before the end that it finds, and remembers where that was."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.begins: dict[str, int] = {}

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        begin = self.begins.setdefault(partition, max(0, len(self.log.lines(partition)) - 30))
        return super().start(partition, last) if partition in last else begin


@breaks("resumes")
class Forgetting(LineCoordinator):
    """Believes that a partition was begun only if it has planned the partition itself."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.begun: set[str] = set()

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        self.begun |= set(plan)
        return plan

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return super().start(partition, last) if partition in self.begun else 0


class BusyRange(LineRange):
    @property
    def is_empty(self) -> bool:
        return False


class BusyCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        ends = {name: self.start(name, last) for name in self.log.partitions()}
        plan: dict[str, LineRange | Unavailable] = {name: BusyRange(end, end) for name, end in ends.items()}
        for name, meta in super().plan(last, limit).items():
            plan[name] = BusyRange(meta.start, meta.end) if isinstance(meta, LineRange) else meta
        return plan


@breaks("no-busy-batches")
class BusySource(LineSource):
    """Plans every partition, even one that has nothing, and does not say that it has nothing."""

    meta_type = BusyRange
    coordinator_type = BusyCoordinator


@breaks("cleanup-keeps-what-is-open")
class CleaningAll(LineCoordinator):
    """Drops everything that there ever was."""

    def cleanup_before(self, txid: Txid) -> None:
        for partition in self.log.partitions():
            (self.log.folder / f"{partition}.first").write_text(str(len(self.log.lines(partition))))


@breaks("cleanup-keeps-what-is-open")
class CleaningOneTooMany(LineCoordinator):
    """Drops what batch `txid` itself needs, not only what is before it; its places stay."""

    cleaned = False

    def cleanup_before(self, txid: Txid) -> None:
        self.cleaned = True

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {} if self.cleaned else super().plan(last, limit)


@breaks("new-partitions-from-their-beginning")
class LateComer(LineCoordinator):
    """Begins a partition at the end that it had when it was found."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.found = dict.fromkeys(self.log.partitions(), 0)

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        found = self.found.setdefault(partition, len(self.log.lines(partition)))
        return last[partition].end if partition in last else found
