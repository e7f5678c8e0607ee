"""Mutants: the rules, each time with one guard removed. The simulation must find the hole in every one.

A mutant replaces a part of the product. Inside one transaction of the commit protocol the order of the steps
does not matter: there, mutants split the transaction or leave out a step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulation.histories import DatabasesAreRestored, Mutations
from txstream.api.errors import (
    BatchFailedError,
    CoordinatorError,
    CorruptStateError,
    ProgressMismatchError,
    TxidRegressionError,
)
from txstream.api.spouts import Unavailable
from txstream.batch_metas import BatchMetas, MetaCodec
from txstream.coordinator import Command, Coordinator, EmitCommit, Phase
from txstream.engine.commit.committer import Committer
from txstream.engine.start import recovery
from txstream.engine.start.recovery import AdvanceFirst, Resume, decide
from txstream.semantics import Semantics
from txstream.spouts.memory import MemoryRange
from txstream.state import AnswerLostError, BatchRecord, Commit
from txstream.state.commit_protocol import StateTransaction, TopologyStates, Writes
from txstream.state.records import COMMITTED, COMMITTING
from txstream.state.store import layout
from txstream.state.store.backend import StoreBackend
from txstream.state.store.merging import RowRules, RowValues, Values
from txstream.testing.simulation.source import LogCoordinator
from txstream.testing.simulation.stores import Held, Server
from txstream.testing.simulation.tasks import Task
from txstream.testing.simulation.world import FAULTS, Tree, World, WrongResultError
from txstream.transaction import AttemptId, Epoch, TransactionAttempt, Txid, attempt_id
from txstream.zookeeper import ProgressStore
from txstream.zookeeper.tree import Check, Operation

_BEGIN = "engine.commit.committer.Committer._begin"
_COORDINATOR = "engine.start.takeover.Coordinator"
_RECOVER = "engine.start.takeover.recover"
_STATES = "state.commit_protocol.TopologyStates"
_STORE = "state.store.backend.StoreBackend"


def _nothing(*_arguments: Any, **_options: Any) -> list[str]:
    return []


class NoRestore(Mutations, replaces={f"{_STATES}._restore": _nothing}):
    """An opaque replay leaves in place what an earlier attempt wrote: phantom keys."""


def _raise_if_lower(
    store: StoreBackend, here: Any, life: Any, attempt: AttemptId, *, may_be_equal: bool
) -> None:
    row = store._own_fence(here, life)
    layout.put_fence(here, replace(row, attempt=max(row.attempt, attempt)))


class OlderAttemptsMayCommit(Mutations, replaces={f"{_STORE}._raise": _raise_if_lower}):
    """The fence lets a zombie's commit in."""


_commit = TopologyStates.commit


def _commit_deltas(states: TopologyStates, commit: Commit, **options: Any) -> None:
    if any(table.num_rows for table in commit.deltas.values()):
        _commit(states, commit, **options)


class NothingForNoDeltas(Mutations, replaces={f"{_STATES}.commit": _commit_deltas}):
    """A database that has no deltas in a batch is not restored and gets no ledger row."""


class _AddsAgain(RowRules):
    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Any
    ) -> RowValues:
        if stored is not None and stored[2] == attempt.txid:
            stored = stored[0], stored[1], attempt.txid - 1
        return super().written(stored, delta, attempt, key)


class ReplaysAddAgain(Mutations, replaces={"state.store.backend.RowRules": _AddsAgain}):
    """A transactional row ignores its txid, so a replay adds to it again."""


# A driver that changes tables at its start would find the fence below its attempt and refuse to lead.
_NO_FENCE_AT_START = {
    f"{_STATES}.raise_fence": _nothing,
    f"{_STATES}.migrate": _nothing,
    f"{_STATES}.keep_identity": _nothing,
}


class FencesNotRaisedAtStart(Mutations, replaces=_NO_FENCE_AT_START):
    """The new leader leaves the fences where they are until its own first commit."""


@dataclass
class _ReadBefore:
    """A database whose ledger was read before its fence was raised."""

    display_url: str
    _last: BatchRecord | None

    def last_batch(self) -> BatchRecord | None:
        return self._last


class LedgersReadBeforeFencesAreRaised(Mutations):
    """A start does step 4 before step 2: it reads the ledgers before it raises the fences."""

    def __init__(self) -> None:
        self._read: dict[int, list[_ReadBefore]] = {}
        self.replaces = {"engine.start.takeover.take_over": self._take_over, _RECOVER: self._recover}

    def _take_over(self, store: ProgressStore, states: Sequence[Any], **options: Any) -> Epoch:
        self._read[id(store)] = [_ReadBefore(one.display_url, one.last_batch()) for one in states]
        return recovery.take_over(store, states, **options)

    def _recover(
        self, topology: str, semantics: Semantics, store: ProgressStore, _: Any, codec: MetaCodec[Any]
    ) -> Resume:
        progress = store.load()
        ledgers = {read.display_url: read.last_batch() for read in self._read[id(store)]}
        decision = decide(topology, semantics, progress, ledgers, codec)
        if isinstance(decision, AdvanceFirst):
            metas = None if semantics is Semantics.TRANSACTIONAL else decision.metas
            store.advance(decision.txid, decision.attempt, metas)
            return Resume(store.load())
        return decision if isinstance(decision, Resume) else Resume(progress)


class _DropsOnlyTheFailed(Coordinator[MemoryRange]):
    def fail(self, attempt: TransactionAttempt, why: str = "") -> list[Command[MemoryRange]]:
        batch = self.active.get(attempt.txid)
        if batch is None or batch.attempt != attempt or batch.phase is Phase.ADVANCING:
            return []
        del self.active[attempt.txid]
        self._replays.add(attempt.txid)
        if self.semantics is Semantics.TRANSACTIONAL:
            return self.sync()
        self._planning = None
        return self._plan(attempt.txid)

    def planned(self, ticket: int, metas: BatchMetas[MemoryRange]) -> list[Command[MemoryRange]]:
        plan = self._planning
        if plan is not None and plan.ticket == ticket and self._metas.has(plan.txid):
            self._metas.replace(plan.txid, metas)
            self._planning = None
            return self.sync()
        return super().planned(ticket, metas)


class FailDropsOnlyTheFailedAttempt(Mutations, replaces={_COORDINATOR: _DropsOnlyTheFailed}):
    """Only the failed attempt is dropped; later batches go on as if its replay could not shrink."""


class _FailsWhileAdvancing(Coordinator[MemoryRange]):
    def fail(self, attempt: TransactionAttempt, why: str = "") -> list[Command[MemoryRange]]:
        batch = self.active.get(attempt.txid)
        if batch is not None and batch.phase is Phase.ADVANCING:
            batch.phase = Phase.COMMITTING
        return super().fail(batch.attempt if batch is not None else attempt)


class CommittedAttemptsMayFail(Mutations, replaces={_COORDINATOR: _FailsWhileAdvancing}):
    """A fail is still accepted after the commit was acked, while its Advance is under way."""


class _CommitsOutOfOrder(Coordinator[MemoryRange]):
    def _sync(self) -> list[Command[MemoryRange]]:
        commands = super()._sync()
        following = self.active.get(Txid(self.current + 1))
        head = self.active.get(self.current)
        if following is None or head is None or following.phase is not Phase.PROCESSED:
            return commands
        if head.phase in (Phase.COMMITTING, Phase.ADVANCING):
            following.phase = Phase.COMMITTING
            commands.append(EmitCommit(following.attempt, self._metas[following.attempt.txid]))
        return commands


class TheNextCommitDoesNotWaitForAdvance(Mutations, replaces={_COORDINATOR: _CommitsOutOfOrder}):
    """The next commit begins before the previous one is known to be stored."""


class _StartsAtTheFirstAttempt(Coordinator[MemoryRange]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        numbers = iter(range(1, 1 << 20))
        super().__init__(*arguments, **{**options, "next_attempt": lambda: attempt_id(0, next(numbers))})


class AttemptNumbersStartAgain(
    Mutations,
    replaces={
        _COORDINATOR: _StartsAtTheFirstAttempt,
        f"{_STORE}._raise": _raise_if_lower,
        **_NO_FENCE_AT_START,
    },
):
    """After a restart, attempt numbers begin again, so a zombie looks like the live attempt."""

    # Such fences could not be raised to an epoch.


class LostAnswersAreTakenForCommits(
    Mutations, replaces={f"{_STATES}.outcome": lambda _states, _attempt: True}
):
    """Every lost answer is taken for a commit, without a look at the ledger."""


def _recover_by_any(topology: str, semantics: Semantics, store: Any, databases: Any, codec: Any) -> Resume:
    resume = recovery.recover(topology, semantics, store, databases, codec)
    rows = [database.last_batch() for database in databases]
    if resume.replays and all(row is not None and row.txid == resume.progress.current for row in rows):
        return _advance(semantics, store, rows[0], codec)
    return resume


def _recover_by_one(topology: str, semantics: Semantics, store: Any, databases: Any, codec: Any) -> Resume:
    current = store.load().current
    for database in databases:
        row = database.last_batch()
        if row is not None and row.txid == current:
            return _advance(semantics, store, row, codec)
    return recovery.recover(topology, semantics, store, databases, codec)


def _advance(semantics: Semantics, store: ProgressStore, row: BatchRecord, codec: MetaCodec[Any]) -> Resume:
    stored = semantics is Semantics.TRANSACTIONAL
    store.advance(row.txid, row.attempt, None if stored else codec.decode(row.metas, "a ledger"))
    return Resume(store.load())


class AnyAttemptsAreOneCommit(Mutations, replaces={_RECOVER: _recover_by_any}):
    """All ledgers at C are enough to advance, even if different attempts committed them."""


class PartCommittedIsTakenForDone(Mutations, replaces={_RECOVER: _recover_by_one}):
    """One ledger at C is enough to advance."""


class _UncheckedTree(Tree):
    """A ZooKeeper that checks no version of `epoch`, as if multis did not begin with it."""

    def multi(self, operations: Sequence[Operation]) -> None:
        kept = [o for o in operations if not (isinstance(o, Check) and o.path.endswith("/epoch"))]
        if kept:
            super().multi(kept)


class AnOldLeaderMayWriteToZooKeeper(Mutations):
    """No write to ZooKeeper checks the epoch."""

    tree = _UncheckedTree


# --- the executor path ----------------------------------------------------------------------------------


@dataclass
class _Beginning:
    """One `begin_commit` in several transactions."""

    states: TopologyStates
    commit: Commit
    holds_the_fence: bool
    is_raised: bool = False
    written_before: bool = True

    def do(self, steps: str) -> None:
        attempt = self.commit.attempt
        with self.states.store.begin(self.states.life, f"{steps} of {attempt}") as here:
            # Each transaction checks the fence first: it may run long after the one before it.
            if self.is_raised and self.holds_the_fence:
                here.hold_fence(attempt.attempt)
            for step in steps.split():
                getattr(self, f"_{step}")(here, attempt)

    def _raise(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
        here.raise_fence(attempt.attempt, may_be_equal=False)
        self.is_raised = True

    def _ask(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
        self.written_before = self.states._was_here(here, self.commit)

    def _ledger(self, here: StateTransaction, _: TransactionAttempt) -> None:
        here.write_batch(self.states._row(self.commit, COMMITTING, 0))

    def _restore(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
        if self.written_before:
            self.states._restore(here, attempt)

    def _merge(self, here: StateTransaction, attempt: TransactionAttempt) -> None:
        for spec, deltas in self.states._own(self.commit):
            here.write(attempt, spec, deltas)
        here.write_batch(self.states._row(self.commit, COMMITTED, 0))


def _begins_by(*transactions: str, holds_the_fence: bool = True) -> Mapping[str, Any]:
    def begin_commit(states: TopologyStates, commit: Commit, **_options: Any) -> None:
        beginning = _Beginning(states, commit, holds_the_fence)
        for steps in transactions:
            beginning.do(steps)

    return {f"{_STATES}.begin_commit": begin_commit}


class BeginRaisesTheFenceLast(Mutations, replaces=_begins_by("ask ledger", "restore", "raise")):
    """`begin_commit` writes the ledger and undoes the batch while older attempts can still write."""


class BeginLooksAtTheFenceOnce(
    Mutations, replaces=_begins_by("raise ask", "ledger", "restore", holds_the_fence=False)
):
    """`begin_commit` runs in three transactions, and only the first checks the fence."""


class BeginRestoresBeforeItsLedgerRow(Mutations, replaces=_begins_by("raise ask", "restore", "ledger")):
    """`begin_commit` undoes an earlier attempt while the ledger still says `committed`."""


class BeginWritesNoLedgerRow(Mutations, replaces=_begins_by("raise ask restore")):
    """Nothing tells the next attempt that tasks may have written."""


class BeginDoesNotRestore(Mutations, replaces=_begins_by("raise ledger")):
    """`begin_commit` leaves an earlier attempt's rows in place."""


def _commit_as_asked_before(states: TopologyStates, commit: Commit, **_options: Any) -> None:
    beginning = _Beginning(states, commit, True, written_before=states.batch(commit.attempt.txid) is not None)
    beginning.do("raise restore merge")


def _begin_as_asked_before(states: TopologyStates, commit: Commit, **_options: Any) -> None:
    beginning = _Beginning(states, commit, True, written_before=states.batch(commit.attempt.txid) is not None)
    beginning.do("raise ledger restore")


class TheLedgerIsAskedBeforeTheFenceIsRaised(
    Mutations,
    replaces={
        f"{_STATES}.commit": _commit_as_asked_before,
        f"{_STATES}.begin_commit": _begin_as_asked_before,
    },
):
    """The ledger is asked too early: a commit that arrives before the fence is raised is not undone."""


def _write_without_fence(states: TopologyStates, attempt: TransactionAttempt, writes: Writes) -> int:
    return _merge(states, attempt, writes, lambda here: None)


def _look_then_write(states: TopologyStates, attempt: TransactionAttempt, writes: Writes) -> int:
    with states.store.begin(states.life, f"a look of {attempt}", alone=False) as here:
        here.hold_fence(attempt.attempt)
    return _write_without_fence(states, attempt, writes)


def _write_unless_newer(states: TopologyStates, attempt: TransactionAttempt, writes: Writes) -> int:
    def look(here: StateTransaction) -> None:
        with contextlib.suppress(CorruptStateError):  # it is below
            here.hold_fence(attempt.attempt)

    return _merge(states, attempt, writes, look)


def _merge(
    states: TopologyStates,
    attempt: TransactionAttempt,
    writes: Writes,
    look: Callable[[StateTransaction], None],
) -> int:
    with states.store.begin(states.life, str(attempt), alone=False) as here:
        look(here)
        for spec, deltas in states._prepared(writes):
            here.write(attempt, spec, deltas)
    return 0


class TasksDoNotLookAtTheFence(Mutations, replaces={f"{_STATES}.write": _write_without_fence}):
    """A task of an old attempt writes whenever it runs."""


class TasksHoldNoLock(Mutations, replaces={f"{_STATES}.write": _look_then_write}):
    """A task checks the fence without holding it, so the fence may be raised before the task writes."""


_begin = Committer._begin


def _begin_perhaps(committer: Committer, *arguments: Any) -> None:
    try:
        _begin(committer, *arguments)
    except BatchFailedError as error:
        if not isinstance(error.__cause__, AnswerLostError):
            raise


class LostBeginsAreTakenForDone(Mutations, replaces={_BEGIN: _begin_perhaps}):
    """Tasks start although the answer to the beginning was lost, so the fence may be below them."""


class TasksLookForNewerAttemptsOnly(
    LostBeginsAreTakenForDone, replaces={f"{_STATES}.write": _write_unless_newer}
):
    """As `LostBeginsAreTakenForDone`, and tasks accept a lower fence: a late beginning undoes their work."""


def _end_without_fence(states: TopologyStates, commit: Commit, **_options: Any) -> None:
    with states.store.begin(states.life, str(commit.attempt)) as here:
        for spec, deltas in states._own(commit):
            here.write(commit.attempt, spec, deltas)
        here.write_batch(states._row(commit, COMMITTED, 0))


class TheEndDoesNotLookAtTheFence(Mutations, replaces={f"{_STATES}.end_commit": _end_without_fence}):
    """A late end writes `committed` for a batch that another attempt is writing."""


class TheEndDoesNotWaitForEveryShare(Mutations):
    """A commit ends as soon as one task has answered."""

    def are_done(self, tasks: Sequence[Task]) -> bool:
        return not tasks or any(task.is_done for task in tasks)


_end_commit = TopologyStates.end_commit


def _end_the_second(states: TopologyStates, commit: Commit, **options: Any) -> None:
    if not states.display_url.endswith("one"):
        _end_commit(states, commit, **options)


class OneDatabaseIsNotEnded(Mutations, replaces={f"{_STATES}.end_commit": _end_the_second}):
    """One database is not ended, so its ledger still says `committing`."""


class _SaysCommitted:
    """A database in whose ledger every row counts as committed."""

    def __init__(self, states: Any) -> None:
        self._states = states
        self.display_url = states.display_url

    def last_batch(self) -> BatchRecord | None:
        row: BatchRecord | None = self._states.last_batch()
        return None if row is None else replace(row, status="committed")


def _recover_as_committed(
    topology: str, semantics: Semantics, store: Any, databases: Any, codec: Any
) -> Resume:
    told: list[Any] = [_SaysCommitted(database) for database in databases]
    return recovery.recover(topology, semantics, store, told, codec)


class CommittingIsTakenForCommitted(Mutations, replaces={_RECOVER: _recover_as_committed}):
    """A new leader ignores the status of the ledgers' rows."""


def _has_row(states: TopologyStates, attempt: TransactionAttempt) -> bool:
    row = states.batch(attempt.txid)
    return row is not None and row.attempt == attempt.attempt


class TheOutcomeIsTheRowsAttempt(Mutations, replaces={f"{_STATES}.outcome": _has_row}):
    """After a lost answer, a `committing` row of this attempt counts as committed."""


def _never_looks_back(_states: TopologyStates, here: StateTransaction, commit: Commit) -> bool:
    txid = commit.attempt.txid
    return txid in here.entries(txid, txid)


_GAPS_ARE_BUILT_UPON = {f"{_STATES}._was_here": _never_looks_back}


class AGapIsBuiltUpon(DatabasesAreRestored, replaces=_GAPS_ARE_BUILT_UPON):
    """A running driver goes on although a database was restored from an older copy."""


_plan = LogCoordinator.plan


def _plan_from_memory(
    log: LogCoordinator, last: Mapping[str, MemoryRange], limit: int
) -> Mapping[str, MemoryRange | Unavailable]:
    places = vars(log).setdefault("places", {})
    if not last:
        for partition, end in log._log.ends.items():
            places.setdefault(partition, MemoryRange(end, end))
    return _plan(log, {**places, **last}, limit)


class PlacesLiveInTheProcess(
    Mutations, replaces={"testing.simulation.source.LogCoordinator.plan": _plan_from_memory}
):
    """Where the log ended when the first run began is only remembered until a batch of records has it."""


_apply, _server_begins, _look_at_the_end = Held.apply, Server.begin, World._check


def _keep_rows_back(held: Held) -> None:
    server = held._store.server
    rows = {space: held._changed.pop(space) for space in [*held._changed] if space.startswith("rows/")}
    _apply(held)
    vars(server)["kept_back"] = rows


def _write_what_was_kept_back(server: Any) -> None:
    for space, rows in vars(server).pop("kept_back", {}).items():
        for key, value in rows.items():
            layout.apply_to(server.spaces, space, key, value)


def _write_before_the_next(server: Server, transaction: Held) -> None:
    _write_what_was_kept_back(server)
    _server_begins(server, transaction)


def _write_before_the_end(world: World, when: str) -> None:
    for server in world.servers:
        _write_what_was_kept_back(server)
    _look_at_the_end(world, when)


class TablesLagBehind(
    Mutations,
    replaces={
        "testing.simulation.stores.Held.apply": _keep_rows_back,
        "testing.simulation.stores.Server.begin": _write_before_the_next,
        "testing.simulation.world.World._check": _write_before_the_end,
    },
):
    """The rows of a batch are written when the next transaction begins, the last ones before anyone looks."""


ZOMBIES = {"freeze": 0.03, "commit late": 0.1, "call late": 0.1}
MORE_ZOMBIES = {"freeze": 0.05, "commit late": 0.15, "call late": 0.15}
CRASHES = {"crash": 0.02, "call late": 0.15}
OLD_LEADERS = {
    "freeze": 0.0,
    "crash": 0.0,
    "lock kept": 0.0,
    "source away": 0.0,
    "deadline": 0.0,
    "meanwhile": 0.0,
    "batch fails": 0.0,
    "answer lost": 0.0,
    "freeze at start": 0.06,
    "call late": 0.4,
    "another driver": 0.03,
}
LATE = {"commit late": 0.2, "call late": 0.2}
LATE_ENDS = {"freeze": 0.04, "crash": 0.02, "call late": 0.2}
GIVEN_UP = {"tasks given up": 0.3, "freeze": 0.03}
LATE_BEGINS = {"tasks given up": 0.3, "call late": 0.2, "late arrives": 0.5, "commit late": 0.0}
STALE = {"stale message": 0.2}
OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL


@dataclass(frozen=True)
class Hunt:
    """Where a mutant's hole shows, and as which error: a wrong result, or that of a guard behind it."""

    mutant: type[Mutations]
    shows: type[Exception]
    semantics: Semantics
    databases: int = 1
    more: Mapping[str, float] | None = None
    first_seed: int = 0
    """The first seed to try: earlier histories are known not to show the hole."""
    gaps_are_built_upon: bool = False
    """Whether the guard behind it is removed as well."""
    at_end: bool = False
    """Whether the topology begins at the end of its log."""

    def __str__(self) -> str:
        return f"{self.mutant.__name__}-{self.semantics}-{self.databases}-{self.shows.__name__}"

    def rules(self) -> Mutations:
        """Return the rules for one history."""
        rules = self.mutant()
        if self.gaps_are_built_upon:
            rules.replaces = {**rules.replaces, **_GAPS_ARE_BUILT_UPON}
        return rules

    @property
    def faults(self) -> Mapping[str, float]:
        return {**FAULTS, **(self.more or {})}


HUNTS = [
    Hunt(NoRestore, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(NoRestore, WrongResultError, OPAQUE, 2),
    Hunt(OlderAttemptsMayCommit, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(OlderAttemptsMayCommit, TxidRegressionError, TRANSACTIONAL, 1, ZOMBIES),
    Hunt(NothingForNoDeltas, ProgressMismatchError, OPAQUE, 2),
    Hunt(ReplaysAddAgain, WrongResultError, TRANSACTIONAL, 1, ZOMBIES),
    Hunt(ReplaysAddAgain, WrongResultError, TRANSACTIONAL, 2),
    Hunt(FencesNotRaisedAtStart, ProgressMismatchError, OPAQUE, 1, MORE_ZOMBIES),
    Hunt(FencesNotRaisedAtStart, ProgressMismatchError, OPAQUE, 2, ZOMBIES),
    Hunt(LedgersReadBeforeFencesAreRaised, ProgressMismatchError, OPAQUE, 1, ZOMBIES),
    Hunt(LedgersReadBeforeFencesAreRaised, ProgressMismatchError, OPAQUE, 2, ZOMBIES),
    Hunt(FailDropsOnlyTheFailedAttempt, WrongResultError, OPAQUE),
    Hunt(CommittedAttemptsMayFail, CoordinatorError, OPAQUE, 1, STALE),
    Hunt(TheNextCommitDoesNotWaitForAdvance, CoordinatorError, OPAQUE),
    Hunt(AttemptNumbersStartAgain, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(LostAnswersAreTakenForCommits, ProgressMismatchError, OPAQUE),
    Hunt(LostAnswersAreTakenForCommits, ProgressMismatchError, TRANSACTIONAL),
    Hunt(AnyAttemptsAreOneCommit, ProgressMismatchError, OPAQUE, 2, CRASHES),
    Hunt(PartCommittedIsTakenForDone, ProgressMismatchError, OPAQUE, 2),
    Hunt(PartCommittedIsTakenForDone, ProgressMismatchError, TRANSACTIONAL, 2),
    Hunt(AnOldLeaderMayWriteToZooKeeper, CorruptStateError, OPAQUE, 1, OLD_LEADERS, 100),
    Hunt(BeginRaisesTheFenceLast, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(BeginRaisesTheFenceLast, WrongResultError, OPAQUE, 2, ZOMBIES),
    Hunt(BeginLooksAtTheFenceOnce, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(BeginRestoresBeforeItsLedgerRow, WrongResultError, OPAQUE, 1, LATE_ENDS),
    Hunt(BeginWritesNoLedgerRow, WrongResultError, OPAQUE, 1, CRASHES),
    Hunt(BeginDoesNotRestore, WrongResultError, OPAQUE),
    Hunt(BeginDoesNotRestore, WrongResultError, OPAQUE, 2),
    Hunt(TheLedgerIsAskedBeforeTheFenceIsRaised, WrongResultError, OPAQUE, 1, LATE),
    Hunt(TasksDoNotLookAtTheFence, WrongResultError, OPAQUE),
    Hunt(TasksDoNotLookAtTheFence, TxidRegressionError, TRANSACTIONAL),
    Hunt(TasksHoldNoLock, WrongResultError, OPAQUE, 1, GIVEN_UP),
    Hunt(LostBeginsAreTakenForDone, CorruptStateError, OPAQUE),
    Hunt(TasksLookForNewerAttemptsOnly, WrongResultError, OPAQUE, 1, LATE_BEGINS),
    Hunt(TheEndDoesNotLookAtTheFence, WrongResultError, OPAQUE, 1, ZOMBIES),
    Hunt(TheEndDoesNotWaitForEveryShare, WrongResultError, OPAQUE),
    Hunt(TheEndDoesNotWaitForEveryShare, WrongResultError, TRANSACTIONAL),
    Hunt(OneDatabaseIsNotEnded, ProgressMismatchError, OPAQUE, 2),
    Hunt(CommittingIsTakenForCommitted, ProgressMismatchError, OPAQUE),
    Hunt(CommittingIsTakenForCommitted, ProgressMismatchError, TRANSACTIONAL, 2),
    Hunt(AGapIsBuiltUpon, WrongResultError, OPAQUE),
    Hunt(AGapIsBuiltUpon, WrongResultError, TRANSACTIONAL, 2),
    Hunt(TheOutcomeIsTheRowsAttempt, ProgressMismatchError, OPAQUE, 1, LATE),
    Hunt(TablesLagBehind, WrongResultError, OPAQUE),
    Hunt(TablesLagBehind, WrongResultError, TRANSACTIONAL, 2),
    Hunt(PlacesLiveInTheProcess, WrongResultError, OPAQUE, 1, at_end=True),
    Hunt(PlacesLiveInTheProcess, WrongResultError, OPAQUE, 2, at_end=True),
    Hunt(PlacesLiveInTheProcess, WrongResultError, TRANSACTIONAL, 1, at_end=True),
]

_REFUSED_BY_THE_NEXT_COMMIT = (
    NothingForNoDeltas,
    FencesNotRaisedAtStart,
    LostAnswersAreTakenForCommits,
    AnyAttemptsAreOneCommit,
    PartCommittedIsTakenForDone,
    CommittingIsTakenForCommitted,
)
HUNTS += [
    replace(hunt, shows=WrongResultError, gaps_are_built_upon=True)
    for hunt in HUNTS
    if hunt.mutant in _REFUSED_BY_THE_NEXT_COMMIT
]
