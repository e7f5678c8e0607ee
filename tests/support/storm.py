"""Storm's transactional scenarios: records, what each component must emit for them, and bolts in trouble."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from txstream.api.bolts import Committer, OutputCollector, TopologyContext
from txstream.api.spouts import SourceSpout
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.engine.plan import ExecutionPlan
from txstream.engine.runner import BatchResult
from txstream.examples.storm_counts import FIELDS, CountByWord, graph
from txstream.metas import BatchMetas
from txstream.spouts.memory import MemorySpout
from txstream.testing import Attempt, InProcessRunner, TopologyTest
from txstream.transaction import TransactionAttempt

Row = tuple[Any, ...]
Records = Mapping[str, list[Row]]

# Two records of each partition make a batch: txid 1 has six, txid 2 three.
FIRST: Records = {
    "p0": [("oak", 5), ("elm", 2), ("ash", 7), ("oak", 1)],
    "p1": [("elm", 3), ("may", 4)],
    "p2": [("yew", 9), ("fir", 6), ("ivy", 8)],
}
# Then txid 3 has seven, and txid 4 two.
MORE: Records = {
    "p0": [("box", 1), ("gum", 2), ("sal", 3)],
    "p1": [("tea", 4), ("sal", 1)],
    "p2": [("box", 2), ("nut", 7), ("sal", 11)],
    "p3": [("box", 2)],
}
IN_PROCESSING = ("id1", "id2", "global", "sum")
IN_COMMIT = ("gcommit", "count", "count2")


def storm_source(records: Records = FIRST) -> MemorySpout:
    return MemorySpout(FIELDS, records, max_records_per_partition=2)


def storm_topology(spout: type[SourceSpout[Any]], source: MemorySpout, **options: Any) -> Topology:
    return graph(spout(source), **options)


def append(source: MemorySpout, records: Records) -> None:
    for partition, rows in records.items():
        source.append(partition, *rows)


# --- what must come out: the oracle knows only the records ------------------------------------------------


def joined(*records: Records) -> dict[str, list[Row]]:
    """The partitions after all of it was appended."""
    partitions: dict[str, list[Row]] = defaultdict(list)
    for some in records:
        for partition, rows in some.items():
            partitions[partition] += rows
    return dict(partitions)


def held(attempt: Attempt, records: Records) -> list[Row]:
    """The records of an attempt, by the ranges that it holds."""
    return [
        row
        for partition, span in attempt.partitions.items()
        for row in records[partition][span.start : span.end]
    ]


def expected(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """What each component must emit for a batch of these records, sorted."""
    rows = sorted(rows)
    sums: Counter[str] = Counter()
    for word, amount in rows:
        sums[word] += amount
    counts = Counter(word for word, _ in rows)
    return {
        "id1": rows,
        "id2": rows,
        "global": [("global", len(rows))],
        "sum": sorted(sums.items()),
        "gcommit": [("gcommit", len(rows))],
        "count": sorted(counts.items()),
        "count2": [(word, 2) for word in sorted(counts)],  # a row of `sum` and one of `count`
    }


def emitted(attempt: Attempt, components: Iterable[str] = (*IN_PROCESSING, *IN_COMMIT)) -> dict[str, Any]:
    """What each component has emitted, sorted; None before it is through its phase."""
    return {
        component: sorted(attempt.emitted(component)) if attempt.has_been_through(component) else None
        for component in components
    }


def check_tables(test: TopologyTest, rows: Iterable[Row], prefix: str = "storm") -> None:
    """Each of these records is in the state exactly once, and nothing else is."""
    wanted = expected(rows)
    n = wanted["global"][0][1]
    assert test.table(f"{prefix}_sums") == dict(wanted["sum"])
    assert test.table(f"{prefix}_counts") == dict(wanted["count"])
    assert test.table(f"{prefix}_totals") == {"global": n, "gcommit": n}


def all_rows(records: Records) -> list[Row]:
    return [row for rows in records.values() for row in rows]


# --- bolts that meet trouble -------------------------------------------------------------------------------


@dataclass
class Trouble:
    """What the calls of a component's method meet: an error is raised, a function is called. It is met
    `times` times, in the given txid and task, or in any."""

    component: str
    method: str
    what: Exception | Callable[[], None]
    times: int = 1
    txid: int | None = None
    task: int | None = None
    met: int = 0

    def fits(self, context: TopologyContext, method: str) -> bool:
        return (
            self.met < self.times
            and (self.component, self.method) == (context.component, method)
            and self.txid in (None, context.attempt.txid)
            and self.task in (None, context.task_index)
        )


_troubles: list[Trouble] = []
_lock = threading.Lock()


@contextmanager
def meeting(*troubles: Trouble) -> Iterator[None]:
    """The calls of `Troubled` bolts in this process meet these; each must have come to its end, unless the
    test fails anyway."""
    _troubles.extend(troubles)
    try:
        yield
        for trouble in troubles:
            assert trouble.met == trouble.times, f"{trouble} was met {trouble.met} times"
    finally:
        _troubles.clear()


def _meet(bolt: Any, method: str) -> None:
    with _lock:
        trouble = next((each for each in _troubles if each.fits(bolt.context, method)), None)
        if trouble is None:
            return
        trouble.met += 1
    if isinstance(trouble.what, Exception):
        raise type(trouble.what)(*trouble.what.args)
    trouble.what()


class Troubled(CountByWord):
    """Counts words; each of its calls may meet trouble."""

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        _meet(self, "prepare")

    def execute(self, tup: Tuple) -> None:
        _meet(self, "execute")
        super().execute(tup)

    def finish_batch(self) -> None:
        _meet(self, "finish_batch")
        super().finish_batch()


class TroubledCommitter(Troubled, Committer):
    """The same, in the commit phase."""


# --- what is kept between the phases -----------------------------------------------------------------------


@dataclass
class Custody:
    """What every runner of a test gives out, commits, releases and cancels."""

    given: list[tuple[TransactionAttempt, Any]] = field(default_factory=list)
    committed: list[TransactionAttempt] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    cancelled: set[TransactionAttempt] = field(default_factory=set)
    closed: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def unreleased(self) -> list[TransactionAttempt]:
        """The attempts whose results are still kept. Raises AssertionError for one released twice."""
        assert len(self.released) == len({id(kept) for kept in self.released}), "released twice"
        gone = {id(kept) for kept in self.released}
        return [attempt for attempt, kept in self.given if id(kept) not in gone]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """For the calls of bolts, which run beside the loop."""
        with self.changed:
            assert self.changed.wait_for(condition, 20), f"not within 20 s: {what}"

    def runner(self, plan: ExecutionPlan, *, width: int | None = None) -> InProcessRunner:
        """A runner that tells this of what it does."""
        return _Watched(self, plan, width=width)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Change what is here, and tell those who wait for it."""
        with self.changed:
            yield
            self.changed.notify_all()


class _Watched(InProcessRunner):
    def __init__(self, custody: Custody, plan: ExecutionPlan, *, width: int | None) -> None:
        super().__init__(plan, width=width)
        self.custody = custody

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any]) -> BatchResult:
        result = super().run(attempt, metas)
        with self.custody.noting():
            self.custody.given.append((attempt, result.kept))
        return result

    def commit(self, attempt: TransactionAttempt, processed: BatchResult) -> BatchResult:
        with self.custody.noting():
            assert all(processed.kept is not kept for kept in self.custody.released), "released too early"
            self.custody.committed.append(attempt)
        return super().commit(attempt, processed)

    def release(self, processed: BatchResult) -> None:
        super().release(processed)
        with self.custody.noting():
            self.custody.released.append(processed.kept)

    def cancel(self, attempt: TransactionAttempt) -> None:
        super().cancel(attempt)
        with self.custody.noting():
            self.custody.cancelled.add(attempt)

    def close(self) -> None:
        super().close()
        with self.custody.noting():
            self.custody.closed += 1
