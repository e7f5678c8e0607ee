"""Who acts in a topology that changes: drivers of its releases, their tasks, and operators.

Everything that a driver does is the product's own: it takes the topology up, commits, prunes; tasks write
shares, or read and write the states of bolts; operators rebuild what ZooKeeper has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from simulation.driver import Actor, CrashError, Driver, Store as Progress, UnexplainedError
from simulation.executors import Executors, Task
from simulation.releases import FIRST, Release
from simulation.stores import Store
from simulation.world import Mutations, World, WrongResultError
from txstream.api.errors import (
    CorruptStateError,
    FencedError,
    IdentityMismatchError,
    ProgressMismatchError,
    ServiceUnavailableError,
    StaleAttemptError,
    StateTableError,
)
from txstream.api.topology import Topology
from txstream.engine.commit.committer import Committer, StateTarget
from txstream.engine.commit.databases import state_targets
from txstream.engine.commit.map_state import Ownership, TaskMapState
from txstream.engine.commit.shares import StateWrite, cut
from txstream.engine.commit.state_cache import StateCache
from txstream.engine.driver.retention import LedgerPruner
from txstream.engine.start.takeover import Takeover, take_up
from txstream.inspect.databases import databases_of
from txstream.inspect.rebuilding import recover_in
from txstream.metas import MetaCodec
from txstream.retention import Keep
from txstream.state import FenceLockedError, TableSpec
from txstream.transaction import FIRST_TXID, TransactionAttempt, Txid
from txstream.zookeeper import ProgressStore

if TYPE_CHECKING:
    from simulation.changes import ChangingWorld

_TASKS = 2


class ChangeMutations(Mutations):
    """The real rules. A mutant overrides one."""

    store: type[Store] = Store
    cache: type[StateCache] = StateCache

    def take_up(
        self,
        topology: Topology,
        store: ProgressStore,
        targets: Sequence[StateTarget],
        codec: MetaCodec[Any],
        *,
        locked: Callable[[FenceLockedError], None],
    ) -> Takeover:
        return take_up(topology, store, targets, codec, locked=locked)

    def write(self, world: World, task: Task, *, alone: bool) -> None:
        task.database.write(task.attempt, task.deltas)

    def read_before(self, attempt: TransactionAttempt) -> Txid:
        """The batch before which a bolt's state is read."""
        return attempt.txid


@dataclass
class _Machine:
    """The process of a task."""

    world: World

    def pass_point(self, where: str) -> None:
        if self.world.happens("freeze"):
            self.world.note(f"a task falls asleep {where}")
            self.world.go_on()


@dataclass
class _Share:
    """A task that writes deltas of the driver's, as `Task.database`."""

    name: str
    store: Store
    write_of: StateWrite

    def write(self, attempt: TransactionAttempt, deltas: Any) -> None:
        write = self.write_of
        tables = [(table.spec, table.deltas) for table in write.tables]
        self.store.of(write.life.topology, write.life.uuid, write.life.semantics).write(attempt, tables)


@dataclass
class _BoltTask:
    """A task of a bolt that reads and writes a state of its own, as `Task.database`."""

    name: str
    store: Store
    spec: TableSpec
    driver: ChangingDriver
    ownership: Ownership
    committed: TransactionAttempt | None

    def write(self, attempt: TransactionAttempt, deltas: Mapping[str, tuple[int, int]]) -> None:
        driver, spec = self.driver, self.spec
        mutations = driver.world.mutations
        place = spec.state.table, self.ownership.task, driver.world.random.randrange(2)
        cache = driver.caches.pop(place, None) if spec.state.cache_rows else None
        if spec.state.cache_rows:
            cache = mutations.cache(spec.state.cache_rows) if cache is None else cache
            cache.begin(self.committed)
        before = mutations.read_before(attempt)
        state = TaskMapState(
            spec.state.table,
            spec.state,
            lambda keys: self.store.read(spec, keys, before=before),
            ownership=self.ownership,
            cache=cache,
        )
        for key, (n, total) in deltas.items():
            state.update(key, _plus(n, total) if len(spec.state.value_names) > 1 else _plus_one(n))
        writes = [(spec, state.deltas())]
        self.store.of("t", driver.uuid, driver.world.semantics).write(attempt, writes)
        if cache is not None:
            cache.leave(attempt, state.cacheable())
            driver.caches[place] = cache


def _plus(n: int, total: int) -> Callable[[Any], Any]:
    return lambda old: (n, total) if old is None else (old[0] + n, old[1] + total)


def _plus_one(n: int) -> Callable[[Any], Any]:
    return lambda old: n if old is None else old + n


class StoreExecutors(Executors):
    """Tasks over real stores."""

    def write(self, driver: Driver, attempt: TransactionAttempt, writes: Sequence[StateWrite]) -> list[int]:
        tasks: list[Task] = []
        world: ChangingWorld = self._world  # type: ignore[assignment]  # its own
        for write in writes:
            store = world.store_at(write.place.url, _Machine(world))
            slots = {table.component: world.random.randint(1, 3) for table in write.tables}
            for share in cut(write, slots):
                shown = {table.component: table.deltas.num_rows for table in share.tables}
                tasks.append(self.add(Task(attempt, _Share(store.server.name, store, share), shown)))  # type: ignore[arg-type]
        self.wait_for(driver, attempt, tasks)
        return [write.rows for write in writes]

    def add(self, task: Task) -> Task:
        self._tasks.append(task)
        return task


class ChangingDriver(Driver):
    """A driver of one release."""

    world: ChangingWorld

    def __init__(self, world: ChangingWorld, number: int, release: Release) -> None:
        self.release = release
        self.losses = world.losses
        self.uuid = ""
        self.caches: dict[Any, StateCache] = {}
        super().__init__(world, number)

    def __str__(self) -> str:
        return f"driver {self.number} of release {self.release.number}"

    def _open(self) -> None:
        world = self.world
        self.topology = self.release.topology(world.semantics, world.states, world.commit)
        self._targets = state_targets(
            self.topology, f"memory://{FIRST}", lambda url: world.store_at(url, self)
        )

    def pass_point(self, where: str) -> None:
        super().pass_point(where)
        if not self.is_started and self.losses != self.world.losses:
            # Its session, by which it was elected, is gone too.
            raise CrashError

    def step(self) -> None:
        try:
            super().step()
        except (CorruptStateError, ProgressMismatchError, UnexplainedError) as error:
            if not self._may_be_told(error):
                raise
            self._end(f"ends: {error}")

    def _may_be_told(self, error: Exception) -> bool:
        """Does what has happened explain that it says so? A first run that is refused takes all back."""
        world = self.world
        if self.losses != world.losses or world.is_lost or world.oracle.current == FIRST_TXID:
            return True
        return "is not in ZooKeeper" in str(error) and self._began_at != world.steps_done

    def _start(self) -> None:
        world = self.world
        world.note(f"{self} starts")
        self._began_at = steps = world.steps_done
        before = world.what_counts()
        try:
            taken = world.mutations.take_up(
                self.topology, self.store, self._targets, world.codec, locked=self._locked
            )
        except (IdentityMismatchError, StateTableError) as error:
            self._end(f"is refused: {error}")
            # A first run whose database went away before it could be taken back has named its states.
            named = set(world.oracle.since) - {declared.table for declared in self.release.tables}
            has_all = not named and self.release.covers(world.oracle.declared)
            if has_all and "committed in part" not in str(error):
                raise WrongResultError(
                    f"{self} is refused, though it has all that the last one had"
                ) from error
            if steps == world.steps_done and before != world.what_counts():
                raise WrongResultError(f"{self} is refused and has changed something") from error
        except ServiceUnavailableError as error:
            self._end(f"cannot start: {error}")
        else:
            self._take_over(taken)

    def _take_over(self, taken: Takeover) -> None:
        world, progress = self.world, taken.resume.progress
        world.note(
            f"{self} has epoch {taken.epoch}, current {progress.current}, replays {set(taken.resume.replays)}"
        )
        leads = self.store.read_epoch() == taken.epoch
        if leads and not self.release.covers(world.oracle.in_effect()):
            raise WrongResultError(f"{self} leads, though it lacks a state: {world.oracle.in_effect()}")
        self.uuid = taken.identity.uuid
        self.coordinator = taken.coordinator
        self._committer = Committer(self.topology, self.uuid, self._targets, wait_for=self._wait_for)
        self._pruner = LedgerPruner(
            "t", [target.database for target in self._targets], Keep(None, 1), pause_seconds=0.0
        )
        self.is_started = True
        self._take(self.coordinator.sync())

    def _locked(self, error: FenceLockedError) -> None:
        self.pass_point("waiting for a lock")
        if self.world.random.random() < 0.3:
            raise error

    def _step(self) -> None:
        if self.world.happens("prune"):
            self.world.note(f"{self} prunes")
            self._pruner.prune()
        else:
            super()._step()

    def _deltas_of(self, held: Any) -> dict[str, Any]:
        merged: dict[str, Any] = {
            declared.table: declared.deltas(held) for declared in self.release.tables if not declared.by_bolt
        }
        self._held = held
        return merged

    def _start_bolts(
        self, attempt: TransactionAttempt, begun: Collection[int], merged: Mapping[str, pa.Table]
    ) -> list[Task]:
        world, tasks = self.world, []
        for at in sorted(begun):
            target = self._targets[at]
            for spec in target.tables:
                if spec.state.table not in target.written_by_bolts:
                    continue
                store = world.store_at(target.database.url_for_people, _Machine(world))
                for task in range(_TASKS):
                    owns = Ownership(task, _TASKS, ("word",))
                    mine = {key: held for key, held in self._held.items() if owns.owner([key]) == task}
                    if mine:
                        work = _BoltTask(store.server.name, store, spec, self, owns, self.committed)
                        tasks.append(world.executors.add(Task(attempt, work, mine)))  # type: ignore[arg-type]
        return tasks


class Operator(Actor):
    """Somebody who types `txstream recover ID --from-ledger`."""

    world: ChangingWorld

    def __str__(self) -> str:
        return f"operator {self.number}"

    def step(self) -> None:
        world = self.world
        world.note(f"{self} recovers from the ledger")
        losses = world.losses
        try:
            found = recover_in("t", lambda codec: self._store_of(codec), self._databases())
        except CrashError:
            self._end("crashes")
        except ServiceUnavailableError as error:
            self._end(f"cannot recover: {error}")
        except (FencedError, StaleAttemptError, CorruptStateError, ProgressMismatchError) as error:
            # Somebody else was faster, or it was lost once more meanwhile.
            if world.happened_since(losses, self.started_at):
                self._end(f"gives up: {error}")
                return
            raise
        else:
            world.is_lost = world.is_lost and losses != world.losses
            self._end(f"has recovered: txid {found.current_txid} is next")

    def _store_of(self, codec: MetaCodec[Any]) -> ProgressStore:
        return Progress(self.world.tree, "t", codec, hook=self._hook)

    def _databases(self) -> list[Store]:
        """The first one, and what fences name; sometimes all that there are."""
        world = self.world
        self.started_at = world.steps_done
        every = world.random.random() < 0.3
        pending = [server.url for server in world.servers] if every else [f"memory://{FIRST}"]
        opened: dict[str, Store] = {}
        while pending:
            url = pending.pop(0)
            if url in opened:
                continue
            store = world.store_at(url, self)
            fence = store.read_fence("t")
            if fence is not None:
                opened[url] = store
                pending += databases_of(fence)
        return list(opened.values())
