"""The guards of a topology that changes, taken away one by one. The simulation must find each hole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from simulation.changes import CHANGE_FAULTS
from simulation.histories import Mutations
from simulation.releases import DEFAULT
from txstream.api.errors import ProgressMismatchError
from txstream.engine.states.state_cache import StateCache
from txstream.semantics import Semantics
from txstream.simulation.world import WrongResultError
from txstream.state import TableSpec, TopologyLife
from txstream.state.store import layout
from txstream.state.store.backend import StoreBackend
from txstream.state.store.layout import Transaction
from txstream.transaction import AttemptId, TransactionAttempt, Txid

_STORE = "state.store.backend.StoreBackend"


class NobodyLooksAgain(
    Mutations, replaces={"engine.start.takeover.confirm": lambda _topology, claim, _store: claim}
):
    """A start does not see what another leader has let join since this start began."""


def _nothing(*_arguments: Any, **_options: Any) -> None:
    return


class TheIdentityIsNotStored(
    Mutations, replaces={"zookeeper.progress.TreeProgress.replace_identity": _nothing}
):
    """A state counts, but nothing tells the former code that it may not go on without it."""


class JoinsWithoutItsFirstTxid(Mutations, replaces={f"{_STORE}.begin_ledger": _nothing}):
    """A database that joins has no ledger, so the next leader cannot tell it from one that lost all."""


Change = Callable[[Transaction, str, bool], None]
_migrate = StoreBackend.migrate


def _migrates_and(change: Change) -> Mapping[str, Any]:
    """After a migration, change the tables once more; `change` is told whether the migration did anything."""

    def migrate(
        store: StoreBackend, life: TopologyLife, attempt: AttemptId, *, unfinished: Txid | None = None
    ) -> list[str]:
        done = _migrate(store, life, attempt, unfinished=unfinished)
        with store.transaction(exclusive=["definitions", layout.lock_of(life.topology)]) as here:
            store._hold(here, life, attempt)
            for spec in life.tables:
                if len(spec.state.value_names) == 2:
                    change(here, layout.rows_space(spec.state.table), bool(done))
        return done

    return {f"{_STORE}.migrate": migrate}


def _add_again(here: Transaction, rows: str, done: bool) -> None:
    for key, ((n, total), prev, txid) in list(here.scan(rows)):
        if not done:
            here.put(rows, key, ((n, total + DEFAULT), prev, txid))


def _forget_prev(here: Transaction, rows: str, done: bool) -> None:
    for key, (values, prev, txid) in list(here.scan(rows)):
        if done and prev is not None:
            here.put(rows, key, (values, (prev[0], 0), txid))


class DefaultsAreAddedTwice(Mutations, replaces=_migrates_and(_add_again)):
    """A start that finds the column present adds its default again."""


class TheValueBeforeHasNoDefault(Mutations, replaces=_migrates_and(_forget_prev)):
    """A value that is undone after a column was added comes back without the default."""


def _grow_any_time(store: StoreBackend, life: TopologyLife, attempt: AttemptId, **_: Any) -> list[str]:
    return _migrate(store, life, attempt)


class GrowsWhileCommittedInPart(Mutations, replaces={f"{_STORE}.migrate": _grow_any_time}):
    """Rows that already have a transactional txid are not written again, and lack the column for ever."""


def _prune_all(store: StoreBackend, topology: str, **_options: Any) -> int:
    with store.transaction(exclusive=[layout.lock_of(topology)]) as here:
        ledger = layout.ledger_space(topology)
        kept = sorted(here.scan(ledger), key=lambda item: item[0])
        last = max((key[0] for key, row in kept if row["status"] == "committed"), default=0)
        going = [key for key, _ in kept if key[0] <= last]
        for key in going:
            here.put(ledger, key, None)
        return len(going)


class TheLastRowIsPruned(Mutations, replaces={f"{_STORE}.prune": _prune_all}):
    """A new leader finds no batch where ZooKeeper has one."""


class LeadersKeepNoIdentity(Mutations, replaces={f"{_STORE}.keep_identity": _nothing}):
    """Databases know the states of the first run only; a rebuild of ZooKeeper forgets the others."""


_read = StoreBackend.read


def _read_own(store: StoreBackend, spec: TableSpec, keys: pa.Table, *, before: Txid) -> pa.Table:
    return _read(store, spec, keys, before=Txid(before + 1))


class BoltsReadTheirOwnBatch(Mutations, replaces={f"{_STORE}.read": _read_own}):
    """What an earlier attempt of this batch has written is read as if it had been there before the batch."""


class _AnyCache(StateCache):
    def begin(self, committed: TransactionAttempt | None) -> None:
        self._left_by = None


class CachesOutliveAnAttempt(Mutations, replaces={"engine.batch.state_tasks.StateCache": _AnyCache}):
    """A task uses what an attempt left that was never committed."""


OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
RACES = {"another driver": 0.06, "release": 0.06, "freeze at start": 0.03, "database away": 0.0}
LOSSES = {"zookeeper lost": 0.04, "release": 0.05, "crash": 0.03}
PRUNES = {"prune": 0.2, "zookeeper lost": 0.02, "answer lost": 0.15}


@dataclass(frozen=True)
class ChangeHunt:
    """How a mutant's hole shows: as a wrong result, or as the refusal of another guard."""

    mutant: type[Mutations]
    shows: type[Exception]
    semantics: Semantics
    more: Mapping[str, float] | None = None

    def __str__(self) -> str:
        return f"{self.mutant.__name__}-{self.semantics}"

    @property
    def faults(self) -> Mapping[str, float]:
        return {**CHANGE_FAULTS, **(self.more or {})}


CHANGE_HUNTS = [
    ChangeHunt(NobodyLooksAgain, WrongResultError, OPAQUE, RACES),
    ChangeHunt(TheIdentityIsNotStored, WrongResultError, OPAQUE),
    ChangeHunt(JoinsWithoutItsFirstTxid, ProgressMismatchError, TRANSACTIONAL),
    ChangeHunt(DefaultsAreAddedTwice, WrongResultError, OPAQUE),
    ChangeHunt(DefaultsAreAddedTwice, WrongResultError, TRANSACTIONAL),
    ChangeHunt(TheValueBeforeHasNoDefault, WrongResultError, OPAQUE),
    ChangeHunt(GrowsWhileCommittedInPart, WrongResultError, TRANSACTIONAL),
    ChangeHunt(TheLastRowIsPruned, ProgressMismatchError, OPAQUE, PRUNES),
    ChangeHunt(LeadersKeepNoIdentity, WrongResultError, OPAQUE, LOSSES),
    ChangeHunt(BoltsReadTheirOwnBatch, WrongResultError, OPAQUE),
    ChangeHunt(CachesOutliveAnAttempt, WrongResultError, OPAQUE),
]
