"""The simulation finds the hole when a guard is taken away; otherwise its silence would mean nothing."""

from __future__ import annotations

import pytest

from guards import GUARDS, Guard, Hunt
from simulation.histories import SOAK_SEEDS, Rules, simulate
from txstream.plugins.proof.simulation.world import FAULTS

pytestmark = pytest.mark.soak

MOST_SEEDS = 1500
MORE_HUNTS = max(1, SOAK_SEEDS // 4000)
GAPS_ARE_BUILT_UPON = next(guard.patch for guard in GUARDS if guard.mutant == "AGapIsBuiltUpon")

HUNTS = [
    pytest.param(guard, hunt, id=f"{guard.mutant}-{hunt}")
    for guard in GUARDS
    for hunt in guard.hunts
    if type(hunt) is Hunt
]
OF_EACH_KIND = {
    (hunt.semantics, hunt.databases, hunt.at_end, *(hunt.more or {}).items()): hunt
    for guard in GUARDS
    for hunt in guard.hunts
    if type(hunt) is Hunt
}


def search(seed: int, hunt: Hunt, rules: Rules) -> None:
    faults = {**FAULTS, **(hunt.more or {})}
    simulate(seed, hunt.semantics, hunt.databases, rules, faults, at_end=hunt.at_end)


def hole_of(guard: Guard, hunt: Hunt, first: int) -> tuple[int, Exception] | None:
    """Return the first seed, from the given one on, whose history shows the hole, and the error."""
    behind = (GAPS_ARE_BUILT_UPON,) if hunt.gaps_are_built_upon else ()
    rules = Rules((*guard.patches, *behind), restores=hunt.restores)
    for seed in range(first, first + MOST_SEEDS):
        try:
            search(seed, hunt, rules)
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return seed, error.__cause__
    return None


@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found(guard: Guard, hunt: Hunt) -> None:
    found = hole_of(guard, hunt, hunt.first_seed)
    assert found is not None, f"{guard.does}: not found in {MOST_SEEDS} histories"


@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found_in_other_histories_too(guard: Guard, hunt: Hunt) -> None:
    firsts = range(10_000, 10_000 + MORE_HUNTS * MOST_SEEDS, MOST_SEEDS)
    assert not [first for first in firsts if hole_of(guard, hunt, first) is None]


@pytest.mark.parametrize("hunt", OF_EACH_KIND.values(), ids=str)
def test_with_the_guard_the_same_histories_are_exact(hunt: Hunt) -> None:
    """It must not be the faults that a hunt makes more likely that break the results."""
    for seed in range(5):
        search(seed, hunt, Rules())
