"""The rules with one guard taken away each. The simulation must find a hole in every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from support.inmemory import Range

from simulation.executors import Task
from simulation.model import Database, Guards
from simulation.world import FAULTS, Mutations, Tree, World, WrongResultError
from txstream.api.errors import (
    CoordinatorError,
    CorruptStateError,
    ProgressMismatchError,
    TxidRegressionError,
)
from txstream.coordinator import Command, Coordinator, EmitCommit, Phase
from txstream.engine.start.recovery import AdvanceFirst, Resume, decide
from txstream.metas import BatchMetas, MetaCodec
from txstream.semantics import Semantics
from txstream.state import BatchRecord
from txstream.transaction import AttemptId, Epoch, TransactionAttempt, Txid, attempt_id
from txstream.zookeeper import ProgressStore
from txstream.zookeeper.tree import Check, Operation


class NoRestore(Mutations):
    """An opaque replay leaves in place what an earlier attempt wrote: phantom keys."""

    guards = Guards(restores=False)


class OlderAttemptsMayCommit(Mutations):
    """A zombie's commit is let in."""

    guards = Guards(refuses_older_attempts=False)


class NothingForNoDeltas(Mutations):
    """A database without deltas in a batch gets neither restore nor ledger row."""

    guards = Guards(writes_a_ledger_row_without_deltas=False)


class ReplaysAddAgain(Mutations):
    """A transactional row does not look at its txid."""

    guards = Guards(skips_what_a_row_has=False)


class FencesNotRaisedAtStart(Mutations):
    """The new leader leaves the fences where they are until its own first commit."""

    def raise_fence(self, database: Database, attempt: AttemptId) -> None:
        if attempt != attempt_id(attempt >> 32, 0):
            super().raise_fence(database, attempt)


class _ReadBefore:
    """A database whose ledger was read before its fence was raised."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.url_for_people = view.url_for_people
        self._last: BatchRecord | None = view.last_batch()

    def last_batch(self) -> BatchRecord | None:
        return self._last


class LedgersReadBeforeFencesAreRaised(Mutations):
    """Steps 2 and 4 of a start in the other order."""

    def __init__(self) -> None:
        self._read: dict[int, list[_ReadBefore]] = {}

    def take_over(self, store: ProgressStore, databases: Sequence[Any]) -> Epoch:
        self._read[id(store)] = [_ReadBefore(view) for view in databases]
        return super().take_over(store, databases)

    def recover(
        self,
        topology: str,
        semantics: Semantics,
        store: ProgressStore,
        databases: Sequence[Any],
        codec: MetaCodec[Any],
    ) -> Resume:
        progress = store.load()
        read = self._read[id(store)]
        ledgers = {database.url_for_people: database.last_batch() for database in read}
        decision = decide(topology, semantics, progress, ledgers, codec)
        if isinstance(decision, AdvanceFirst):
            metas = None if semantics is Semantics.TRANSACTIONAL else decision.metas
            store.advance(decision.txid, decision.attempt, metas)
            return Resume(store.load())
        return decision if isinstance(decision, Resume) else Resume(progress)


class _DropsOnlyTheFailed(Coordinator[Range]):
    def fail(self, attempt: TransactionAttempt) -> list[Command[Range]]:
        batch = self.active.get(attempt.txid)
        if batch is None or batch.attempt != attempt or batch.phase is Phase.ADVANCING:
            return []
        del self.active[attempt.txid]
        self._replays.add(attempt.txid)
        if self.semantics is Semantics.TRANSACTIONAL:
            return self.sync()
        self._planning = None
        return self._plan(attempt.txid)

    def planned(self, ticket: int, metas: BatchMetas[Range]) -> list[Command[Range]]:
        plan = self._planning
        if plan is not None and plan.ticket == ticket and self._metas.has(plan.txid):
            self._metas.replace(plan.txid, metas)
            self._planning = None
            return self.sync()
        return super().planned(ticket, metas)


class FailDropsOnlyTheFailedAttempt(Mutations):
    """Later batches go on as if the replay could not shrink."""

    coordinator = _DropsOnlyTheFailed


class _FailsWhileAdvancing(Coordinator[Range]):
    def fail(self, attempt: TransactionAttempt) -> list[Command[Range]]:
        batch = self.active.get(attempt.txid)
        if batch is not None and batch.phase is Phase.ADVANCING:
            batch.phase = Phase.COMMITTING
        return super().fail(batch.attempt if batch is not None else attempt)


class CommittedAttemptsMayFail(Mutations):
    """A fail is listened to after the commit was acked, while its Advance is under way."""

    coordinator = _FailsWhileAdvancing


class _CommitsOutOfOrder(Coordinator[Range]):
    def sync(self) -> list[Command[Range]]:
        commands = super().sync()
        following = self.active.get(Txid(self.current + 1))
        head = self.active.get(self.current)
        if following is None or head is None or following.phase is not Phase.PROCESSED:
            return commands
        if head.phase in (Phase.COMMITTING, Phase.ADVANCING):
            following.phase = Phase.COMMITTING
            commands.append(EmitCommit(following.attempt, self._metas[following.attempt.txid]))
        return commands


class TheNextCommitDoesNotWaitForAdvance(Mutations):
    """The next commit begins while the one before is not known to be stored."""

    coordinator = _CommitsOutOfOrder


class _StartsAtTheFirstAttempt(Coordinator[Range]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        numbers = iter(range(1, 1 << 20))
        super().__init__(*arguments, **{**options, "next_attempt": lambda: attempt_id(0, next(numbers))})


class AttemptNumbersStartAgain(Mutations):
    """After a restart attempts count from the beginning, so a zombie looks like the live one."""

    coordinator = _StartsAtTheFirstAttempt

    def raise_fence(self, database: Database, attempt: AttemptId) -> None:
        """Such fences could not be raised to an epoch."""

    guards = replace(Guards(), refuses_older_attempts=False)


class LostAnswersAreTakenForCommits(Mutations):
    """Nobody looks into the ledger."""

    def outcome(self, database: Database, attempt: TransactionAttempt) -> bool:
        return True


class AnyAttemptsAreOneCommit(Mutations):
    """Every ledger at C is enough to advance, whether or not one and the same attempt committed them."""

    def recover(
        self,
        topology: str,
        semantics: Semantics,
        store: ProgressStore,
        databases: Sequence[Any],
        codec: MetaCodec[Any],
    ) -> Resume:
        resume = super().recover(topology, semantics, store, databases, codec)
        current = resume.progress.current
        rows = [database.last_batch() for database in databases]
        if resume.replays and all(row is not None and row.txid == current for row in rows):
            row = rows[0]
            stored = semantics is Semantics.TRANSACTIONAL
            store.advance(current, row.attempt, None if stored else codec.decode(row.metas, "a ledger"))
            return Resume(store.load())
        return resume


class PartCommittedIsTakenForDone(Mutations):
    """One ledger at C is enough to advance."""

    def recover(
        self,
        topology: str,
        semantics: Semantics,
        store: ProgressStore,
        databases: Sequence[Any],
        codec: MetaCodec[Any],
    ) -> Resume:
        progress = store.load()
        for database in databases:
            row = database.last_batch()
            if row is not None and row.txid == progress.current:
                stored = semantics is Semantics.TRANSACTIONAL
                metas = None if stored else codec.decode(row.metas, "a ledger")
                store.advance(progress.current, row.attempt, metas)
                return Resume(store.load())
        return super().recover(topology, semantics, store, databases, codec)


class _UncheckedTree(Tree):
    """A ZooKeeper that checks no version of `epoch`, as if multis did not begin with it."""

    def multi(self, operations: Sequence[Operation]) -> None:
        kept = [o for o in operations if not (isinstance(o, Check) and o.path.endswith("/epoch"))]
        if kept:
            super().multi(kept)


class AnOldLeaderMayWriteToZooKeeper(Mutations):
    """No multi checks the epoch."""

    tree = _UncheckedTree


# --- the executor path ----------------------------------------------------------------------------------


class BeginRaisesTheFenceLast(Mutations):
    """The ledger is written and the batch undone while older attempts can still write."""

    guards = Guards(begins_by=("ledger", "restore", "raise"))


class BeginLooksAtTheFenceOnce(Mutations):
    """A beginning in three transactions, of which only the first looks at the fence."""

    guards = Guards(steps_demand_the_fence=False)


class BeginRestoresBeforeItsLedgerRow(Mutations):
    """What an earlier attempt committed is undone while the ledger still says that it is committed."""

    guards = Guards(begins_by=("raise", "restore", "ledger"))


class BeginWritesNoLedgerRow(Mutations):
    """Nothing tells the next attempt that tasks may have written."""

    guards = Guards(begins_by=("raise", "restore"))


class BeginDoesNotRestore(Mutations):
    """An earlier attempt's rows stay."""

    guards = Guards(begins_by=("raise", "ledger"))


class BeginAsksAfterItsOwnRow(Mutations):
    """Its own row has taken the place of the earlier attempt's, so nothing is ever undone."""

    guards = Guards(asks_before_the_ledger_row=False)


class TasksDoNotLookAtTheFence(Mutations):
    """A task of an old attempt writes whenever it runs."""

    guards = Guards(tasks_demand="nothing")


class TasksHoldNoLock(Mutations):
    """A task looks at the fence, and writes when the fence may have been raised."""

    def write(self, world: World, task: Task, *, alone: bool) -> None:
        if not alone:
            super().write(world, task, alone=alone)
            return
        task.database.demand_for_task(task.attempt)
        world.go_on()
        task.database.merge(task.attempt, task.deltas)


class LostBeginsAreTakenForDone(Mutations):
    """Tasks start though nobody knows whether their attempt has begun; the fence is below them then."""

    def begin_answer_lost(self) -> None:
        pass


class TasksLookForNewerAttemptsOnly(LostBeginsAreTakenForDone):
    """The same, and a fence below a task's attempt is good enough: a late beginning undoes its work."""

    guards = Guards(tasks_demand="not above")


class TheEndDoesNotLookAtTheFence(Mutations):
    """An end that is late says `committed` of a batch that another attempt is writing."""

    guards = Guards(the_end_demands_the_fence=False)


class TheEndDoesNotWaitForEveryShare(Mutations):
    """One task's answer is enough."""

    def are_done(self, tasks: Sequence[Task]) -> bool:
        return not tasks or any(task.is_done for task in tasks)


class OneDatabaseIsNotEnded(Mutations):
    """Its ledger goes on saying `committing`."""

    def skips_the_end(self, database: Database) -> bool:
        return database.name == "database 1"


class _SaysCommitted:
    """A database in whose ledger every row counts as committed."""

    def __init__(self, view: Any) -> None:
        self._view = view
        self.url_for_people = view.url_for_people

    def last_batch(self) -> BatchRecord | None:
        row: BatchRecord | None = self._view.last_batch()
        return None if row is None else replace(row, status="committed")


class CommittingIsTakenForCommitted(Mutations):
    """A new leader does not look at the status of a ledger's row."""

    def recover(
        self,
        topology: str,
        semantics: Semantics,
        store: ProgressStore,
        databases: Sequence[Any],
        codec: MetaCodec[Any],
    ) -> Resume:
        views = [_SaysCommitted(view) for view in databases]
        return super().recover(topology, semantics, store, views, codec)


class TheOutcomeIsTheRowsAttempt(Mutations):
    """After a lost answer `committing` by this attempt is enough."""

    def outcome(self, database: Database, attempt: TransactionAttempt) -> bool:
        row = database.ledger.get(attempt.txid)
        return row is not None and row.attempt == attempt.attempt


ZOMBIES = {"freeze": 0.08, "commit late": 0.2}
MORE_ZOMBIES = {"freeze": 0.15, "commit late": 0.3}
CRASHES = {"crash": 0.04, "commit late": 0.3}
OUTAGES = {"freeze": 0.05, "commit late": 0.4, "database away": 0.2, "crash": 0.0, "another driver": 0.04}
LATE = {"commit late": 0.3}
LATE_ENDS = {"freeze": 0.1, "crash": 0.04, "commit late": 0.3}
GIVEN_UP = {"tasks given up": 0.3, "freeze": 0.0, "crash": 0.005}
STALE = {"stale message": 0.2}
OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL


@dataclass(frozen=True)
class Hunt:
    """Where a mutant's hole shows, and as what: a wrong result, or a guard behind the one that is gone."""

    mutant: type[Mutations]
    shows: type[Exception]
    semantics: Semantics
    databases: int = 1
    more: Mapping[str, float] | None = None
    first_seed: int = 0
    """Where the search begins: histories before it are known not to show it."""

    def __str__(self) -> str:
        return f"{self.mutant.__name__}-{self.semantics}-{self.databases}-{self.shows.__name__}"

    @property
    def faults(self) -> Mapping[str, float]:
        return {**FAULTS, **(self.more or {})}


HUNTS = [
    Hunt(NoRestore, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(NoRestore, WrongResultError, OPAQUE, 2),
    Hunt(OlderAttemptsMayCommit, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(OlderAttemptsMayCommit, TxidRegressionError, TRANSACTIONAL, 1, ZOMBIES),
    Hunt(NothingForNoDeltas, WrongResultError, OPAQUE, 2),
    Hunt(ReplaysAddAgain, WrongResultError, TRANSACTIONAL, 1, ZOMBIES),
    Hunt(ReplaysAddAgain, WrongResultError, TRANSACTIONAL, 2),
    Hunt(FencesNotRaisedAtStart, WrongResultError, OPAQUE, 1, MORE_ZOMBIES),
    Hunt(FencesNotRaisedAtStart, WrongResultError, OPAQUE, 2, MORE_ZOMBIES),
    Hunt(LedgersReadBeforeFencesAreRaised, ProgressMismatchError, OPAQUE, 1, ZOMBIES),
    Hunt(LedgersReadBeforeFencesAreRaised, ProgressMismatchError, OPAQUE, 2, ZOMBIES),
    Hunt(FailDropsOnlyTheFailedAttempt, WrongResultError, OPAQUE),
    Hunt(CommittedAttemptsMayFail, CoordinatorError, OPAQUE, 1, STALE),
    Hunt(TheNextCommitDoesNotWaitForAdvance, ProgressMismatchError, OPAQUE),
    Hunt(AttemptNumbersStartAgain, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(LostAnswersAreTakenForCommits, WrongResultError, OPAQUE),
    Hunt(LostAnswersAreTakenForCommits, WrongResultError, TRANSACTIONAL),
    Hunt(AnyAttemptsAreOneCommit, WrongResultError, OPAQUE, 2, CRASHES),
    Hunt(PartCommittedIsTakenForDone, WrongResultError, OPAQUE, 2),
    Hunt(PartCommittedIsTakenForDone, WrongResultError, TRANSACTIONAL, 2),
    Hunt(AnOldLeaderMayWriteToZooKeeper, CorruptStateError, OPAQUE, 1, OUTAGES, 257),
    Hunt(BeginRaisesTheFenceLast, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(BeginRaisesTheFenceLast, WrongResultError, OPAQUE, 2, ZOMBIES),
    Hunt(BeginLooksAtTheFenceOnce, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(BeginRestoresBeforeItsLedgerRow, WrongResultError, OPAQUE, 1, LATE_ENDS),
    Hunt(BeginWritesNoLedgerRow, WrongResultError, OPAQUE, 1, CRASHES),
    Hunt(BeginDoesNotRestore, WrongResultError, OPAQUE),
    Hunt(BeginDoesNotRestore, WrongResultError, OPAQUE, 2),
    Hunt(BeginAsksAfterItsOwnRow, WrongResultError, OPAQUE),
    Hunt(TasksDoNotLookAtTheFence, WrongResultError, OPAQUE),
    Hunt(TasksDoNotLookAtTheFence, TxidRegressionError, TRANSACTIONAL),
    Hunt(TasksHoldNoLock, WrongResultError, OPAQUE, 1, GIVEN_UP),
    Hunt(LostBeginsAreTakenForDone, CorruptStateError, OPAQUE),
    Hunt(TasksLookForNewerAttemptsOnly, WrongResultError, OPAQUE, first_seed=133),
    Hunt(TheEndDoesNotLookAtTheFence, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(TheEndDoesNotWaitForEveryShare, WrongResultError, OPAQUE),
    Hunt(TheEndDoesNotWaitForEveryShare, WrongResultError, TRANSACTIONAL),
    Hunt(OneDatabaseIsNotEnded, ProgressMismatchError, OPAQUE, 2),
    Hunt(CommittingIsTakenForCommitted, WrongResultError, OPAQUE),
    Hunt(CommittingIsTakenForCommitted, WrongResultError, TRANSACTIONAL, 2),
    Hunt(TheOutcomeIsTheRowsAttempt, ProgressMismatchError, OPAQUE, 1, LATE),
]
