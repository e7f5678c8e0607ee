"""Committers in tests: a topology of them, bolts that meet trouble, and what runners keep for a commit."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import txstream.plugins.testing.driver
from txstream.api.bolts import Committer, OutputCollector, TopologyContext
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import BatchMetas
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.runner_contract import BatchResult
from txstream.examples.storm_counts import CountByWord
from txstream.spouts.memory import MemorySpout
from txstream.testing import InProcessRunner, TopologyTest

# Two words make a batch.
WORDS = ["oak", "elm", "oak", "oak", "ash", "elm"]
BATCHES = [WORDS[0:2], WORDS[2:4], WORDS[4:6]]


# --- bolts that meet trouble -------------------------------------------------------------------------------


@dataclass
class Trouble:
    """What the calls of a component's method meet: an error to raise, or a function to call. It is met
    `times` times, in the given txid and task; None means any."""

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
    """While open, `Troubled` bolts in this process meet these troubles; each must be met as often as it says,
    unless the test fails anyway."""
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
    """Counts words; any of its calls may meet trouble."""

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
    """Records what all runners of a test give out, commit, release and cancel."""

    given: list[tuple[TransactionAttempt, Any]] = field(default_factory=list)
    committed: list[TransactionAttempt] = field(default_factory=list)
    released: list[Any] = field(default_factory=list)
    cancelled: set[TransactionAttempt] = field(default_factory=set)
    closed: int = 0
    changed: threading.Condition = field(default_factory=threading.Condition)

    def unreleased(self) -> list[TransactionAttempt]:
        """Return the attempts whose results are still kept. Raises AssertionError for one released twice."""
        assert len(self.released) == len({id(kept) for kept in self.released}), "released twice"
        gone = {id(kept) for kept in self.released}
        return [attempt for attempt, kept in self.given if id(kept) not in gone]

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for calls of bolts, which run beside the loop."""
        with self.changed:
            assert self.changed.wait_for(condition, 60), f"not within a minute: {what}"

    def runner(self, plan: ExecutionPlan, *, width: int | None = None) -> InProcessRunner:
        """Return a runner that records here what it does."""
        return _Watched(self, plan, width=width)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """While open, what is recorded here may be changed; then those who wait for it are told."""
        with self.changed:
            yield
            self.changed.notify_all()


def watch_runners(monkeypatch: pytest.MonkeyPatch) -> Custody:
    """Record what every runner does that a TopologyTest makes from now on."""
    custody = Custody()
    monkeypatch.setattr(txstream.plugins.testing.driver, "InProcessRunner", custody.runner)
    return custody


class _Watched(InProcessRunner):
    def __init__(self, custody: Custody, plan: ExecutionPlan, *, width: int | None) -> None:
        super().__init__(plan, width=width)
        self.custody = custody

    def run(self, attempt: TransactionAttempt, metas: BatchMetas[Any], spare: int = 0) -> BatchResult:
        result = super().run(attempt, metas, spare)
        with self.custody.noting():
            self.custody.given.append((attempt, result.kept))
        return result

    def commit(
        self,
        attempt: TransactionAttempt,
        processed: BatchResult,
        committed: TransactionAttempt | None = None,
    ) -> BatchResult:
        with self.custody.noting():
            assert all(processed.kept is not kept for kept in self.custody.released), "released too early"
            self.custody.committed.append(attempt)
        return super().commit(attempt, processed, committed)

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


# --- a topology --------------------------------------------------------------------------------------------


def word_source() -> MemorySpout:
    """The words of `WORDS`."""
    return MemorySpout("word string", {"p": WORDS})


def state(table: str, url: str | None = None) -> SqlState:
    return SqlState(table, key="word string", value="n bigint", url=url)


def committing(source: MemorySpout, spout: Any = OpaqueSpout, **options: Any) -> Topology:
    """words -> upper (committer) -> lower (committer), a state below each, and one beside them.

    `counts` holds how often each word came, `batches` in how many batches; `beside` is the same as `counts`.
    """
    options = {"max_spout_pending": 2, **options}
    builder = TransactionalTopologyBuilder(
        "committing", "words", spout(source, max_batch_records=2), 2, **options
    )
    builder.set_bolt("plain", Troubled(), 2).fields_grouping("words", "word")
    builder.set_committer_bolt("upper", Troubled(), 2).fields_grouping("words", "word")
    builder.set_bolt("lower", TroubledCommitter(), 2).fields_grouping("upper", "word")
    builder.set_bolt("counts", SqlStateBolt(state("counts"), n=Sum("n"))).fields_grouping("upper", "word")
    builder.set_bolt("batches", SqlStateBolt(state("batches"), n=Sum("n"))).fields_grouping("lower", "word")
    builder.set_bolt("beside", SqlStateBolt(state("beside"), n=Count())).fields_grouping("words", "word")
    return builder.build()


def check_tables(test: TopologyTest, batches: list[list[str]]) -> None:
    """Assert that the states hold exactly these batches."""
    counts = Counter(word for batch in batches for word in batch)
    assert test.table("counts") == test.table("beside") == counts
    assert test.table("batches") == Counter(word for batch in batches for word in set(batch))
