"""Stores whose commits are not what they should be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from support.wrong_states.registry import breaks
from txstream.api.errors import StateValueError
from txstream.semantics import Semantics
from txstream.state import BatchRecord, Commit, MemoryBackend, TableSpec, Transaction
from txstream.state.backend import nobody
from txstream.state.records import COMMITTED, COMMITTING
from txstream.state.store import layout
from txstream.state.store.merging import Key, RowRules, RowValues, Values
from txstream.state.values import prepare
from txstream.transaction import TransactionAttempt, Txid


@breaks("commit-is-atomic")
class ToldAfterwards(MemoryBackend):
    def commit(self, *arguments: Any, reached: Any = nobody, **options: Any) -> None:
        super().commit(*arguments, **options)
        reached("inside-commit")


@breaks("commit-is-atomic")
class NeverTold(MemoryBackend):
    def commit(self, *arguments: Any, reached: Any = nobody, **options: Any) -> None:
        super().commit(*arguments, **options)


@breaks("commit-is-atomic")
class FenceFirst(MemoryBackend):
    """The fence is raised by a transaction of its own."""

    def commit(self, topology: str, uuid: str, tables: Any, commit: Commit, **options: Any) -> None:
        if options["semantics"] is not Semantics.NON_TRANSACTIONAL:
            with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
                super()._raise(here, topology, uuid, commit.attempt.attempt, may_be_equal=False)
        super().commit(topology, uuid, tables, commit, **options)

    def _raise(self, *arguments: Any, may_be_equal: bool) -> None:
        super()._raise(*arguments, may_be_equal=True)


@breaks("a-refused-value-leaves-nothing")
class SkipsBadTables(MemoryBackend):
    def _prepare(self, tables: Sequence[TableSpec], commit: Commit) -> Any:
        good = []
        for spec in tables:
            if spec.state.table in commit.deltas:
                try:
                    good.append((spec, prepare(spec, commit.deltas[spec.state.table], self)))
                except StateValueError:
                    continue
        return good


@breaks("a-refused-value-leaves-nothing")
class OneTableAtATime(MemoryBackend):
    def commit(self, topology: str, uuid: str, tables: Any, commit: Commit, **options: Any) -> None:
        for spec in tables:
            if spec.state.table in commit.deltas:
                deltas = prepare(spec, commit.deltas[spec.state.table], self)
                with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
                    self._write(here, commit.attempt, [(spec, deltas)])
        super().commit(topology, uuid, tables, replace(commit, deltas={}), **options)


@breaks("beginning-is-atomic")
class BeginningToldAfterwards(MemoryBackend):
    def begin_commit(self, *arguments: Any, reached: Any = nobody, **options: Any) -> None:
        super().begin_commit(*arguments, **options)
        reached("inside-begin")


@breaks("beginning-is-atomic")
class BeginningToldTwice(MemoryBackend):
    def begin_commit(self, *arguments: Any, reached: Any = nobody, **options: Any) -> None:
        super().begin_commit(*arguments, reached=reached, **options)
        reached("inside-begin")


@breaks("end-is-atomic")
class WritesBeforeItEnds(MemoryBackend):
    def end_commit(self, topology: str, uuid: str, tables: Any, commit: Commit, **options: Any) -> None:
        writes = [(s, commit.deltas[s.state.table]) for s in tables if s.state.table in commit.deltas]
        written = self.write(topology, uuid, commit.attempt, writes, semantics=options["semantics"])
        options["keys"] = options.get("keys", 0) + written
        super().end_commit(topology, uuid, tables, replace(commit, deltas={}), **options)


def with_rules(kind: type[RowRules]) -> type[MemoryBackend]:
    """A store with these rules."""

    class Store(MemoryBackend):
        def _rules(self, spec: TableSpec) -> RowRules:
            return kind(spec)

    Store.__name__ = Store.__qualname__ = f"With{kind.__name__}"
    return Store


class AnyOrder(RowRules):
    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        if stored is not None and stored[2] is not None and stored[2] > attempt.txid:
            stored = (stored[0], stored[1], attempt.txid - 1)
        return super().written(stored, delta, attempt, key)


breaks("regression-is-refused")(with_rules(AnyOrder))


class Skipping(RowRules):
    """An older batch is left out without a word."""

    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        if stored is not None and stored[2] is not None and stored[2] > attempt.txid:
            return stored
        return super().written(stored, delta, attempt, key)


breaks("regression-is-refused")(with_rules(Skipping))


@breaks("phantom-keys-are-undone", "beginning-undoes")
class NoRestore(MemoryBackend):
    def _restore(self, here: Transaction, txid: Txid, tables: Sequence[TableSpec]) -> None:
        return


@breaks("phantom-keys-are-undone")
class RestoresOnePage(MemoryBackend):
    """A scan ends where the first page of the answer does."""

    @contextlib.contextmanager
    def transaction(self, **options: Any) -> Iterator[Transaction]:
        with super().transaction(**options) as here:
            scan = here.scan
            here.scan = lambda space: list(scan(space))[:1000]  # type: ignore[method-assign]
            yield here


class KeepsCreated(RowRules):
    """Rows that the batch created stay."""

    def restored(self, stored: RowValues, txid: Txid) -> RowValues | None:
        return super().restored(stored, txid) or stored


breaks("phantom-keys-are-undone")(with_rules(KeepsCreated))


@breaks("beginning-undoes")
class RestoresTheFirstTable(MemoryBackend):
    def _restore(self, here: Transaction, txid: Txid, tables: Sequence[TableSpec]) -> None:
        super()._restore(here, txid, [] if len(tables) == 1 else tables[:1])


@breaks("beginning-undoes")
class WritesAtTheBeginning(MemoryBackend):
    def begin_commit(self, topology: str, uuid: str, tables: Any, commit: Commit, **options: Any) -> None:
        super().begin_commit(topology, uuid, tables, commit, **options)
        with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
            self._write(here, commit.attempt, self._prepare(tables, commit))


@breaks("transactional-replay-is-skipped")
class UndoesTransactional(MemoryBackend):
    def _restore(self, here: Transaction, txid: Txid, tables: Sequence[TableSpec]) -> None:
        super()._restore(here, txid, tables)
        for spec in tables:
            if spec.semantics is Semantics.TRANSACTIONAL:
                rows = layout.rows_space(spec.state.table)
                for key, stored in list(here.scan(rows)):
                    if stored[2] == txid:
                        here.put(rows, key, None)


class AlwaysAdding(RowRules):
    """Every write is taken for a new batch's."""

    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        if stored is not None and stored[2] == attempt.txid:
            stored = (stored[0], stored[1], attempt.txid - 1)
        return super().written(stored, delta, attempt, key)


breaks("a-share-counts-once", "transactional-rules", "transactional-replay-is-skipped")(
    with_rules(AlwaysAdding)
)


@breaks("a-share-counts-once")
class CountsChanges(MemoryBackend):
    def _write(self, here: Transaction, attempt: TransactionAttempt, work: Any) -> int:
        before = {s.state.table: dict(here.scan(layout.rows_space(s.state.table))) for s, _ in work}
        super()._write(here, attempt, work)
        return sum(
            before[s.state.table].get(key) != row
            for s, _ in work
            for key, row in here.scan(layout.rows_space(s.state.table))
        )


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


@breaks("ledger-keeps-everything")
class NoDetails(MemoryBackend):
    def batch(self, topology: str, txid: int) -> BatchRecord | None:
        found = super().batch(topology, txid)
        return None if found is None else replace(found, details={})


@breaks("ledger-says-committing", "outcome-is-of-one-attempt")
class SilentBeginning(MemoryBackend):
    def _write_ledger(
        self,
        here: Transaction,
        topology: str,
        uuid: str,
        commit: Commit,
        semantics: Any,
        status: Any,
        keys: int,
    ) -> None:
        if status == COMMITTED:
            super()._write_ledger(here, topology, uuid, commit, semantics, status, keys)


@breaks("ledger-says-committing")
class CountsItsOwnOnly(MemoryBackend):
    def end_commit(self, *arguments: Any, keys: int = 0, **options: Any) -> None:
        super().end_commit(*arguments, keys=0, **options)


@breaks("ledger-is-in-order")
class SortedAsText(MemoryBackend):
    def batches(self, topology: str, *, limit: int | None = None) -> list[BatchRecord]:
        found = sorted(super().batches(topology), key=lambda row: str(row.txid))
        return found if limit is None else found[-limit:]


@breaks("ledger-is-in-order")
class FirstOnes(MemoryBackend):
    def batches(self, topology: str, *, limit: int | None = None) -> list[BatchRecord]:
        found = super().batches(topology)
        return found if limit is None else found[:limit]


@breaks("outcome-is-of-one-attempt")
class AnyAttemptCounts(MemoryBackend):
    def outcome(self, topology: str, attempt: TransactionAttempt) -> bool:
        row = self.batch(topology, attempt.txid)
        return row is not None and row.status == COMMITTED


@breaks("outcome-is-of-one-attempt")
class BegunIsDone(MemoryBackend):
    def outcome(self, topology: str, attempt: TransactionAttempt) -> bool:
        row = self.batch(topology, attempt.txid)
        return row is not None and row.status in (COMMITTING, COMMITTED) and row.attempt == attempt.attempt


@breaks("non-transactional-has-no-fence")
class FencesEverything(MemoryBackend):
    def commit(self, *arguments: Any, semantics: Semantics, **options: Any) -> None:
        super().commit(*arguments, semantics=Semantics.OPAQUE, **options)
