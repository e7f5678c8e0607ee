"""The world of a topology that changes: releases of its code, databases that join, a ZooKeeper that is lost.

Drivers run one release or another, more often than not the newest. So a change is begun, broken off at any
point, taken up again, and given up for the code before it. A refused start must have changed nothing that
counts. Operators rebuild what ZooKeeper has lost, and may die while they do it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.changing import ChangingDriver, Operator
from simulation.histories import REAL, MutableWorld, Rules, tell_of
from simulation.oracle import Oracle
from simulation.releases import FIRST, SECOND, THIRD, Release, releases_of
from txstream.api.topology import CommitChoice
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.driver import SimulatedDriver
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.stores import Server
from txstream.plugins.proof.simulation.world import FAULTS, Tree, WrongResultError
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Overlay
from txstream.zookeeper.paths import ROOT, Paths
from txstream.zookeeper.tree import Operation

CHANGE_FAULTS: Mapping[str, float] = {
    **FAULTS,
    "another driver": 0.03,
    "zookeeper lost": 0.006,
    "release": 0.02,
    "prune": 0.05,
}


COMMITS: tuple[CommitChoice, ...] = ("driver", "auto", "executors")


class _Watched(Tree):
    """A ZooKeeper whose changes the oracle sees."""

    seen: Callable[[Tree], None] = staticmethod(lambda tree: None)

    def _apply_all(self, operations: Sequence[Operation]) -> None:
        super()._apply_all(operations)
        self.seen(self)


@dataclass
class ChangingWorld(MutableWorld):
    """One history of a topology whose code changes; `releases` are numbered from 1."""

    releases: Sequence[Release] = ()
    states: Semantics = Semantics.OPAQUE

    def make_tree(self) -> Tree:
        return _Watched()

    def _begin(self) -> None:
        bolts = any(declared.by_bolt for release in self.releases for declared in release.tables)
        self.commit: CommitChoice = self.chances.pick(COMMITS[1:] if bolts else COMMITS)
        self.released = 1
        self.oracle = Oracle(self.codec)
        self.paths = Paths(ROOT, "t")
        assert isinstance(self.tree, _Watched)
        self.tree.seen = lambda tree: self.oracle.look(tree, self.paths)
        self.servers = [Server(name, self) for name in (FIRST, SECOND, THIRD)]
        self.losses = 0
        self.is_lost = False

    def applied(self, changes: Overlay) -> None:
        self.oracle.applied(changes)

    def happened_since(self, losses: int, step: int) -> bool:
        return self.losses != losses or self.steps_done != step

    def what_counts(self) -> Any:
        """Return all rows, ledgers and progress as they are now."""
        kept = [
            (server.name, space, dict(rows))
            for server in self.servers
            for space, rows in sorted(server.spaces.items())
            if space.startswith(("rows/", "batch/")) and rows
        ]
        nodes = self.tree.copy()
        watched = [path for path in nodes if path.startswith((self.paths.coordinator, self.paths.identity))]
        return kept, {path: nodes[path] for path in watched}

    # --- with faults ----------------------------------------------------------------------------------

    def _step(self) -> None:
        if self.released < len(self.releases) and self.happens("release"):
            self.released += 1
            self.note(f"release {self.released} is out")
        if self.happens("zookeeper lost"):
            self._lose_zookeeper()
        super()._step()

    def _lose_zookeeper(self) -> None:
        if self.losses == 2 or self.oracle.current == 1:
            return
        self.note("ZooKeeper is lost")
        self.losses += 1
        self.is_lost = True
        self.tree.remove("/txstream")

    def _step_a_driver(self) -> None:
        if self.is_lost and self.chances.happens(0.3):
            Operator(self, self.steps_done).step()
        else:
            super()._step_a_driver()

    def new_driver(self) -> SimulatedDriver:
        number = self.released
        if self.chances.happens(0.3):
            number = self.chances.between(1, number)
        return self.new_driver_of(number)

    def new_driver_of(self, number: int) -> ChangingDriver:
        release = self.releases[number - 1]
        driver = ChangingDriver(self, len(self.drivers) + 1, release.program(self.semantics, self.states))
        driver.release = release
        self.drivers.append(driver)
        return driver

    # --- without faults -------------------------------------------------------------------------------

    def run(self, *, alone: bool = False) -> None:
        self.chances.steps(self.steps, self._take_step)
        self._end_faults()
        self.released = len(self.releases)
        for _ in range(3):
            if self.is_lost:
                Operator(self, self.steps_done).step()
        assert not self.is_lost, "nobody could recover"
        self._finish(self._last_driver())

    def _last_driver(self) -> ChangingDriver:
        """Return a started driver of the newest release. Where a transactional txid is committed in part, an
        earlier release must finish first."""
        for _ in range(3):
            last = self.new_driver_of(self.released)
            last.step()
            if last.is_started:
                return last
            covering = [r.number for r in self.releases if r.covers(self.oracle.in_effect())]
            before = self.new_driver_of(covering[0])
            before.step()
            assert before.is_started, f"{before} cannot finish what was committed in part"
            self._finish(before)
        raise WrongResultError(f"release {self.released} cannot be run any more")

    def _check(self, when: str) -> None:
        if sorted(self.oracle.batches) != list(range(1, len(self.oracle.batches) + 1)):
            raise WrongResultError(f"the committed batches are {sorted(self.oracle.batches)}")
        committed = [metas for _, (_, metas) in sorted(self.oracle.batches.items())]
        self.check_chain(committed, "ZooKeeper")
        missing = {state.table for state, _ in self.drivers[-1].program.states} - set(self.oracle.since)
        if missing:
            raise WrongResultError(f"{when}, {missing} has not joined")
        for table in sorted(self.oracle.since):
            found = self._rows(table)
            expected = self.oracle.rows(table)
            if found != expected:
                raise WrongResultError(
                    f"{when}, {table} has {found}, not {expected}, from txid {self.oracle.since[table]} on"
                )

    def _rows(self, table: str) -> dict[str, tuple[int, ...]]:
        spaces = [server.spaces.get(layout.rows_space(table), {}) for server in self.servers]
        return {key[0]: row[0] for rows in spaces for key, row in rows.items()}


def simulate_changes(
    seed: int,
    semantics: Semantics,
    rules: Rules = REAL,
    faults: Mapping[str, float] = CHANGE_FAULTS,
    steps: int = 150,
    state: Semantics | None = None,
) -> ChangingWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    states = state or semantics
    coin = Chances(seed)
    releases = releases_of(coin, bolts=coin.happens(0.6))
    program: Program = releases[0].program(semantics, states)
    world = ChangingWorld(
        program,
        Chances(seed),
        None,
        faults,
        steps,
        rules=rules,
        releases=releases,
        states=states,
    )
    return tell_of(world, f"seed {seed}, {semantics} spout, {states} state")
