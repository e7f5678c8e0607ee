"""Stores whose optional operations are wrong: pruning, late ledgers, migration, showing the state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from support.wrong_states.registry import breaks
from txstream.core.transaction import AttemptId, Txid
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.state import BatchRecord, TableSpec, TopologyLife
from txstream.state.reading import StateReading


@breaks("pruning-keeps-the-end")
class PrunesOthers(MemoryBackend):
    def prune(self, topology: str, **options: Any) -> int:
        found = super().prune(topology, **options)
        for row in self.topologies():
            super().prune(row.topology, committed_before=None, newest=0, rows=100)
        return found


@breaks("a-ledger-may-begin-late")
class AddsToTheLedger(MemoryBackend):
    """A row from an older leader is written nevertheless."""

    def begin_ledger(self, life: TopologyLife, attempt: AttemptId, last: BatchRecord) -> None:
        with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
            here.put(layout.ledger_space(life.topology), (last.txid,), layout.record_value(last))


@breaks("a-grown-table-is-migrated")
class PrevEverywhere(MemoryBackend):
    """Rows that their batch created look as if they had existed before it."""

    def migrate(self, life: TopologyLife, attempt: AttemptId, **options: Any) -> list[str]:
        done = super().migrate(life, attempt, **options)
        with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
            for spec in life.tables:
                rows = layout.rows_space(spec.state.table)
                for key, (values, prev, txid) in list(here.scan(rows)):
                    here.put(rows, key, (values, prev or values, txid))
        return done


@breaks("a-grown-table-is-migrated")
class MigratesUnfenced(MemoryBackend):
    def _hold(self, here: Any, life: TopologyLife, attempt: AttemptId) -> None:
        if attempt % 2**32 != 99:
            super()._hold(here, life, attempt)


@breaks("removed-rows-are-hidden")
class ForgetsTheSequenceToo(MemoryBackend):
    """An older record brings a removed row back."""

    def _forget_removed(self, here: Any, spec: TableSpec, txid: Txid) -> None:
        rules, rows = self._rules(spec), self._rows(here, spec)
        for key, stored in list(here.scan(rows)):
            if rules.forgotten(stored, txid) != stored:
                here.put(rows, key, None)


@breaks("state-can-be-shown")
class ShowsWhatIsOpen(MemoryBackend):
    @contextlib.contextmanager
    def read_state(self, topology: str) -> Iterator[StateReading]:
        with super().read_state(topology) as state:
            state._as_of = Txid(2**62)  # type: ignore[attr-defined]
            yield state


@breaks("state-can-be-shown")
class ShowsSeveralMoments(MemoryBackend):
    """Each question is answered by a transaction of its own."""

    @contextlib.contextmanager
    def read_state(self, topology: str) -> Iterator[StateReading]:
        with super().read_state(topology) as state:
            found = state
        found._here = _Always(self.transaction)  # type: ignore[attr-defined]
        yield found


class _Always:
    def __init__(self, transaction: Callable[[], Any]) -> None:
        self._transaction = transaction

    def __getattr__(self, name: str) -> Any:
        def ask(*arguments: Any) -> Any:
            with self._transaction() as here:
                return getattr(here, name)(*arguments)

        return ask


@breaks("due-rows-are-marked")
class MarksBeforeTheTime(MemoryBackend):
    """A row of that very time is not marked."""

    def _mark(self, here: Any, txid: Txid, spec: TableSpec, until: datetime) -> None:
        super()._mark(here, txid, spec, until - timedelta(microseconds=1))


@breaks("due-rows-are-marked")
class MarksWithoutTheValuesOfBefore(MemoryBackend):
    """A marked row forgets what it was before its batch."""

    def _mark(self, here: Any, txid: Txid, spec: TableSpec, until: datetime) -> None:
        rows = self._rows(here, spec)
        before = dict(here.scan(rows))
        super()._mark(here, txid, spec, until)
        for key, (values, _, _) in before.items():
            stored = here.get(rows, key)
            if stored[0] != values:
                here.put(rows, key, (stored[0], stored[1] and stored[0], stored[2]))


@breaks("changes-are-kept")
class CopiesTheWholeTable(MemoryBackend):
    """Rows that an earlier batch has changed are copied once more."""

    def _keep_changes(self, here: Any, txid: Txid, spec: TableSpec) -> None:
        assert spec.state.changes is not None
        kept = layout.rows_space(spec.state.changes.table)
        for key, (values, _, _) in list(here.scan(self._rows(here, spec))):
            shown = values[: len(spec.state.shown_names)]
            here.put(kept, (txid, *key), ((*shown, False), None, txid))


@breaks("changes-are-kept")
class CopiesNoRemovals(MemoryBackend):
    """Of a row that was removed, nothing is copied."""

    def _keep_changes(self, here: Any, txid: Txid, spec: TableSpec) -> None:
        super()._keep_changes(here, txid, spec)
        assert spec.state.changes is not None
        kept = layout.rows_space(spec.state.changes.table)
        for key, (values, _, _) in list(here.scan(kept)):
            if values[-1]:
                here.put(kept, key, None)


@breaks("versions-are-kept")
class KeepsWhatIsLeft(MemoryBackend):
    """What the batch has left of a row is taken for what it was before."""

    def _keep_changes(self, here: Any, txid: Txid, spec: TableSpec) -> None:
        super()._keep_changes(here, txid, spec)
        assert spec.state.changes is not None
        kept = layout.rows_space(spec.state.changes.table)
        if spec.state.keeps_versions:
            for key, (values, _, written) in list(here.scan(self._rows(here, spec))):
                if written == txid:
                    here.put(kept, (*key, txid), ((*values[:1], False), None, txid))


@breaks("versions-are-kept")
class KeepsNoVersionOfWhatIsCreated(MemoryBackend):
    """That there was no row is not kept."""

    def _keep_changes(self, here: Any, txid: Txid, spec: TableSpec) -> None:
        super()._keep_changes(here, txid, spec)
        assert spec.state.changes is not None
        kept = layout.rows_space(spec.state.changes.table)
        for key, (values, _, _) in list(here.scan(kept)):
            if spec.state.keeps_versions and values[-1]:
                here.put(kept, key, None)


@breaks("expired-rows-are-removed")
class RemovesAtTheHorizon(MemoryBackend):
    """A row of the horizon's very second is taken for expired."""

    def _remove_expired(self, here: Any, spec: TableSpec, horizon: int) -> None:
        super()._remove_expired(here, spec, horizon + 1)


@breaks("expired-rows-are-removed")
class KeepsBeforeTheHorizon(MemoryBackend):
    """A row of the second before the horizon is kept."""

    def _remove_expired(self, here: Any, spec: TableSpec, horizon: int) -> None:
        super()._remove_expired(here, spec, horizon - 1)
