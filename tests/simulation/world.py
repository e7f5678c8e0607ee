"""The world of a simulation: a log, databases, ZooKeeper, drivers, and a seed that decides what happens.

Everything random comes from the seed, so a seed is a whole history and can be replayed. A history has two
parts: one with faults, then one without, in which a last driver must finish. After it every table must hold
exactly what the oracle counts, and drivers that wake up later must change nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.bolts import word_count
from support.inmemory import MemoryLog, Range

from simulation.driver import Actor, Driver
from simulation.executors import Executors, Task
from simulation.model import UUID, Database, Guards, Log
from txstream.api.errors import StaleAttemptError
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.topology import CommitChoice, Topology
from txstream.coordinator import Coordinator
from txstream.engine.start.recovery import Resume, recover, take_over
from txstream.metas import BatchMetas, MetaCodec
from txstream.semantics import Semantics
from txstream.state import AnswerLostError
from txstream.state.records import COMMITTED
from txstream.transaction import AttemptId, Epoch, TransactionAttempt
from txstream.zookeeper import FORMAT, Identity, MemoryProgress, MemoryTree, ProgressStore
from txstream.zookeeper.tree import Node

SPOUTS: Mapping[Semantics, Any] = {
    Semantics.OPAQUE: OpaqueSpout,
    Semantics.TRANSACTIONAL: TransactionalSpout,
    Semantics.NON_TRANSACTIONAL: NonTransactionalSpout,
}

# How likely each fault is, each time that it could happen.
FAULTS: Mapping[str, float] = {
    "crash": 0.015,
    "freeze": 0.02,
    "answer lost": 0.05,
    "write late": 0.03,
    "commit late": 0.08,
    "database away": 0.05,
    "batch fails": 0.1,
    "stale message": 0.05,
    "another driver": 0.01,
    "tasks given up": 0.05,
    "task again": 0.3,
}

COMMITS: tuple[CommitChoice, ...] = ("driver", "auto", "executors")

_KEYS = "abcd"
_MAX_DEPTH = 2
_MAX_LAST_STEPS = 3000


class Tree(MemoryTree):
    """ZooKeeper, which somebody may restore from an old copy."""

    def copy(self) -> dict[str, Node]:
        return dict(self._nodes)

    def restore(self, copy: Mapping[str, Node]) -> None:
        self._nodes = dict(copy)


class Mutations:
    """The real rules. A mutant overrides one."""

    guards = Guards()
    tree: type[Tree] = Tree
    coordinator: type[Coordinator[Range]] = Coordinator

    def take_over(self, store: ProgressStore, databases: Sequence[Any]) -> Epoch:
        return take_over(store, databases)

    def recover(
        self,
        topology: str,
        semantics: Semantics,
        store: ProgressStore,
        databases: Sequence[Any],
        codec: MetaCodec[Any],
    ) -> Resume:
        return recover(topology, semantics, store, databases, codec)

    def raise_fence(self, database: Database, attempt: AttemptId) -> None:
        database.raise_fence(attempt)

    def outcome(self, database: Database, attempt: TransactionAttempt) -> bool:
        return database.has_committed(attempt)

    def begin_answer_lost(self) -> None:
        raise AnswerLostError("nobody knows whether it has begun")

    def write(self, world: World, task: Task, *, alone: bool) -> None:
        """One transaction of a task; `alone` when no driver waits for it in this step."""
        task.database.write(task.attempt, task.deltas)

    def are_done(self, tasks: Sequence[Task]) -> bool:
        return all(task.is_done for task in tasks)

    def skips_the_end(self, database: Database) -> bool:
        return False


class WrongResultError(AssertionError):
    """A table is not what the log says."""


@functools.cache
def topology_of(semantics: Semantics, commit: CommitChoice) -> Topology:
    """`auto` takes executors for more than one key, and never twice for one txid."""
    topology = word_count(MemoryLog({}), spout=SPOUTS[semantics])
    rows = 1 if commit == "auto" else None
    return dataclasses.replace(topology, commit=commit, driver_commit_rows=rows)


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

    def _begin(self) -> None:
        """What every history has, whatever it is about."""
        self.random = random.Random(self.seed)
        self.codec: MetaCodec[Any] = MetaCodec(Range)
        self.late_calls: list[tuple[str, str, Callable[[], None]]] = []
        self.drivers: list[Driver] = []
        self.history: list[tuple[int, str, BatchMetas[Range] | None]] = []
        self.steps_done = 0
        self._depth = 0
        self._has_faults = True

    def __post_init__(self) -> None:
        self._begin()
        commit: CommitChoice = self.random.choice(COMMITS)
        self.topology = topology_of(self.semantics, commit)
        self.log = Log()
        self.tree = self.mutations.tree()
        self.databases = [
            Database(
                f"database {number}",
                self.state or self.semantics,
                self.mutations.guards,
                on_executors=self.random.random() < 0.85,
                written_by_bolts=commit != "driver" and self.random.random() < 0.25,
            )
            for number in range(1, self.databases_count + 1)
        ]
        self.executors = Executors(self)
        store = MemoryProgress(self.tree, "t", self.codec)
        store.create_identity(Identity(UUID, FORMAT, self.semantics, "spout"))
        for _ in range(self.random.randint(1, 3)):
            self.grow()

    def database(self, name: str) -> Database:
        return next(database for database in self.databases if database.name == name)

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
        return self._has_faults and self.random.random() < self.faults[fault]

    # --- with faults ----------------------------------------------------------------------------------

    def run(self, *, alone: bool = False) -> None:
        """The whole history; `alone` with one driver that nobody ever succeeds."""
        for _ in range(self.steps):
            self._step()
        self._finish(self.drivers[0] if alone else self._new_driver())

    def freeze(self, driver: Actor, where: str) -> None:
        """The driver sleeps in the middle of what it does; the world goes on; then it wakes up."""
        if self._depth == _MAX_DEPTH:
            return
        self.note(f"{driver} falls asleep: {where}")
        driver.is_frozen = True
        self.go_on()
        driver.is_frozen = False
        self.note(f"{driver} wakes up: {where}")

    def go_on(self) -> None:
        """Some steps of everybody else, in the middle of somebody's."""
        if self._depth == _MAX_DEPTH:
            return
        self._depth += 1
        for _ in range(self.random.randint(5, 60)):
            self._step()
        self._depth -= 1

    def _step(self) -> None:
        chance = self.random.random()
        if chance < 0.03:
            self.grow()
        elif chance < 0.08:
            self._lose_or_find()
        elif chance < 0.12:
            self._deliver_late()
        elif chance < 0.17:
            self.executors.run_one()
        else:
            self._step_a_driver()

    def _step_a_driver(self) -> None:
        awake = [driver for driver in self.drivers if driver.is_alive and not driver.is_frozen]
        leads = self.drivers[-1] in awake if self.drivers else False
        if not awake or self.happens("another driver") or (not leads and self.random.random() < 0.5):
            awake = [self._new_driver()]
        # Mostly the leader; now and then one that does not know yet that it no longer leads.
        chosen = self.random.choice(awake) if self.random.random() < 0.15 else awake[-1]
        chosen.step()

    def _new_driver(self) -> Driver:
        driver = Driver(self, len(self.drivers) + 1)
        self.drivers.append(driver)
        return driver

    def grow(self) -> None:
        """More records, perhaps in a new partition."""
        names = [*self.log.partitions, f"p{len(self.log.partitions) + 1}"][:3]
        keys = self.log.partitions.setdefault(self.random.choice(names), [])
        keys.extend(self.random.choice(_KEYS) for _ in range(self.random.randint(1, 6)))

    def _lose_or_find(self) -> None:
        partition = self.random.choice(list(self.log.partitions))
        self.log.lost ^= {partition}
        self.note(f"{partition} is {'lost' if partition in self.log.lost else 'found'}")

    def _deliver_late(self) -> None:
        """What was sent long ago arrives, and is applied as far as fences and versions let it."""
        self.tree.deliver_late()
        late, self.late_calls = self.late_calls, []
        for name, what, call in late:
            try:
                call()
            except StaleAttemptError:
                self.note(f"{name} refuses {what}, which is late")
            else:
                self.note(f"{name} has {what}, late")

    # --- without faults -------------------------------------------------------------------------------

    def _finish(self, last: Driver) -> None:
        self.note("no more faults")
        self._has_faults = False
        self.log.lost.clear()
        for _ in range(_MAX_LAST_STEPS):
            last.step()
            assert last.is_alive, f"{last} ended, though nothing can go wrong any more"
            if last.is_started and self._is_done(last):
                break
        else:
            raise AssertionError(f"{last} does not finish")
        self._check("at the end")
        self._deliver_late()
        self.executors.run_all()
        for driver in self.drivers[:-1]:
            for _ in range(30):
                if driver.is_alive:
                    driver.step()
        self._check("after the drivers of the past woke up")

    def _is_done(self, driver: Driver) -> bool:
        coordinator = driver.coordinator
        return coordinator.is_idle and self.log.reached(coordinator.committed_metas().positions())

    def _check(self, when: str) -> None:
        expected = dict(self.log.count())
        for database in self.databases:
            found = {key: value for key, value in database.totals().items() if value}
            if found != expected:
                raise WrongResultError(f"{when}, {database.name} has {found}, the log {expected}")
            if self.semantics is not Semantics.NON_TRANSACTIONAL:
                self._check_ledger(database)

    def _check_ledger(self, database: Database) -> None:
        """Every record is in exactly one batch, and no txid is missing."""
        assert sorted(database.ledger) == list(range(1, len(database.ledger) + 1)), "a txid is missing"
        assert {row.status for row in database.ledger.values()} <= {COMMITTED}, "a txid is not committed"
        places = dict.fromkeys(self.log.partitions, 0)
        for txid in sorted(database.ledger):
            metas = self.codec.decode(database.ledger[txid].metas, f"txid {txid}")
            for partition, taken in metas.partitions.items():
                if taken.start != places[partition]:
                    raise WrongResultError(
                        f"txid {txid} takes {partition} from {taken.start}, the one before ended at "
                        f"{places[partition]}"
                    )
                places[partition] = taken.end
        if places != {partition: len(keys) for partition, keys in self.log.partitions.items()}:
            raise WrongResultError(f"the ledger of {database.name} ends at {places}")


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
    world = World(seed, semantics, databases, mutations or Mutations(), faults, steps, state)
    try:
        world.run()
    except Exception as error:
        raise AssertionError(
            f"{world.tell()}\nseed {seed}, {semantics} spout, {state or semantics} state, "
            f"{databases} database(s): {type(error).__name__}: {error}"
        ) from error
    return world
