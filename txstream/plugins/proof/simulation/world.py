"""The world of a simulation: rows, databases, ZooKeeper and drivers. `chances` decide what happens to them.

Over 500 lines: every fault is a chance in the one world that all parts of a history share.

A history has two parts: one with faults, then one without, in which a last driver must finish. Afterwards
every table must hold exactly what a plain fold of the rows leaves there (`truth`), and the ledger every row
in exactly one batch. Drivers that wake up later must change nothing. After each commit, too, the tables must
hold what a plain fold leaves of the batches that their database has committed by then.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from txstream.api.topology import CommitChoice
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import StaleAttemptError, StateValueError, TxstreamError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.engine.commit.state_targets import StateTarget
from txstream.engine.start.takeover import claim_identity
from txstream.plugins.proof.simulation import sqlite
from txstream.plugins.proof.simulation.chances import Chances, Played, Step
from txstream.plugins.proof.simulation.driver import Actor, SimulatedDriver
from txstream.plugins.proof.simulation.plain_fold import Tables, difference, equal
from txstream.plugins.proof.simulation.program import Begun, Program
from txstream.plugins.proof.simulation.source import Log
from txstream.plugins.proof.simulation.stores import Server, copied
from txstream.plugins.proof.simulation.tasks import Task, Tasks
from txstream.plugins.proof.simulation.truth import Ranges, Truth
from txstream.plugins.proof.stores.layout import Overlay
from txstream.plugins.proof.stores.merging import Key
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.state import StateBackend
from txstream.state.records import COMMITTED, BatchRecord
from txstream.zookeeper.tree import Node

# The probability of each fault, each time that it could happen.
FAULTS: Mapping[str, float] = {
    "crash": 0.007,
    "freeze": 0.01,
    "freeze at start": 0.01,
    "answer lost": 0.02,
    "write late": 0.03,
    "commit late": 0.03,
    "never arrives": 0.2,
    "call late": 0.03,
    "lock kept": 0.3,
    "gives up": 0.3,
    "asleep in a transaction": 0.01,
    "database away": 0.015,
    "source away": 0.02,
    "deadline": 0.01,
    "meanwhile": 0.05,
    "batch fails": 0.1,
    "stale message": 0.05,
    "another driver": 0.01,
    "code changes": 0.3,
    "tasks given up": 0.05,
    "task again": 0.3,
    "late arrives": 0.02,
}
STEPS = 30
ON_SQLITE = 0.02
"""The share of histories whose states are in a real SQLite database."""

_MAX_DEPTH = 2
_MAX_LAST_STEPS = 3000
_ALL_ROWS = 1_000_000
_THE_REST = (_ALL_ROWS, _ALL_ROWS)


class Tree(MemoryTree):
    """ZooKeeper, which may be restored from an old copy."""

    @property
    def has_late(self) -> bool:
        return bool(self._late)

    def copy(self) -> dict[str, Node]:
        return dict(self._nodes)

    def restore(self, copy: Mapping[str, Node]) -> None:
        self._nodes = dict(copy)


class WrongResultError(TxstreamError):
    """A table differs from the truth, or a row is in no batch or in two."""


@dataclass
class World:
    """One history. `run` raises AssertionError, WrongResultError, or an error that no driver should have met.

    `cut` is the fewest and the most rows that a batch takes from a partition. `expected` is what the tables
    must hold at the end; None leaves that unchecked. `crashes` are the points at which drivers crashed,
    `points` all points that drivers passed, `happened` how often each fault happened. `say` is called with
    what happens, as it happens. With `at_end`, a topology begins behind the rows that it then sees.
    """

    program: Program
    chances: Chances
    expected: Truth | Tables | None = None
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)
    steps: int = STEPS
    cut: tuple[int, int] = (1, 4)
    on_sqlite: float = ON_SQLITE
    say: Callable[[str], None] | None = None
    at_end: bool = False

    def __post_init__(self) -> None:
        self.topology_id = self.program.topology.id
        self.semantics = self.program.topology.semantics
        self.codec = self.program.codec
        self.log = Log(self.program.rows, at_end=self.at_end)
        self.tree = self.make_tree()
        self.tasks = Tasks(self)
        self.drivers: list[SimulatedDriver] = []
        self.history: list[tuple[int, str, BatchMetas[Any] | None]] = []
        self.late_calls: list[tuple[str, Callable[[], Any]]] = []
        self.points: set[str] = set()
        self.crashes: list[str] = []
        self.happened: Counter[str] = Counter()
        self.wrong: BaseException | None = None
        self.steps_done = self.steps_said = self.passed = self.batches_committed = 0
        self.bolt_runs = 0  # calls of user code, each with the tuples of a task or of a whole batch
        self.changes = 0  # transactions that servers in memory have applied
        self._depth = self._awake = 0
        self.has_faults = False
        self.is_on_sqlite = False
        self.pending = self.chances.between(1, 3)
        self.width = self.chances.between(1, 3)
        self.servers: list[Any] = []
        self._begin()
        for _ in range(self.chances.between(1, 3)):
            self.grow()
        self.has_faults = True

    def wall_clock(self, _driver: int) -> float:
        """Return what the clock of a driver's machine says."""
        return 0.0

    def make_tree(self) -> Tree:
        return Tree()

    def are_done(self, tasks: Sequence[Task]) -> bool:
        """Return whether a driver that waits for these tasks may stop waiting."""
        return all(task.is_done for task in tasks)

    def _begin(self) -> None:
        """Decide what runs and where its states are. The topology is registered, but nobody has led it."""
        chances = self.chances
        self.commit: CommitChoice = chances.pick(self.program.commits())
        self.is_on_sqlite = chances.happens(self.on_sqlite)
        kind: Any = sqlite.Server if self.is_on_sqlite else Server
        self.note(f"states are in {kind.__module__}")
        self.servers = [kind(url.removeprefix("memory://"), self) for url in self.program.databases]
        written_by_bolts = {state.url for state, by_bolt in self.program.states if by_bolt}
        for server in self.servers:
            must = self.commit == "executors" or server.url in written_by_bolts
            server.on_executors = must or not chances.happens(0.15)
        begun = None if self.is_on_sqlite else self.program.begun
        if begun is not None:
            self.tree.restore(begun.nodes)
            for server, spaces in zip(self.servers, begun.spaces, strict=True):
                server.spaces = copied(spaces)
            return
        first = self.driver_of(self.program, 0)
        for server in self.servers:
            server.open(first).ensure_framework_tables()
        claim_identity(first.topology, first.store, first.targets, locked=first.locked)
        if not self.is_on_sqlite:
            self.program.begun = Begun(self.tree.copy(), [copied(server.spaces) for server in self.servers])

    def applied(self, changes: Overlay) -> None:
        """Called before a server in memory applies a transaction."""

    def putting(self, server: Server, space: str, key: Key, value: Any) -> None:
        """Called before a transaction of a server in memory writes a value. It may refuse it."""

    def store_at(self, url: str, client: Any) -> StateBackend:
        found: StateBackend = next(s for s in self.servers if s.url == url).open(client)
        return found

    def note(self, what: str, metas: BatchMetas[Any] | None = None) -> None:
        self.history.append((self._depth, what, metas))
        if self.say is not None:
            self.say(self._shown(*self.history[-1]))

    def _say_step(self) -> None:
        if self.say is not None:
            self.steps_said += 1
            self.say(f"step {self.steps_said}")

    def tell(self, last: int = 120) -> str:
        """Return the end of the history. What happened while an actor slept is indented."""
        return "\n".join(self._shown(*one) for one in self.history[-last:])

    def _shown(self, depth: int, what: str, metas: BatchMetas[Any] | None) -> str:
        return f"{'    ' * depth}{what}{'' if metas is None else f': {self.codec.encode(metas)}'}"

    def happens(self, fault: str) -> bool:
        if self.has_faults and self.chances.happens(self.faults[fault]):
            self.happened[fault] += 1
            return True
        return False

    # --- with faults ----------------------------------------------------------------------------------

    def run(self, *, alone: bool = False) -> None:
        """Run the whole history. With `alone`, the first driver finishes it instead of a new one."""
        self.chances.steps(self.steps, self._take_step)
        self._end_faults()
        self._finish(self.drivers[0] if alone and self.drivers else self.new_driver())

    def _take_step(self) -> None:
        """Take a step and record it. An error in a step that others take while an actor sleeps is kept in
        `wrong`: the sleeper would take it for a failure of its own work."""
        told = len(self.history)
        if not self._depth:
            self._say_step()
        try:
            self._step()
        except Exception as error:
            self.wrong = self.wrong or error
            raise
        finally:
            if isinstance(self.chances, Played):
                for depth, what, metas in self.history[told:]:
                    if depth == self._depth:
                        self.chances.note(self._shown(0, what, metas))
        if self.wrong is not None and not self._depth:
            raise self.wrong

    def freeze(self, actor: Actor, where: str) -> None:
        """Let an actor sleep in the middle of its work while the world goes on, then wake it up."""
        if not self._can_sleep:
            return
        self.note(f"{actor} falls asleep: {where}")
        actor.is_frozen = True
        self.go_on()
        actor.is_frozen = False
        self.note(f"{actor} wakes up: {where}")

    def go_on(self) -> None:
        """Take some steps of the others in the middle of an actor's step."""
        if not self._can_sleep:
            return
        self._depth += 1
        self.chances.steps(self.chances.between(5, 5 + self.steps // 2), self._take_step)
        self._depth -= 1

    @property
    def _can_sleep(self) -> bool:
        return self._depth < _MAX_DEPTH and not self._awake

    @contextlib.contextmanager
    def nobody_sleeps(self) -> Iterator[None]:
        """Let nobody sleep inside the block, because the actor holds what cannot be taken away."""
        self._awake += 1
        try:
            yield
        finally:
            self._awake -= 1

    def _step(self) -> None:
        self.steps_done += 1
        chance = self.chances.below(100)
        if chance < 83:
            self._step_a_driver()
        elif chance < 88:
            self.tasks.run_one()
        elif chance < 92:
            self.deliver_late()
        elif chance < 97:
            self._lose_or_find()
        else:
            self.grow()

    def _step_a_driver(self) -> None:
        awake = [driver for driver in self.drivers if driver.is_alive and not driver.is_frozen]
        leads = self.drivers[-1] in awake if self.drivers else False
        if not awake or self.happens("another driver") or (not leads and self.chances.below(2)):
            awake = [self.new_driver()]
        # Mostly the leader, now and then a driver that does not know yet that it no longer leads.
        chosen = self.chances.pick(awake) if self.chances.happens(0.15) else awake[-1]
        chosen.step()

    def new_driver(self) -> SimulatedDriver:
        """Add the next driver, perhaps with code that commits in another way."""
        if self.happens("code changes"):
            self.commit = self.chances.pick(self.program.commits())
            self.pending = self.chances.between(1, 3)
        self.drivers.append(driver := self.driver_of(self.program, len(self.drivers) + 1))
        return driver

    def driver_of(self, program: Program, number: int) -> SimulatedDriver:
        return SimulatedDriver(self, number, program)

    def grow(self) -> None:
        """Show more rows, perhaps in a new partition."""
        ends, rows = self.log.ends, self.log.rows
        open_names = [name for name in rows if ends.get(name, 0) < rows[name].num_rows]
        if open_names:
            name = self.chances.pick(open_names)
            shown = ends.get(name, 0)
            end = min(rows[name].num_rows, shown + self.chances.between(1, 6))
            if not self.batches_committed and open_names == [name] and end == rows[name].num_rows:
                end -= 1  # a row is left for a second batch
            if end > shown:
                ends[name] = end

    def _lose_or_find(self) -> None:
        if not self.log.ends:
            return
        partition = self.chances.pick(list(self.log.ends))
        self.log.lost ^= {partition}
        self.note(f"{partition} is {'lost' if partition in self.log.lost else 'found'}")

    def deliver_late(self) -> None:
        """Deliver what was sent long ago. It is applied as far as fences and versions allow."""
        self.tree.deliver_late()
        for server in self.servers:
            server.deliver_late()
        late, self.late_calls = self.late_calls, []
        for what, call in late:
            with self._without_faults():
                try:
                    call()
                except StaleAttemptError:
                    self.note(f"{what} comes too late")
                except StateValueError as error:
                    self.note(f"{what} is refused: {error}")
                else:
                    self.note(f"{what} is there at last")

    @contextlib.contextmanager
    def _without_faults(self) -> Iterator[None]:
        had_faults, self.has_faults = self.has_faults, False
        try:
            yield
        finally:
            self.has_faults = had_faults

    # --- without faults -------------------------------------------------------------------------------

    def _end_faults(self) -> None:
        self.note("no more faults")
        self.has_faults = False
        self.log.lost.clear()
        if self.batches_committed or not self.log.ends:
            self.log.show_all()  # otherwise what is shown so far is a batch of its own
        if self.steps_done:
            self.cut = _THE_REST  # one batch shows what the faults have left as well as several do

    def _finish(self, last: SimulatedDriver) -> None:
        for _ in range(_MAX_LAST_STEPS):
            last.step()
            if self.wrong is not None:
                raise self.wrong
            assert last.is_alive, f"{last} ended, though nothing can go wrong any more"
            if self.is_finished_by(last):
                if self.log.is_all_shown:
                    break
                self.log.show_all()
        else:
            raise AssertionError(f"{last} does not finish")
        self._check("at the end")
        if not self._may_change():
            return
        before = self.changes, self.tree.copy()
        self.deliver_late()
        self.tasks.run_all()
        for driver in self.drivers[:-1]:
            for _ in range(30):
                if driver.is_alive:
                    driver.step()
        if self.is_on_sqlite or before != (self.changes, self.tree.copy()):
            self._check("after the drivers of the past woke up")

    def _may_change(self) -> bool:
        """Return whether anything from the past is left that could still write."""
        return bool(
            self.late_calls
            or self.tree.has_late
            or self.tasks.are_left
            or any(server.has_late for server in self.servers)
            or any(driver.is_alive for driver in self.drivers[:-1])
        )

    def is_finished_by(self, driver: SimulatedDriver) -> bool:
        if driver.loop is None:
            return False
        coordinator = driver.loop.coordinator
        return coordinator.is_idle and self.log.reached(coordinator.committed_metas().positions())

    def tables(self) -> Tables:
        """Return what the newest driver's tables hold."""
        found: Tables = {}
        for target in self.drivers[-1].targets:
            found |= self._tables_of(target)
        return found

    def _tables_of(self, target: StateTarget) -> Tables:
        found: Tables = {}
        for spec in target.tables:
            keys, values = spec.state.key_names, spec.state.shown_names
            rows = target.database.top(spec.state.table, topology=self.topology_id, n=_ALL_ROWS)
            found[spec.state.table] = {
                tuple(row[name] for name in keys): tuple(row[name] for name in values) for row in rows
            }
        return found

    def committed(self, driver: SimulatedDriver, attempt: TransactionAttempt) -> None:
        """Compare tables with the truth when a driver has committed an attempt. What is wrong is kept in
        `wrong`, because a driver's other work may take an error for its own."""
        self.note(f"{driver} has committed {attempt}")
        self.batches_committed = max(self.batches_committed, attempt.txid)
        truth = self.expected
        if not isinstance(truth, Truth) or self.semantics is Semantics.NON_TRANSACTIONAL or self.wrong:
            return
        with self._without_faults():
            for target in driver.targets:
                wrong = self._wrong_so_far(truth, target)
                if wrong is not None:
                    self.wrong = WrongResultError(f"after the commit of {attempt}, {wrong}")

    def _wrong_so_far(self, truth: Truth, target: StateTarget) -> str | None:
        last = target.database.last_batch(self.topology_id)
        if last is None or last.status != COMMITTED:  # another driver may have begun the next commit
            return None
        (metas,) = self._decoded([last])
        return truth.wrong_so_far(
            self._tables_of(target),
            {name: taken.end for name, taken in metas.positions().items()},
            lambda: self._committed_ranges(target.database),
        )

    def _check(self, when: str) -> None:
        if self.expected is not None:
            found, expected, whose = self.tables(), self.expected, "what is expected"
            if isinstance(expected, Truth):
                first = self.drivers[-1].targets[0].database
                truth, expected = expected, expected.tables(lambda: self._committed_ranges(first))
                whose = ""
            for table, rows in expected.items():
                if not equal(found[table], rows):
                    raise WrongResultError(
                        f"{when}, table {table!r} is not {whose or truth.whose(table)}: "
                        f"{difference(rows, found[table])}"
                    )
        if self.semantics is not Semantics.NON_TRANSACTIONAL:
            for target in self.drivers[-1].targets:
                self._check_ledger(target.database)

    def _check_ledger(self, database: StateBackend) -> None:
        """Check that every row is in exactly one batch and that no txid is missing."""
        ledger = database.batches(self.topology_id)
        assert [row.txid for row in ledger] == list(range(1, len(ledger) + 1)), "a txid is missing"
        assert {row.status for row in ledger} <= {COMMITTED}, "a txid is not committed"
        batches = self._decoded(ledger)
        self.check_chain(batches, f"the ledger of {database.display_url}")

    def _decoded(self, ledger: Iterable[BatchRecord]) -> list[BatchMetas[Any]]:
        return [self.codec.decode(row.metas, f"txid {row.txid}") for row in ledger]

    def _committed_ranges(self, database: StateBackend) -> list[Ranges]:
        """Return the rows of each committed batch, by the ledger of a database."""
        ledger = database.batches(self.topology_id)
        return [_rows_of(metas) for metas in self._decoded(ledger)]

    def check_chain(self, batches: Iterable[BatchMetas[Any]], whose: str) -> None:
        """Check that every row of the log, from its beginning on, is in exactly one of these batches, in
        order, and that they begin no later than at the first row that was ever planned."""
        batches = list(batches)
        places = self.log.begins(batches)
        for partition, first in self.log.planned.items():
            if first < places[partition]:
                raise WrongResultError(
                    f"{whose} begins {partition} at {places[partition]}, though row {first} was planned"
                )
        for txid, metas in enumerate(batches, 1):
            for partition, taken in metas.partitions.items():
                if taken.start != places[partition]:
                    raise WrongResultError(
                        f"{whose}: txid {txid} takes {partition} from {taken.start}, the one before ended at "
                        f"{places[partition]}"
                    )
                places[partition] = taken.end
        if places != self.log.ends:
            raise WrongResultError(f"{whose} ends at {places}")

    def take_apart(self) -> None:
        """Break the reference cycles between the world's objects, to free them without a collection."""
        for driver in self.drivers:
            driver.take_apart()
        vars(self).clear()


def _rows_of(metas: BatchMetas[Any]) -> Ranges:
    """Return the rows that a batch says that it counts: its ranges without those that it leaves out, and the
    dead letters that it retries."""
    found: dict[str, list[tuple[int, int]]] = {}
    for name, taken in metas.partitions.items():
        cuts = sorted(one.offset for one in metas.excluded if one.partition == name)
        ends = zip([taken.start, *(cut + 1 for cut in cuts)], [*cuts, taken.end], strict=True)
        found[name] = [(start, end) for start, end in ends if start < end] or [(taken.start, taken.start)]
    for key in metas.retried:
        name, _, number = key.place.rpartition("@")
        found.setdefault(name, []).append((int(number), int(number) + 1))
    return found


def run_without_faults(program: Program) -> Tables:
    """Return what one driver leaves in the tables when nothing goes wrong."""
    world = World(program, Played(Step()))
    world.run()
    return world.tables()


def truth_of(program: Program) -> Truth:
    """Return what a program's tables must hold, computed once. Raises UsageError when nothing decides it, and
    what the product raises for a mistake that every run meets."""
    if program.truth is None:
        try:
            program.truth = Truth(program.topology, program.rows, program.expected)
        except UsageError:
            raise
        except Exception as error:
            run_without_faults(program)  # it tells a user's mistake better than the fold
            raise UsageError(
                f"a plain fold of the rows, which is the truth here, fails with {type(error).__name__}: "
                f"{error}; a run without faults does not. Give expected= for every table"
            ) from error
    return program.truth
