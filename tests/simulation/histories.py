"""Histories of a topology of our own, with the real rules or with one of them taken away."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar
from unittest.mock import patch

from simulation.releases import still
from txstream.semantics import Semantics
from txstream.simulation.chances import Chances
from txstream.simulation.program import Program
from txstream.simulation.tasks import Task
from txstream.simulation.truth import Truth
from txstream.simulation.world import FAULTS, Tree, World, truth_of
from txstream.state.records import COMMITTED
from txstream.state.store import layout
from txstream.state.store.layout import Spaces

AnyWorld = TypeVar("AnyWorld", bound="MutableWorld")


class Mutations:
    """The real rules. A mutant replaces parts of them, by their dotted names below `txstream`."""

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


REAL = Mutations()

_step = World._step


def _step_or_restore(world: World) -> None:
    """Take a step; now and then copy a server in memory, or restore a copy that lacks committed batches."""
    _step(world)
    if world.is_on_sqlite or world.chances.below(20):
        return
    server = world.chances.pick(world.servers)
    copy = vars(server).setdefault("copy", {})
    if world.chances.below(2) and 0 < committed_in(copy) < committed_in(server.spaces):
        world.note(f"{server.name} is restored from an older copy")
        for held in list(server.holding):
            server.end(held)
        _replace(server.spaces, copy)
    else:
        _replace(copy, server.spaces)


def _replace(spaces: Spaces, others: Spaces) -> None:
    """Make the spaces a copy of the others, without those that the others lack."""
    spaces.clear()
    spaces.update(deepcopy(others))


def committed_in(spaces: Spaces) -> int:
    """Return how many batches a server's ledger has committed."""
    ledger = spaces.get(layout.ledger_space("t"), {})
    return sum(row["status"] == COMMITTED for row in ledger.values())


class DatabasesAreRestored(Mutations, replaces={"simulation.world.World._step": _step_or_restore}):
    """The real rules, while somebody restores databases from older copies beneath running drivers."""


@dataclass
class MutableWorld(World):
    """A world whose rules may be a mutant's."""

    mutations: Mutations = REAL

    def make_tree(self) -> Tree:
        return self.mutations.tree()

    def are_done(self, tasks: Sequence[Task]) -> bool:
        return self.mutations.are_done(tasks)


@functools.cache
def _program(
    semantics: Semantics, states: Semantics, databases: int, by_bolt: tuple[bool, bool]
) -> tuple[Program, Truth]:
    program = still(databases, by_bolt).program(semantics, states)
    return program, truth_of(program)


def world_of(
    seed: int,
    semantics: Semantics,
    databases: int = 1,
    mutations: Mutations = REAL,
    faults: Mapping[str, float] = FAULTS,
    steps: int = 120,
    state: Semantics | None = None,
    at_end: bool = False,
) -> MutableWorld:
    """Return the world of a history to come; in some, bolts of the commit phase fill the tables. Nobody can
    foretell where it begins with `at_end`, so its tables are left to the caller to check."""
    chance = random.Random(seed).random
    by_bolt = semantics is not Semantics.NON_TRANSACTIONAL and chance() < 0.67
    bolts = (by_bolt and chance() < 0.25, by_bolt and chance() < 0.25)
    program, expected = _program(semantics, state or semantics, databases, bolts)
    known = None if at_end else expected
    return MutableWorld(program, Chances(seed), known, faults, steps, mutations=mutations, at_end=at_end)


def simulate(seed: int, semantics: Semantics, *arguments: Any, **options: Any) -> MutableWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    world = world_of(seed, semantics, *arguments, **options)
    return tell_of(world, f"seed {seed}, {semantics} spout")


def tell_of(world: AnyWorld, whose: str) -> AnyWorld:
    """Run a world's history; an error is raised as an AssertionError that tells the history."""
    with world.mutations.in_force():  # a name that does not exist is the mutant's mistake, not the history's
        try:
            world.run()
        except Exception as error:
            raise AssertionError(
                f"{world.tell()}\n{whose}, {len(world.servers)} database(s): {type(error).__name__}: {error}"
            ) from error
    return world
