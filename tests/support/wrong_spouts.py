"""Sources that each break one promise of the conformance suite, most of them by a mistake easily made.

Each is a class of tests/support/line_source.py with one thing changed. `WRONG` has them all, by promise: the
first breaks that promise alone, the others may break more.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from support.line_source import LineCoordinator, LineEmitter, LineLog, LineRange, LineSource
from txstream.api.errors import DataLostError, PartitionUnavailableError
from txstream.api.spouts import SpoutContext, Unavailable
from txstream.transaction import TransactionAttempt, sequence_of

Plan = Mapping[str, LineRange | Unavailable]
WRONG: dict[str, list[type[LineSource]]] = {}


def breaks(promise: str) -> Callable[[type[Any]], type[Any]]:
    """Enters a source, or the source that has this coordinator or emitter, among the wrong ones."""

    def enter(kind: type[Any]) -> type[Any]:
        source: type[LineSource]
        if issubclass(kind, LineSource):
            source = kind
        else:
            attribute = "coordinator_type" if issubclass(kind, LineCoordinator) else "emitter_type"
            # By this name in this module, so that it can be unpickled in another process.
            name = f"{kind.__name__}Source"
            source = type(name, (LineSource,), {attribute: kind, "__module__": __name__})
            globals()[name] = source
        WRONG.setdefault(promise, []).append(source)
        return kind

    return enter


# --- what all batches together hold ------------------------------------------------------------------------


@breaks("nothing-skipped")
class Skipping(LineCoordinator):
    """Takes an end that is exclusive for one that is inclusive."""

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        start = super().start(partition, last)
        return start + 1 if start == 3 else start


@breaks("nothing-twice")
class Doubling(LineCoordinator):
    """Takes an end that is inclusive for one that is exclusive."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: LineRange(2, meta.end - 1)
            if isinstance(meta, LineRange) and meta.start == 3 and meta.records > 1
            else meta
            for name, meta in super().plan(last, limit).items()
        }


@breaks("nothing-twice")
class Endless(LineCoordinator):
    """Does not look at the places at all."""

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return 0


@breaks("nothing-invented")
class Footed(LineEmitter):
    """Gives out a footer that it writes behind line 8."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        footer = ["--- page 2"] if meta.end == 8 else []
        return super().read(attempt, partition, meta) + footer


@breaks("in-order")
class Backwards(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        return super().read(attempt, partition, meta)[::-1]


# --- one plan ----------------------------------------------------------------------------------------------


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
    """JSON has no tuples: they come back as lists."""

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
    """Partition names that are no strings."""

    coordinator_type = TupleCoordinator
    emitter_type = TupleEmitter


@breaks("limit-respected")
class LimitEach(LineCoordinator):
    """The limit holds for each partition."""

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


# --- one plan after the other ------------------------------------------------------------------------------


@breaks("plans-from-last-alone")
class Remembering(LineCoordinator):
    """Goes on from what it has planned itself, as a consumer with a position does."""

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
    """Notes how far each partition was read."""

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
    """A queue's habit: nothing new before what was handed out is taken."""

    coordinator_type = WaitingCoordinator
    emitter_type = NotingEmitter


@breaks("resumes")
class Forgetting(LineCoordinator):
    """Takes only its own word for it that a partition was begun."""

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
    """Plans every partition, also one that has nothing, and does not say so."""

    meta_type = BusyRange
    coordinator_type = BusyCoordinator


@breaks("new-partitions-from-their-beginning")
class LateComer(LineCoordinator):
    """Begins a partition at the end that it has when it is found."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.found = dict.fromkeys(self.log.partitions(), 0)

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        found = self.found.setdefault(partition, len(self.log.lines(partition)))
        return last[partition].end if partition in last else found


# --- reading -----------------------------------------------------------------------------------------------


@breaks("rows-as-declared")
class LargeStrings(LineEmitter):
    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.schema = pa.schema([pa.field("line", pa.large_string())])

    def batch(self, lines: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(lines, pa.large_string())], schema=self.schema)


@breaks("rows-as-declared")
class Renaming(LineEmitter):
    def batch(self, lines: list[str]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"text": lines})


@breaks("rows-as-declared")
class Tables(LineEmitter):
    def batch(self, lines: list[str]) -> Any:
        return pa.Table.from_batches([super().batch(lines)])


@breaks("same-rows-again")
class Alternating(LineEmitter):
    """Keeps the result of its last read, and spoils it."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.asked: Any = None
        self.lines: list[str] = []

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        if self.asked == (attempt, partition, meta):
            self.lines.reverse()
        else:
            self.asked, self.lines = None, lines
        return list(self.lines)

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        yield from super().emit(attempt, partition, meta)
        self.asked = (attempt, partition, meta)


@breaks("same-rows-in-another-attempt")
class ByAttempt(LineEmitter):
    """Derives the order from the attempt."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        turn = (sequence_of(attempt.attempt) - 1) % max(1, meta.records)
        lines = super().read(attempt, partition, meta)
        return lines[turn:] + lines[:turn]


class NumberedEmitter(LineEmitter):
    number = 1

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        return lines[::-1] if self.number == 2 else lines


@breaks("same-rows-from-any-emitter")
class NumberingSource(LineSource):
    """Numbers its emitters, and the number shows in the rows."""

    emitter_type = NumberedEmitter

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.count = 0

    def emitter(self, context: SpoutContext) -> LineEmitter:
        self.count += 1
        emitter = NumberedEmitter(self)
        emitter.number = self.count
        return emitter

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "count": 0}


@dataclass(frozen=True, slots=True)
class OpenRange(LineRange):
    to_the_end: bool = False


class OpenCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: OpenRange(meta.start, meta.end, meta.end == len(self.log.lines(name)))
            if isinstance(meta, LineRange)
            else meta
            for name, meta in super().plan(last, limit).items()
        }


class OpenEmitter(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        if isinstance(meta, OpenRange) and meta.to_the_end:
            return self.log.lines(partition)[meta.start :]
        return lines


@breaks("same-rows-after-append")
class OpenSource(LineSource):
    """A plan that says "to the end", whatever the end is when it is read."""

    meta_type = OpenRange
    coordinator_type = OpenCoordinator
    emitter_type = OpenEmitter


@breaks("ships-to-workers")
class Locked(LineSource):
    """Opens something in itself that cannot be pickled."""

    def coordinator(self, context: SpoutContext) -> LineCoordinator:
        self.lock = threading.Lock()
        return super().coordinator(context)


class HereEmitter(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        here = isinstance(self.source, ProcessSource) and self.source.pid == os.getpid()
        return lines if here else [line.upper() for line in lines]


@breaks("same-rows-in-another-process")
class ProcessSource(LineSource):
    """Reads otherwise where it was not made."""

    emitter_type = HereEmitter

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.pid = os.getpid()


class LocalSource(LineSource):
    """Cannot be unpickled where it was not made."""

    def __reduce__(self) -> Any:
        return _at_home, (self.folder, os.getpid())


def _at_home(folder: Any, pid: int) -> LineSource:
    if os.getpid() != pid:
        raise LookupError("this source lives in another process")
    return LocalSource(folder)


breaks("same-rows-in-another-process")(LocalSource)


@breaks("seeks-back")
class Prefetching(LineEmitter):
    """Hands out what it has prefetched when it is asked for something earlier."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.before: dict[str, tuple[LineRange, list[str]]] = {}

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        lines = super().read(attempt, partition, meta)
        before, prefetched = self.before.get(partition, (meta, lines))
        self.before[partition] = (meta, lines)
        return prefetched if meta.end <= before.start else lines


@breaks("emitters-do-not-disturb-each-other")
class SharedCursor(LineEmitter):
    """Keeps its position in the class."""

    cursors: ClassVar[dict[Any, int]] = {}

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        lines = self.read(attempt, partition, meta)
        at = (self.log.folder, partition)
        self.cursors[at] = meta.start
        while meta.start <= self.cursors[at] < meta.end:
            yield self.batch([lines[self.cursors[at] - meta.start]])
            self.cursors[at] += 1


@breaks("a-read-may-be-given-up")
class Leftovers(LineEmitter):
    """Begins with what the read before did not get to."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.pending: list[str] = []

    def emit(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> Iterator[pa.RecordBatch]:
        self.pending += self.read(attempt, partition, meta)
        while self.pending:
            yield self.batch([self.pending.pop(0)])


@breaks("emit-many-equals-emit")
class Mixing(LineEmitter):
    """Reads partitions together, the last line of each first."""

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        for partition, meta in metas.items():
            for line in reversed(self.read(attempt, partition, meta)):
                yield partition, self.batch([line])


@breaks("emit-many-equals-emit")
class Generous(LineEmitter):
    """Gives rows of partitions that nobody asked for."""

    def emit_many(
        self, attempt: TransactionAttempt, metas: Mapping[str, LineRange]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        yield from super().emit_many(attempt, metas)
        yield "surplus", self.batch(["from elsewhere"])


class MiscountedRange(LineRange):
    @property
    def records(self) -> int:
        return self.end - self.start - 1


class MiscountingCoordinator(LineCoordinator):
    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        return {
            name: MiscountedRange(meta.start, meta.end) if isinstance(meta, LineRange) else meta
            for name, meta in super().plan(last, limit).items()
        }


@breaks("records-is-not-too-small")
class MiscountingSource(LineSource):
    meta_type = MiscountedRange
    coordinator_type = MiscountingCoordinator


# --- outages and losses ------------------------------------------------------------------------------------


def hidden(log: LineLog) -> list[str]:
    return sorted(path.stem for path in log.folder.glob("*.hidden"))


def wait_for_the_end(log: LineLog) -> None:
    """Hangs for as long as the outage, or until the test is long over."""
    ended = threading.Event()
    for _ in range(200):
        if not hidden(log) or ended.wait(0.01):
            return


@breaks("plans-around-an-outage")
class Silent(LineCoordinator):
    """Leaves a partition out without a word."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        plan = super().plan(last, limit)
        return {name: meta for name, meta in plan.items() if isinstance(meta, LineRange)}


@breaks("plans-around-an-outage")
class AllOrNothing(LineCoordinator):
    """One outage leaves out all partitions."""

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


@breaks("plans-around-an-outage")
class Blind(LineCoordinator):
    """Does not notice the outage when it plans."""

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        self.log = SeeingLog(self.log.folder)
        return super().plan(last, limit)


class SeeingLog(LineLog):
    def lines(self, partition: str) -> list[str]:
        return (self.folder / f"{partition}.lines").read_text().splitlines()


@breaks("an-outage-keeps-the-place")
class StartingOver(LineCoordinator):
    """Forgets the place of a partition that was away."""

    def __init__(self, source: LineSource) -> None:
        super().__init__(source)
        self.away: set[str] = set()

    def plan(self, last: Mapping[str, LineRange], limit: int) -> Plan:
        self.away |= set(hidden(self.log))
        return super().plan(last, limit)

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return 0 if partition in self.away else super().start(partition, last)


@breaks("an-outage-keeps-the-place")
class GoingOnAtTheEnd(StartingOver):
    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        length = len(self.log.lines(partition))
        return length if partition in self.away else LineCoordinator.start(self, partition, last)


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


@breaks("a-read-in-an-outage-raises")
class HangingReads(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        wait_for_the_end(self.log)
        return super().read(attempt, partition, meta)


@breaks("reads-again-after-an-outage")
class Resentful(LineEmitter):
    """Never tries again what has failed once."""

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


@breaks("unreadable-names-what-cannot-be-read")
class Pessimistic(LineCoordinator):
    def unreadable(self, metas: Mapping[str, LineRange]) -> Mapping[str, Unavailable]:
        found = super().unreadable(metas)
        return {name: Unavailable("one is away") for name in metas} if found else {}


@breaks("lost-rows-are-told")
class WhatIsLeft(LineEmitter):
    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        try:
            return super().read(attempt, partition, meta)
        except DataLostError:
            return self.log.lines(partition)[self.log.first(partition) : meta.end]


@breaks("lost-rows-are-told")
class HopefulEmitter(LineEmitter):
    """Takes a loss for an outage, which would be waited for without end."""

    def read(self, attempt: TransactionAttempt, partition: str, meta: LineRange) -> list[str]:
        try:
            return super().read(attempt, partition, meta)
        except DataLostError as error:
            raise PartitionUnavailableError(str(error)) from error


@breaks("a-lost-place-is-told")
class Jumping(LineCoordinator):
    """Goes on where the log begins now."""

    def start(self, partition: str, last: Mapping[str, LineRange]) -> int:
        return max(super().start(partition, last), self.log.first(partition))


# --- the source as a whole ---------------------------------------------------------------------------------


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


@breaks("caught-up-in-the-end")
class FollowingTheEnd(LineCoordinator):
    """Compares with where the log ends now."""

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return super().reached(last, self.targets())


@breaks("caught-up-in-the-end")
class Impatient(LineCoordinator):
    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return bool(last)


@breaks("caught-up-in-the-end")
class Unsatisfied(LineCoordinator):
    """Off by one."""

    def reached(self, last: Mapping[str, LineRange], targets: Mapping[str, Any]) -> bool:
        return all(self.start(partition, last) > end for partition, end in targets.items())


@breaks("lag-goes-to-zero")
class ConstantLag(LineCoordinator):
    def lag_records(self, last: Mapping[str, LineRange], targets: Mapping[str, int]) -> int | None:
        return sum(targets.values())


@breaks("lag-goes-to-zero")
class BatchLag(LineCoordinator):
    """Counts partitions instead of records."""

    def lag_records(self, last: Mapping[str, LineRange], targets: Mapping[str, int]) -> int | None:
        return sum(self.start(partition, last) < end for partition, end in targets.items())


@breaks("closing-is-private")
class SharedConnection(LineEmitter):
    """One connection for all emitters, closed by the first."""

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
