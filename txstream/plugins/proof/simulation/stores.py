"""Databases that fail: the real `StoreBackend` over a server in memory.

Invariants. A transaction's changes are applied in one piece, at its end or, when its commit is late, some
time later or never. Until then it keeps its locks. When a transaction on its way keeps a lock that another
needs, it is settled first. A client that sleeps inside its transaction may lose it, as servers end idle
sessions. So this is no kinder than a real database, and the protocol over it is the product's own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import pyarrow as pa

from txstream.core.errors import ServiceUnavailableError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.stores.backend import StoreBackend
from txstream.plugins.proof.stores.layout import Overlay, Spaces, Transaction
from txstream.plugins.proof.stores.merging import Key
from txstream.state import AnswerLostError, FenceLockedError, TableSpec, TopologyStates

if TYPE_CHECKING:
    from txstream.plugins.proof.simulation.world import World

_LATE = ("commit", "begin_commit", "write", "end_commit")


class Client(Protocol):
    """Anything that talks to a server."""

    def pass_point(self, where: str, whose: object = "") -> None: ...


class Held(Overlay):
    """A transaction with its locks. Its client may fall asleep in the middle of it. `is_sent`: its commit is
    on its way. `is_over`: it was applied, undone or ended."""

    is_sent = False
    is_over = False

    def __init__(self, store: Store, alone: frozenset[str], shared: frozenset[str]) -> None:
        super().__init__(store.server.spaces)
        self._store = store
        self.alone = alone
        self.shared = shared

    def put(self, space: str, key: Key, value: Any) -> None:
        self._store.pause(self)
        self._store.server.world.putting(self._store.server, space, key, value)
        super().put(space, key, value)

    def excludes(self, alone: frozenset[str], shared: frozenset[str]) -> bool:
        return bool(self.alone & (alone | shared) or self.shared & alone)


@dataclass
class Server:
    """One database server."""

    name: str
    world: World
    on_executors: bool = True
    spaces: Spaces = field(default_factory=dict)
    holding: list[Held] = field(default_factory=list)

    @property
    def url(self) -> str:
        """A URL with a scheme that txstream knows and asks what place the URL means. It opens nothing."""
        return f"memory://{self.name}"

    def open(self, client: Client) -> Store:
        return Store(self, client)

    @property
    def has_late(self) -> bool:
        return bool(self.holding)

    def deliver_late(self) -> None:
        for held in [held for held in self.holding if held.is_sent]:
            self._settle(held)

    def begin(self, transaction: Held) -> None:
        """Grant a transaction its locks. Raises FenceLockedError when a sleeping client keeps one of them."""
        alone, shared = transaction.alone, transaction.shared
        for other in [held for held in self.holding if held.excludes(alone, shared)]:
            if other.is_sent:
                self._settle(other)
            elif self.world.happens("lock kept"):
                raise FenceLockedError(f"{self.name}: somebody who sleeps holds {set(other.alone)}")
            else:
                self.world.note(f"{self.name} ends a transaction whose client sleeps")
                self.end(other)
        self.holding.append(transaction)

    def end(self, held: Held, *, apply: bool = False) -> None:
        if held.is_over:
            return
        held.is_over = True
        self.holding.remove(held)
        if apply:
            self.world.applied(held)
            self.world.changes += 1
            held.apply()

    def _settle(self, held: Held) -> None:
        """Decide whether a commit on its way arrives or never will."""
        self.world.steps_done += 1
        arrives = not self.world.happens("never arrives")
        self.world.note(f"{self.name}: what was late {'is there' if arrives else 'never arrives'}")
        self.end(held, apply=arrives)


def copied(spaces: Spaces) -> Spaces:
    """Return the same rows in new spaces."""
    return {space: dict(rows) for space, rows in spaces.items()}


def with_late_calls(states: TopologyStates, world: World) -> TopologyStates:
    """Return the same states, but a call that writes may run, as a whole, some time after it was given up."""
    return cast(TopologyStates, _Late(states, world))


class _Late:
    def __init__(self, states: TopologyStates, world: World) -> None:
        self._states = states
        self._world = world

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._states, name)
        return partial(self._call, name, found) if name in _LATE else found

    def _call(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        world, where = self._world, self._states.display_url
        if not world.happens("call late"):
            return call(*arguments, **options)
        world.note(f"a {name} to {where} is late")
        world.late_calls.append((f"a {name} to {where}", partial(call, *arguments, **options)))
        raise AnswerLostError(f"{where} did not answer")


class Store(StoreBackend):
    """One client's view of a server: each transaction may crash, be refused, be late or lose its answer."""

    label: ClassVar[str] = "simulated"
    removes_expired: ClassVar[bool] = True
    marks_rows: ClassVar[bool] = True
    hides_removed: ClassVar[bool] = True

    def __init__(self, server: Server, client: Client) -> None:
        super().__init__(server.url)
        self.server = server
        self.on_executors = server.on_executors  # type: ignore[misc]  # the kind's, elsewhere
        self._client = client
        self._world = server.world

    def check(self) -> None:
        self._reach()

    def prepare(self, spec: TableSpec, deltas: pa.Table) -> pa.Table:
        what = "prepared", spec.state.table, spec.semantics, spec.state.value_names
        return self._world.program.memo.of(what, [deltas], lambda: super(Store, self).prepare(spec, deltas))

    def of(
        self, topology: str, uuid: str, semantics: Semantics, tables: Sequence[TableSpec] = ()
    ) -> TopologyStates:
        states: TopologyStates = super().of(topology, uuid, semantics, tables)
        return with_late_calls(states, self._world)

    @contextlib.contextmanager
    def transaction(
        self,
        *,
        exclusive: Sequence[str] = (),
        shared: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> Iterator[Transaction]:
        server, client, world = self.server, self._client, self._world
        if not exclusive and not shared:
            client.pass_point("before a database is read", server.name)
            self._reach()
            yield Overlay(server.spaces)
            return
        client.pass_point("before a transaction", server.name)
        self._reach()
        held = Held(self, frozenset(exclusive), frozenset(shared))
        server.begin(held)
        try:
            yield held
            client.pass_point("before the end of a transaction", server.name)
            if held.is_over:
                raise ServiceUnavailableError(f"{server.name} has ended the transaction")
            if world.happens("commit late"):
                world.note(f"a transaction of {server.name} is late")
                held.is_sent = True
                raise AnswerLostError(f"{server.name} did not answer")
            server.end(held, apply=True)
        finally:
            if not held.is_sent:
                server.end(held)
        client.pass_point("after a transaction", server.name)
        if world.happens("answer lost"):
            world.note(f"the answer of {server.name} is lost")
            raise AnswerLostError(f"{server.name} did not answer")

    def _reach(self) -> None:
        if self._world.happens("database away"):
            raise ServiceUnavailableError(f"{self.server.name} is away")

    def pause(self, held: Held) -> None:
        """Pass a point in the middle of a transaction, where the client may fall asleep."""
        if self._world.happens("asleep in a transaction"):
            self._client.pass_point("inside a transaction", self.server.name)
            if held.is_over:
                raise ServiceUnavailableError(f"{self.server.name} has ended the transaction")
