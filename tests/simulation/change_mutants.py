"""What keeps a topology exact while it changes, taken away one by one. The simulation must find each hole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest.mock import patch

from simulation.changes import CHANGE_FAULTS
from simulation.changing import ChangeMutations
from simulation.releases import DEFAULT
from simulation.stores import Store
from simulation.world import WrongResultError
from txstream.api.errors import ProgressMismatchError
from txstream.engine.commit.state_cache import StateCache
from txstream.engine.start import takeover as assembly
from txstream.engine.start.takeover import Takeover
from txstream.semantics import Semantics
from txstream.state import BatchRecord, TopologyLife
from txstream.state.store import layout
from txstream.state.store.layout import Transaction
from txstream.transaction import AttemptId, TransactionAttempt, Txid
from txstream.zookeeper import Identity, ProgressStore


class NobodyLooksAgain(ChangeMutations):
    """What another leader has let join since this start began is not seen."""

    def take_up(self, *arguments: Any, **options: Any) -> Takeover:
        with patch.object(assembly, "confirm", lambda topology, claim, store: claim):
            return super().take_up(*arguments, **options)


class _NamesNoState:
    """A progress store whose identity stays as it was."""

    def __init__(self, store: ProgressStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def replace_identity(self, identity: Identity) -> None:
        return


class TheIdentityIsNotStored(ChangeMutations):
    """A state counts, and nothing tells the former code that it may not go on without it."""

    def take_up(self, topology: Any, store: Any, *arguments: Any, **options: Any) -> Takeover:
        return super().take_up(topology, _NamesNoState(store), *arguments, **options)


class _BeginsWithoutALedger(Store):
    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        return


class JoinsWithoutItsFirstTxid(ChangeMutations):
    """A database that joins has no ledger, so the next leader cannot tell it from one that lost all."""

    store = _BeginsWithoutALedger


class _Changing(Store):
    """Its tables are changed once more after a migration."""

    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        done = super().migrate(life, attempt, unfinished=unfinished)
        with self.transaction(exclusive=["definitions", layout.lock_of(life.topology)]) as here:
            self._hold(here, life, attempt)
            for spec in life.tables:
                if len(spec.state.value_names) == 2:
                    self.change(here, layout.rows_space(spec.state.table), done=bool(done))
        return done

    def change(self, here: Transaction, rows: str, *, done: bool) -> None:
        raise NotImplementedError


class _AddsAgain(_Changing):
    def change(self, here: Transaction, rows: str, *, done: bool) -> None:
        for key, ((n, total), prev, txid) in list(here.scan(rows)):
            if not done:
                here.put(rows, key, ((n, total + DEFAULT), prev, txid))


class DefaultsAreAddedTwice(ChangeMutations):
    """A start that finds the column there adds its default again."""

    store = _AddsAgain


class _ForgetsPrev(_Changing):
    def change(self, here: Transaction, rows: str, *, done: bool) -> None:
        for key, (values, prev, txid) in list(here.scan(rows)):
            if done and prev is not None:
                here.put(rows, key, (values, (prev[0], 0), txid))


class TheValueBeforeHasNoDefault(ChangeMutations):
    """What is undone after a column was added comes back without the default."""

    store = _ForgetsPrev


class _GrowsAnyTime(Store):
    def migrate(self, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None) -> list[str]:
        return super().migrate(life, attempt)


class GrowsWhileCommittedInPart(ChangeMutations):
    """Rows that have a transactional txid already are not written again, and lack the column for ever."""

    store = _GrowsAnyTime


class _PrunesAll(Store):
    def prune(
        self, topology: str, *, committed_before: datetime | None, newest: int | None, rows: int
    ) -> int:
        with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
            ledger = layout.ledger_space(topology)
            kept = sorted(here.scan(ledger), key=lambda item: item[0])
            last = max((key[0] for key, row in kept if row["status"] == "committed"), default=0)
            going = [key for key, _ in kept if key[0] <= last]
            for key in going:
                here.put(ledger, key, None)
            return len(going)


class TheLastRowIsPruned(ChangeMutations):
    """A new leader finds no batch where ZooKeeper has one."""

    store = _PrunesAll


class _KeepsNothing(Store):
    def keep_identity(self, *arguments: Any, **options: Any) -> None:
        return


class LeadersKeepNoIdentity(ChangeMutations):
    """Databases know the states of the first run only; a rebuild of ZooKeeper forgets the others."""

    store = _KeepsNothing


class BoltsReadTheirOwnBatch(ChangeMutations):
    """What an earlier attempt of this batch has written is read as if it had been there before."""

    def read_before(self, attempt: TransactionAttempt) -> Txid:
        return Txid(attempt.txid + 1)


class _AnyCache(StateCache):
    def begin(self, committed: TransactionAttempt | None) -> None:
        self._left_by = None


class CachesOutliveAnAttempt(ChangeMutations):
    """A task uses what an attempt has left that was never committed."""

    cache = _AnyCache


OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
RACES = {"another driver": 0.06, "release": 0.06}
LOSSES = {"zookeeper lost": 0.04, "release": 0.05, "crash": 0.03}
PRUNES = {"prune": 0.2, "zookeeper lost": 0.02, "answer lost": 0.15}


@dataclass(frozen=True)
class ChangeHunt:
    """Where a mutant's hole shows, and as what."""

    mutant: type[ChangeMutations]
    shows: type[Exception]
    semantics: Semantics
    more: Mapping[str, float] | None = None
    first_seed: int = 0
    """Where the search begins: histories before it are known not to show it."""

    def __str__(self) -> str:
        return f"{self.mutant.__name__}-{self.semantics}"

    @property
    def faults(self) -> Mapping[str, float]:
        return {**CHANGE_FAULTS, **(self.more or {})}


CHANGE_HUNTS = [
    ChangeHunt(NobodyLooksAgain, WrongResultError, OPAQUE, RACES, 46),
    ChangeHunt(TheIdentityIsNotStored, WrongResultError, OPAQUE),
    ChangeHunt(JoinsWithoutItsFirstTxid, ProgressMismatchError, TRANSACTIONAL),
    ChangeHunt(DefaultsAreAddedTwice, WrongResultError, OPAQUE),
    ChangeHunt(DefaultsAreAddedTwice, WrongResultError, TRANSACTIONAL),
    ChangeHunt(TheValueBeforeHasNoDefault, WrongResultError, OPAQUE, None, 12),
    ChangeHunt(GrowsWhileCommittedInPart, WrongResultError, TRANSACTIONAL),
    ChangeHunt(TheLastRowIsPruned, ProgressMismatchError, OPAQUE, PRUNES),
    ChangeHunt(LeadersKeepNoIdentity, WrongResultError, OPAQUE, LOSSES),
    ChangeHunt(BoltsReadTheirOwnBatch, WrongResultError, OPAQUE),
    ChangeHunt(CachesOutliveAnAttempt, WrongResultError, OPAQUE),
]
