"""Stores whose commits are wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.wrong_states.registry import breaks
from txstream.core.fault_points import Point, Reached
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.plugins.proof.stores.merging import RowRules
from txstream.state import BatchRecord, Commit, StateTransaction, TableSpec, TopologyLife, TopologyStates
from txstream.state.commit_protocol import nobody
from txstream.state.records import COMMITTED


@breaks("commit-is-atomic")
class FenceFirst(MemoryBackend):
    """The fence is raised in a transaction of its own."""

    def _raise(
        self, here: Transaction, life: TopologyLife, attempt: AttemptId, *, may_be_equal: bool
    ) -> None:
        super()._raise(here, life, attempt, may_be_equal=True)

    class Bound(TopologyStates):
        def commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
            if self.life.is_fenced:
                with self.store.begin(self.life, "its fence") as here:
                    here.raise_fence(commit.attempt.attempt, may_be_equal=False)
            super().commit(commit, reached=reached)

    bound = Bound


@breaks("a-refused-value-leaves-nothing")
class OneTableAtATime(TopologyStates):
    def commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        for spec in self.life.tables:
            if spec.state.table in commit.deltas:
                deltas = self.store.prepare(spec, commit.deltas[spec.state.table])
                with self.store.begin(self.life, "a table") as here:
                    here.write(commit.attempt, spec, deltas)
        super().commit(replace(commit, deltas={}), reached=reached)


@breaks("beginning-is-atomic")
class BeginningToldAfterwards(TopologyStates):
    def begin_commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        super().begin_commit(commit)
        reached(Point.INSIDE_BEGIN)


@breaks("beginning-is-atomic")
class BeginningToldTwice(TopologyStates):
    def begin_commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        super().begin_commit(commit, reached=reached)
        reached(Point.INSIDE_BEGIN)


@breaks("end-is-atomic")
class WritesBeforeItEnds(TopologyStates):
    def end_commit(self, commit: Commit, *, keys: int = 0, reached: Reached = nobody) -> None:
        writes = [
            (s, commit.deltas[s.state.table]) for s in self.life.tables if s.state.table in commit.deltas
        ]
        keys += self.write(commit.attempt, writes)
        super().end_commit(replace(commit, deltas={}), keys=keys, reached=reached)


def with_rules(kind: type[RowRules]) -> type[MemoryBackend]:
    """Return a store with these row rules."""

    class Store(MemoryBackend):
        def _rules(self, spec: TableSpec) -> RowRules:
            return kind(spec)

    Store.__name__ = Store.__qualname__ = f"With{kind.__name__}"
    return Store


@breaks("phantom-keys-are-undone")
class RestoresOnePage(MemoryBackend):
    """A scan ends after the first page of the answer."""

    @contextlib.contextmanager
    def transaction(self, **options: Any) -> Iterator[Transaction]:
        with super().transaction(**options) as here:
            scan = here.scan
            here.scan = lambda space: list(scan(space))[:1000]  # type: ignore[method-assign]
            yield here


@breaks("transactional-replay-is-skipped")
class UndoesTransactional(MemoryBackend):
    class Bound(TopologyStates):
        def _restore(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
            for spec in self.life.tables:
                here.restore(attempt, spec)

    bound = Bound

    def _restore(self, here: Transaction, txid: Txid, spec: TableSpec) -> None:
        if spec.semantics is not Semantics.TRANSACTIONAL:
            super()._restore(here, txid, spec)
            return
        rows = layout.rows_space(spec.state.table)
        for key, stored in list(here.scan(rows)):
            if stored[2] == txid:
                here.put(rows, key, None)


@breaks("ledger-keeps-everything")
class WholeSeconds(MemoryBackend):
    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        found = super().batch(topology, txid)
        return None if found is None else replace(found, planned_at=found.planned_at.replace(microsecond=0))


@breaks("ledger-keeps-everything")
class LocalTimes(MemoryBackend):
    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        found = super().batch(topology, txid)
        if found is None or found.committed_at is None:
            return found
        return replace(found, committed_at=found.committed_at.replace(tzinfo=None))


@breaks("ledger-says-committing")
class CountsItsOwnOnly(TopologyStates):
    def end_commit(self, commit: Commit, *, keys: int = 0, reached: Reached = nobody) -> None:
        super().end_commit(commit, reached=reached)


@breaks("ledger-is-in-order")
class SortedAsText(MemoryBackend):
    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        found = sorted(super().batches(topology, before=before), key=lambda row: str(row.txid))
        return found if limit is None else found[-limit:]


@breaks("ledger-is-in-order")
class AlwaysFromTheEnd(MemoryBackend):
    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        return super().batches(topology, limit=limit)


@breaks("outcome-is-of-one-attempt")
class AnyAttemptCounts(TopologyStates):
    def outcome(self, attempt: TransactionAttempt) -> bool:
        row = self.batch(attempt.txid)
        return row is not None and row.status == COMMITTED


@breaks("non-transactional-has-no-fence")
class FencesEverything(TopologyStates):
    def commit(self, commit: Commit, *, reached: Reached = nobody) -> None:
        fenced = replace(self.life, semantics=Semantics.OPAQUE)
        TopologyStates(self.store, fenced).commit(commit, reached=reached)
