"""Stores that let the wrong topology use a table, a fence or an id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support.wrong_states.registry import breaks
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptId
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Transaction
from txstream.plugins.proof.stores.memory import MemoryBackend, _Store
from txstream.state import BatchRecord, FenceRow, TableSpec, TopologyLife
from txstream.state.declarations import Owner


@breaks("nothing-known-is-no-error")
class Missing(MemoryBackend):
    def batches(
        self, topology: str, *, limit: int | None = None, before: int | None = None
    ) -> list[BatchRecord]:
        found = super().batches(topology, limit=limit, before=before)
        if not found and self.read_fence(topology) is None:
            raise KeyError(topology)
        return found


@breaks("openings-are-one-store")
class Private(MemoryBackend):
    """Keeps everything in the object, not by its URL."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._store = _Store()


@breaks("openings-are-one-store")
class ClosedForEver(MemoryBackend):
    closed = False

    def close(self) -> None:
        self.closed = True

    def transaction(self, **options: Any) -> Any:
        if self.closed:
            raise ValueError("the connection is closed")
        return super().transaction(**options)


@breaks("url-is-shown-without-password")
class Nameless(MemoryBackend):
    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.display_url = ""


@breaks("join-creates")
class FencelessBaseline(MemoryBackend):
    def join(self, life: TopologyLife, **options: Any) -> None:
        super().join(life, **options)
        if life.semantics is Semantics.NON_TRANSACTIONAL:
            with self.transaction(exclusive=["definitions"]) as here:
                here.put("fence", (life.topology,), None)


@breaks("join-creates")
class NewestFirst(MemoryBackend):
    def topologies(self) -> list[FenceRow]:
        return super().topologies()[::-1]


@breaks("join-again-keeps")
class FenceAnew(MemoryBackend):
    def join(self, life: TopologyLife, **options: Any) -> None:
        super().join(life, **options)
        with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
            row = self._own_fence(here, life)
            layout.put_fence(here, replace(row, attempt=AttemptId(0)))


@breaks("later-run-finds-what-was-lost")
class AlwaysFirst(MemoryBackend):
    def join(self, life: TopologyLife, *, first_run: bool, **options: Any) -> None:
        super().join(life, first_run=True, **options)


@breaks("later-run-finds-what-was-lost")
class TablesAnew(MemoryBackend):
    def _join_table(self, *arguments: Any, first_run: bool) -> None:
        super()._join_table(*arguments, first_run=True)


@breaks("one-id-is-one-life")
class AnyLifeJoins(MemoryBackend):
    def join(self, life: TopologyLife, **options: Any) -> None:
        found = self.read_fence(life.topology)
        super().join(life if found is None else replace(life, uuid=found.uuid), **options)


@breaks("tables-have-one-owner", "join-is-all-or-nothing")
class SharedTables(MemoryBackend):
    def _join_table(self, here: Transaction, life: TopologyLife, spec: TableSpec, **options: Any) -> None:
        owner = layout.read_owner(here, spec.state.table)
        if owner is not None:
            layout.put_owner(here, replace(owner, topology=life.topology, uuid=life.uuid))
        super()._join_table(here, life, spec, **options)


@breaks("tables-have-one-owner")
class Inherited(MemoryBackend):
    """A table belongs to its topology's id, whichever life of it."""

    def _join_table(self, here: Transaction, life: TopologyLife, spec: TableSpec, **options: Any) -> None:
        owner = layout.read_owner(here, spec.state.table)
        if owner is not None and owner.topology == life.topology:
            life = replace(life, uuid=owner.uuid)
        super()._join_table(here, life, spec, **options)


@breaks("join-is-all-or-nothing")
class OneTableAfterAnother(MemoryBackend):
    def join(self, life: TopologyLife, **options: Any) -> None:
        super().join(replace(life, tables=()), **options)
        for spec in life.tables:
            super().join(replace(life, tables=(spec,)), **options)


@breaks("other-declaration-is-refused")
class AnyDeclaration(MemoryBackend):
    def _join_table(self, here: Transaction, life: TopologyLife, spec: TableSpec, **options: Any) -> None:
        owner = layout.read_owner(here, spec.state.table)
        if owner is not None:
            declared = spec.state.declaration(spec.semantics)
            layout.put_owner(here, Owner(owner.table, owner.topology, owner.uuid, declared))
        super()._join_table(here, life, spec, **options)


@breaks("identity-is-kept")
class IdentityOfTheLastJoin(MemoryBackend):
    def join(self, life: TopologyLife, *, identity: Any = None, **options: Any) -> None:
        super().join(life, identity=identity, **options)
        if identity is None:
            with self.transaction(exclusive=[layout.lock_of(life.topology)]) as here:
                layout.put_fence(here, replace(self._own_fence(here, life), identity=None))


@breaks("delete-forgets-one-topology")
class DropsTheState(MemoryBackend):
    def delete(self, topology: str, *, drop_state: bool, **options: Any) -> list[str]:
        return super().delete(topology, drop_state=True, **options)


@breaks("delete-forgets-one-topology")
class DeletesAll(MemoryBackend):
    def delete(self, topology: str, *, drop_state: bool, **options: Any) -> list[str]:
        for row in self.topologies():
            if "uuid" not in options and row.topology != topology:
                super().delete(row.topology, drop_state=False)
        return super().delete(topology, drop_state=drop_state, **options)


@breaks("delete-forgets-one-topology")
class KeepsTheLedger(MemoryBackend):
    def delete(self, topology: str, *, drop_state: bool, **options: Any) -> list[str]:
        rows = self.batches(topology)
        dropped = super().delete(topology, drop_state=drop_state, **options)
        with self.transaction(exclusive=[layout.lock_of(topology)]) as here:
            for row in rows:
                here.put(layout.ledger_space(topology), (row.txid,), layout.record_value(row))
        return dropped


@breaks("delete-of-one-life")
class DeletesEveryLife(MemoryBackend):
    def delete(self, topology: str, *, drop_state: bool, **options: Any) -> list[str]:
        options.pop("uuid", None)
        return super().delete(topology, drop_state=drop_state, **options)


@breaks("delete-of-one-life")
class DeletesWhatAnotherDriverLeads(MemoryBackend):
    def delete(self, topology: str, *, drop_state: bool, **options: Any) -> list[str]:
        options.pop("attempt", None)
        return super().delete(topology, drop_state=drop_state, **options)
