"""Histories of tables with `keep`: whatever crashes, sleeps or is lost, and whatever clocks say, an expired
row is removed for ever, and a record for it is a dead letter. With a guard taken away, it shows."""

from __future__ import annotations

from collections import Counter

import pytest

from guards import GUARDS, Guard, KeepHunt
from simulation.histories import Rules
from simulation.keeping import simulate_keeping
from txstream.core.semantics import Semantics

KINDS = [(semantics, n) for semantics in (Semantics.OPAQUE, Semantics.TRANSACTIONAL) for n in (1, 2)]
EVERY_KIND = pytest.mark.parametrize(("semantics", "databases"), KINDS)
FEW_SEEDS, CI_SEEDS = 1, 20
MOST_SEEDS = 400  # of the hunts, which end at the first that shows it


@pytest.mark.parametrize(
    "seeds", [range(FEW_SEEDS), pytest.param(range(FEW_SEEDS, CI_SEEDS), marks=pytest.mark.soak)], ids=str
)
@EVERY_KIND
def test_what_has_expired_never_comes_back(semantics: Semantics, databases: int, seeds: range) -> None:
    told: Counter[str] = Counter()
    for seed in seeds:
        world = simulate_keeping(seed, semantics, databases)
        told.update(world.told)
        told.update(world.crashes and ["crash"])
    assert {"late", "removed", "crash"} <= told.keys(), told  # otherwise nothing was shown


HUNTS = [
    pytest.param(guard, hunt, id=f"{guard.mutant}-{hunt}")
    for guard in GUARDS
    for hunt in guard.hunts
    if isinstance(hunt, KeepHunt)
]


@pytest.mark.soak
@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found(guard: Guard, hunt: KeepHunt) -> None:
    for seed in range(MOST_SEEDS):
        try:
            simulate_keeping(seed, hunt.semantics, 1 + seed % 2, Rules(guard.patches))
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return
            raise
    pytest.fail(f"{guard.does}: not found in {MOST_SEEDS} histories")
