"""Histories of a topology whose code changes: each state holds what was committed since it joined, once.

`TXSTREAM_SIMULATION_SEEDS=20000 make soak` runs many more; a failure prints its history and its seed.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest

from guards import GUARDS, ChangeHunt, Guard
from simulation.changes import CHANGE_FAULTS, simulate_changes
from simulation.histories import SOAK_SEEDS, Rules
from txstream.core.semantics import Semantics

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL

FEW_SEEDS, CI_SEEDS = 1, 12
MOST_SEEDS = 200

PAIRS = [(OPAQUE, OPAQUE), (TRANSACTIONAL, TRANSACTIONAL), (TRANSACTIONAL, OPAQUE)]
EVERY_KIND = pytest.mark.parametrize(("spout", "state"), PAIRS, ids=lambda value: str(value))

SIGNS = (
    "crashes",
    "is fenced",
    "wakes up",
    "is out",
    "is refused",
    "cannot start",
    "prunes",
    "ZooKeeper is lost",
    "has recovered",
    "is written",
    "what was late is there",
    "what was late never arrives",
    "ends a transaction",
    "committed in part",
    "replays {",
)


@functools.cache
def history(seed: int, spout: Semantics, state: Semantics) -> str:
    """Tell what happened in one history. Raises AssertionError when a state is not exact."""
    return simulate_changes(seed, spout, state=state).tell(last=100_000)


@pytest.mark.parametrize(
    "seeds", [range(FEW_SEEDS), pytest.param(range(FEW_SEEDS, CI_SEEDS), marks=pytest.mark.soak)], ids=str
)
@EVERY_KIND
def test_states_are_exact_while_the_code_changes(spout: Semantics, state: Semantics, seeds: range) -> None:
    for seed in seeds:
        history(seed, spout, state)


@pytest.mark.soak
@pytest.mark.timeout(0)
@EVERY_KIND
def test_states_are_exact_in_many_more_histories(spout: Semantics, state: Semantics) -> None:
    for seed in range(CI_SEEDS, SOAK_SEEDS):
        simulate_changes(seed, spout, state=state)


@pytest.mark.soak
def test_histories_have_in_them_what_they_are_to_show() -> None:
    """A simulation in which nothing changes would pass too."""
    seen: Counter[str] = Counter()
    for pair in PAIRS:
        for seed in range(CI_SEEDS):
            told = history(seed, *pair)
            seen.update(sign for sign in SIGNS if sign in told)
    assert set(seen) == set(SIGNS), seen


HUNTS = [
    pytest.param(guard, hunt, id=f"{guard.mutant}-{hunt}")
    for guard in GUARDS
    for hunt in guard.hunts
    if isinstance(hunt, ChangeHunt)
]


def hole_of(guard: Guard, hunt: ChangeHunt) -> tuple[int, Exception] | None:
    """Return the first seed whose history shows the hole as the hunt says, and the error."""
    faults = {**CHANGE_FAULTS, **(hunt.more or {})}
    for seed in range(MOST_SEEDS):
        try:
            simulate_changes(seed, hunt.semantics, Rules(guard.patches), faults)
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return seed, error.__cause__
    return None


@pytest.mark.soak
@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found(guard: Guard, hunt: ChangeHunt) -> None:
    assert hole_of(guard, hunt) is not None, f"{guard.does}: not found in {MOST_SEEDS} histories"


@pytest.mark.soak
@pytest.mark.parametrize(
    "hunt", [h for g in GUARDS for h in g.hunts if isinstance(h, ChangeHunt) and h.more], ids=str
)
def test_with_the_guard_the_same_histories_are_exact(hunt: ChangeHunt) -> None:
    """It must not be the faults that a hunt makes more likely that break the results."""
    for seed in range(2):
        simulate_changes(seed, hunt.semantics, faults={**CHANGE_FAULTS, **(hunt.more or {})})
