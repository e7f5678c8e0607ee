"""The world of a simulation: a log, databases, ZooKeeper, drivers, and a seed that decides what happens.

Everything random comes from the seed, so a seed is a whole history and can be replayed. A history has two
parts: one with faults, then one without, in which a last driver must finish. After it every table must hold
exactly what the oracle counts, and drivers that wake up later must change nothing.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar
from unittest.mock import patch

from support.inmemory import Range

from simulation import sqlite
from simulation.driver import Actor, Driver
from simulation.log import Log
from simulation.releases import FIRST, SECOND, Release, still
from simulation.stores import Server
from simulation.tasks import Task, Tasks
from txstream.api.errors import StaleAttemptError
from txstream.api.topology import CommitChoice
from txstream.engine.start.identity import claim_identity
from txstream.metas import BatchMetas, MetaCodec
from txstream.semantics import Semantics
from txstream.state import StateBackend
from txstream.state.records import COMMITTED
from txstream.state.store.layout import Overlay
from txstream.zookeeper import MemoryTree
from txstream.zookeeper.tree import Node

AnyWorld = TypeVar("AnyWorld", bound="World")

# How likely each fault is, each time that it could happen.
FAULTS: Mapping[str, float] = {
    "crash": 0.007,
    "freeze": 0.01,
    "freeze at start": 0.01,
    "answer lost": 0.02,
    "write late": 0.03,
    "commit late": 0.03,
    "call late": 0.03,
    "lock kept": 0.3,
    "asleep in a transaction": 0.01,
    "database away": 0.015,
    "source away": 0.02,
    "deadline": 0.01,
    "meanwhile": 0.05,
    "batch fails": 0.1,
    "stale message": 0.05,
    "another driver": 0.01,
    "tasks given up": 0.05,
    "task again": 0.3,
    "late arrives": 0.02,
}

COMMITS: tuple[CommitChoice, ...] = ("driver", "auto", "executors")

_KEYS = "abcd"
_MAX_DEPTH = 2
_MAX_LAST_STEPS = 3000
_ON_SQLITE = 0.05


class Tree(MemoryTree):
    """ZooKeeper, which somebody may restore from an old copy."""

    def copy(self) -> dict[str, Node]:
        return dict(self._nodes)

    def restore(self, copy: Mapping[str, Node]) -> None:
        self._nodes = dict(copy)


class Mutations:
    """The real rules. A mutant has something else in their place, by its dotted name below `txstream`."""

    replaces: Mapping[str, Any] = MappingProxyType({})
    tree: type[Tree] = Tree

    def __init_subclass__(cls, replaces: Mapping[str, Any] = MappingProxyType({})) -> None:
        cls.replaces = {**cls.replaces, **replaces}

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name, other in self.replaces.items():
                stack.enter_context(patch(f"txstream.{name}", other))
            yield

    def are_done(self, tasks: Sequence[Task]) -> bool:
        return all(task.is_done for task in tasks)


class WrongResultError(AssertionError):
    """A table is not what the log says."""


@dataclass
class World:
    """One history. `run` raises AssertionError, or the error that a driver should not have met."""

    seed: int
    semantics: Semantics
    databases_count: int = 1
    mutations: Mutations = field(default_factory=Mutations)
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)
    steps: int = 120
    state: Semantics | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.codec: MetaCodec[Any] = MetaCodec(Range)
        self.states = self.state or self.semantics
        self.pending = self.random.randint(1, 3)
        self.log = Log()
        self.tree = self.mutations.tree()
        self.tasks = Tasks(self)
        self.drivers: list[Driver] = []
        self.history: list[tuple[int, str, BatchMetas[Range] | None]] = []
        self.late_calls: list[tuple[str, Callable[[], Any]]] = []
        self.steps_done = 0
        self._depth = self._awake = 0
        self.has_faults = False
        self._begin()
        first = self._driver_of(self.release, 0)
        for server in self.servers:
            server.open(first).ensure_framework_tables()
        self._prepare(first)
        for _ in range(self.random.randint(1, 3)):
            self.grow()
        self.has_faults = True

    def _begin(self) -> None:
        """What runs here, and where."""
        chance = self.random.random
        self.commit: CommitChoice = self.random.choice(COMMITS)
        if self.semantics is Semantics.NON_TRANSACTIONAL:
            by_bolt = [False, False]
        else:
            by_bolt = [self.commit != "driver" and chance() < 0.25 for _ in range(2)]
        self.release = still(self.databases_count, by_bolt)
        kind = sqlite.Server if chance() < _ON_SQLITE else Server
        self.note(f"states are in {kind.__module__}")
        names = (FIRST, SECOND)[: self.databases_count]
        self.servers: list[Any] = [kind(name, self) for name in names]
        for server, writes in zip(self.servers, by_bolt, strict=False):
            server.on_executors = self.commit == "executors" or writes or chance() < 0.85

    def _prepare(self, first: Driver) -> None:
        """The topology is known, and nobody has led it yet."""
        claim_identity(first.topology, first.store, first.targets, locked=first.locked)

    def applied(self, changes: Overlay) -> None:
        """A server in memory is about to apply a transaction."""

    def store_at(self, url: str, client: Any) -> StateBackend:
        found: StateBackend = next(s for s in self.servers if s.url == url).open(client)
        return found

    def note(self, what: str, metas: BatchMetas[Range] | None = None) -> None:
        self.history.append((self._depth, what, metas))

    def tell(self, last: int = 120) -> str:
        """The history's end, indented by what happened while somebody slept."""
        lines = []
        for depth, what, metas in self.history[-last:]:
            shown = "" if metas is None else f": {self.codec.encode(metas)}"
            lines.append(f"{'    ' * depth}{what}{shown}")
        return "\n".join(lines)

    def happens(self, fault: str) -> bool:
        return self.has_faults and self.random.random() < self.faults[fault]

    # --- with faults ----------------------------------------------------------------------------------

    def run(self, *, alone: bool = False) -> None:
        """The whole history; `alone` with one driver that nobody ever succeeds."""
        for _ in range(self.steps):
            self._step()
        self._end_faults()
        self._finish(self.drivers[0] if alone else self.new_driver())

    def freeze(self, actor: Actor, where: str) -> None:
        """The actor sleeps in the middle of what it does; the world goes on; then it wakes up."""
        if not self._can_sleep:
            return
        self.note(f"{actor} falls asleep: {where}")
        actor.is_frozen = True
        self.go_on()
        actor.is_frozen = False
        self.note(f"{actor} wakes up: {where}")

    def go_on(self) -> None:
        """Some steps of everybody else, in the middle of somebody's."""
        if not self._can_sleep:
            return
        self._depth += 1
        for _ in range(self.random.randint(5, 60)):
            self._step()
        self._depth -= 1

    @property
    def _can_sleep(self) -> bool:
        return self._depth < _MAX_DEPTH and not self._awake

    @contextlib.contextmanager
    def nobody_sleeps(self) -> Iterator[None]:
        """While somebody holds what nobody can take away."""
        self._awake += 1
        try:
            yield
        finally:
            self._awake -= 1

    def _step(self) -> None:
        self.steps_done += 1
        chance = self.random.random()
        if chance < 0.03:
            self.grow()
        elif chance < 0.08:
            self._lose_or_find()
        elif chance < 0.12:
            self.deliver_late()
        elif chance < 0.17:
            self.tasks.run_one()
        else:
            self._step_a_driver()

    def _step_a_driver(self) -> None:
        awake = [driver for driver in self.drivers if driver.is_alive and not driver.is_frozen]
        leads = self.drivers[-1] in awake if self.drivers else False
        if not awake or self.happens("another driver") or (not leads and self.random.random() < 0.5):
            awake = [self.new_driver()]
        # Mostly the leader; now and then one that does not know yet that it no longer leads.
        chosen = self.random.choice(awake) if self.random.random() < 0.15 else awake[-1]
        chosen.step()

    def new_driver(self) -> Driver:
        self.drivers.append(driver := self._driver_of(self.release, len(self.drivers) + 1))
        return driver

    def _driver_of(self, release: Release, number: int) -> Driver:
        return Driver(self, number, release)

    def grow(self) -> None:
        """More records, perhaps in a new partition."""
        names = [*self.log.partitions, f"p{len(self.log.partitions) + 1}"][:3]
        keys = self.log.partitions.setdefault(self.random.choice(names), [])
        keys.extend(self.random.choice(_KEYS) for _ in range(self.random.randint(1, 6)))

    def _lose_or_find(self) -> None:
        partition = self.random.choice(list(self.log.partitions))
        self.log.lost ^= {partition}
        self.note(f"{partition} is {'lost' if partition in self.log.lost else 'found'}")

    def deliver_late(self) -> None:
        """What was sent long ago arrives, and is applied as far as fences and versions let it."""
        self.tree.deliver_late()
        for server in self.servers:
            server.deliver_late()
        late, self.late_calls = self.late_calls, []
        for what, call in late:
            had_faults, self.has_faults = self.has_faults, False
            try:
                call()
            except StaleAttemptError:
                self.note(f"{what} comes too late")
            else:
                self.note(f"{what} is there at last")
            finally:
                self.has_faults = had_faults

    # --- without faults -------------------------------------------------------------------------------

    def _end_faults(self) -> None:
        self.note("no more faults")
        self.has_faults = False
        self.log.lost.clear()

    def _finish(self, last: Driver) -> None:
        for _ in range(_MAX_LAST_STEPS):
            last.step()
            assert last.is_alive, f"{last} ended, though nothing can go wrong any more"
            if self._is_done(last):
                break
        else:
            raise AssertionError(f"{last} does not finish")
        self._check("at the end")
        self.deliver_late()
        self.tasks.run_all()
        for driver in self.drivers[:-1]:
            for _ in range(30):
                if driver.is_alive:
                    driver.step()
        self._check("after the drivers of the past woke up")

    def _is_done(self, driver: Driver) -> bool:
        if driver.loop is None:
            return False
        coordinator = driver.loop.coordinator
        return coordinator.is_idle and self.log.reached(coordinator.committed_metas().positions())

    def _check(self, when: str) -> None:
        expected = {key: n for key, (n, _) in self.log.hold(self.log.everything()).items()}
        for target in self.drivers[-1].targets:
            for spec in target.tables:
                rows = target.database.top(spec.state.table, topology="t", n=len(_KEYS) + 1)
                found = {row["word"]: row["n"] for row in rows}
                if found != expected:
                    raise WrongResultError(f"{when}, {spec.state.table} has {found}, the log {expected}")
            if self.semantics is not Semantics.NON_TRANSACTIONAL:
                self._check_ledger(target.database)

    def _check_ledger(self, database: StateBackend) -> None:
        """Every record is in exactly one batch, and no txid is missing."""
        ledger = database.batches("t")
        assert [row.txid for row in ledger] == list(range(1, len(ledger) + 1)), "a txid is missing"
        assert {row.status for row in ledger} <= {COMMITTED}, "a txid is not committed"
        batches = [self.codec.decode(row.metas, f"txid {row.txid}") for row in ledger]
        self.check_chain(batches, f"the ledger of {database.url_for_people}")

    def check_chain(self, batches: Iterable[BatchMetas[Range]], whose: str) -> None:
        """Every record of the log is in exactly one of these batches, in order."""
        places = dict.fromkeys(self.log.partitions, 0)
        for txid, metas in enumerate(batches, 1):
            for partition, taken in metas.partitions.items():
                if taken.start != places[partition]:
                    raise WrongResultError(
                        f"{whose}: txid {txid} takes {partition} from {taken.start}, the one before ended at "
                        f"{places[partition]}"
                    )
                places[partition] = taken.end
        if places != {partition: len(keys) for partition, keys in self.log.partitions.items()}:
            raise WrongResultError(f"{whose} ends at {places}")


def simulate(
    seed: int,
    semantics: Semantics,
    databases: int = 1,
    mutations: Mutations | None = None,
    faults: Mapping[str, float] = FAULTS,
    steps: int = 120,
    state: Semantics | None = None,
) -> World:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    return tell_of(World(seed, semantics, databases, mutations or Mutations(), faults, steps, state))


def tell_of(world: AnyWorld) -> AnyWorld:
    """Run a world's history."""
    try:
        with world.mutations.in_force():
            world.run()
    except Exception as error:
        raise AssertionError(
            f"{world.tell()}\nseed {world.seed}, {world.semantics} spout, {world.states} state, "
            f"{len(world.servers)} database(s): {type(error).__name__}: {error}"
        ) from error
    return world
