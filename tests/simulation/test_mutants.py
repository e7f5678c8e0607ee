"""The simulation finds the hole when a guard is taken away; otherwise its silence would mean nothing."""

from __future__ import annotations

import pytest

from simulation.histories import simulate
from simulation.mutants import HUNTS, Hunt

pytestmark = pytest.mark.ci

MOST_SEEDS = 1500


def hole_of(hunt: Hunt, first: int) -> tuple[int, Exception] | None:
    """Return the first seed, from the given one on, whose history shows the hole, and the error."""
    for seed in range(first, first + MOST_SEEDS):
        try:
            simulate(seed, hunt.semantics, hunt.databases, hunt.rules(), hunt.faults, at_end=hunt.at_end)
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return seed, error.__cause__
    return None


@pytest.mark.parametrize("hunt", HUNTS, ids=str)
def test_a_missing_guard_is_found(hunt: Hunt) -> None:
    found = hole_of(hunt, hunt.first_seed)
    assert found is not None, f"{hunt.mutant.__doc__}: not found in {MOST_SEEDS} histories"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(10_000, 10_000 + 5 * MOST_SEEDS, MOST_SEEDS))
@pytest.mark.parametrize("hunt", HUNTS, ids=str)
def test_a_missing_guard_is_found_in_other_histories_too(hunt: Hunt, first: int) -> None:
    assert hole_of(hunt, first) is not None


@pytest.mark.parametrize(
    "hunt", {(h.semantics, h.databases, h.at_end, *h.faults.items()): h for h in HUNTS}.values(), ids=str
)
def test_with_the_guard_the_same_histories_are_exact(hunt: Hunt) -> None:
    """It must not be the faults that a hunt makes more likely that break the results."""
    for seed in range(5):
        simulate(seed, hunt.semantics, hunt.databases, faults=hunt.faults, at_end=hunt.at_end)
