"""Histories of a topology of our own, with the real rules or with one of them taken away."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from guards.patch import Patch, in_force
from simulation.releases import still
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.chances import Chances
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.truth import Truth
from txstream.plugins.proof.simulation.world import FAULTS, World, truth_of
from txstream.plugins.proof.stores import layout
from txstream.plugins.proof.stores.layout import Spaces
from txstream.state.records import COMMITTED

AnyWorld = TypeVar("AnyWorld", bound="MutableWorld")

SOAK_SEEDS = int(os.environ.get("TXSTREAM_SIMULATION_SEEDS", "200"))
"""How many histories of each kind `make soak` runs."""


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


@dataclass(frozen=True)
class Rules:
    """The real rules, or those with mistakes in them. With `restores`, somebody restores databases from older
    copies beneath running drivers."""

    mistakes: tuple[Patch, ...] = ()
    restores: bool = False

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        step = _step_or_restore if self.restores else _step
        with mock.patch.object(World, "_step", step), in_force(self.mistakes):
            yield


REAL = Rules()


@dataclass
class MutableWorld(World):
    """A world whose rules may have mistakes in them."""

    rules: Rules = REAL


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
    rules: Rules = REAL,
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
    return MutableWorld(program, Chances(seed), known, faults, steps, rules=rules, at_end=at_end)


def simulate(seed: int, semantics: Semantics, *arguments: Any, **options: Any) -> MutableWorld:
    """Run one history. Raises AssertionError, with the history and the seed, when anything is not right."""
    world = world_of(seed, semantics, *arguments, **options)
    return tell_of(world, f"seed {seed}, {semantics} spout")


def tell_of(world: AnyWorld, whose: str) -> AnyWorld:
    """Run a world's history; an error is raised as an AssertionError that tells the history."""
    with world.rules.in_force():
        try:
            world.run()
        except Exception as error:
            raise AssertionError(
                f"{world.tell()}\n{whose}, {len(world.servers)} database(s): {type(error).__name__}: {error}"
            ) from error
    return world
