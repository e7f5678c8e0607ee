"""Histories of windows: whatever crashes, sleeps or is lost, and whatever clocks say, each database has the
windows closed that records and metas say, with the records that were in time."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation.histories import SOAK_SEEDS
from simulation.windowing import simulate_windows
from txstream.core.semantics import Semantics

KINDS = [
    (semantics, late, databases)
    for semantics in (Semantics.OPAQUE, Semantics.TRANSACTIONAL)
    for late in ("dead-letter", "amend")
    for databases in (1, 2)
]
FEW_SEEDS = 1
ENOUGH = 10  # to show everything


@pytest.mark.parametrize(
    "seeds", [range(FEW_SEEDS), pytest.param(range(FEW_SEEDS, SOAK_SEEDS), marks=pytest.mark.soak)], ids=str
)
@pytest.mark.parametrize(("semantics", "late", "databases"), KINDS)
def test_each_database_has_what_records_and_metas_say(
    semantics: Semantics, late: str, databases: int, seeds: range
) -> None:
    told: Counter[str] = Counter()
    for seed in seeds:
        world = simulate_windows(seed, semantics, late, databases)
        told.update(world.told)
        told.update(world.crashes and ["crash"])
    if len(seeds) > ENOUGH:  # otherwise nothing was shown
        assert min(told["closed"], told["crash"]) > 0, told
        assert (told["late"] > 0) == (late == "dead-letter")
