"""Histories of tables with `keep`: whatever crashes, sleeps or is lost, and whatever clocks say, an expired
row is removed for ever, and a record for it is a dead letter. With a guard taken away, it shows."""

from __future__ import annotations

from collections import Counter

import pytest

from guards.patch import Patch
from guards.sources import PROTOCOL
from simulation.histories import Rules
from simulation.keeping import simulate_keeping
from txstream.semantics import Semantics
from txstream.simulation.world import WrongResultError

KINDS = [(semantics, n) for semantics in (Semantics.OPAQUE, Semantics.TRANSACTIONAL) for n in (1, 2)]
EVERY_KIND = pytest.mark.parametrize(("semantics", "databases"), KINDS)
CI_SEEDS = 20
MOST_SEEDS = 60


@EVERY_KIND
def test_what_has_expired_never_comes_back(semantics: Semantics, databases: int) -> None:
    told: Counter[str] = Counter()
    for seed in range(CI_SEEDS):
        world = simulate_keeping(seed, semantics, databases)
        told.update(world.told)
        told.update(world.crashes and ["crash"])
    assert {"late", "removed", "crash"} <= told.keys(), told  # otherwise nothing was shown


RETENTION = "txstream/retention.py"
MUTANTS = {
    "a horizon goes back, as at a takeover by a machine whose clock is behind": Patch(
        RETENTION,
        "max(math.floor(now) - seconds, before.get(table, _FIRST), _FIRST)",
        "max(math.floor(now) - seconds, _FIRST)",
    ),
    "a late record counts": Patch(RETENTION, "return late if pc.any(late).as_py() else None", "return None"),
    "rows are removed by the clock at the commit": Patch(
        PROTOCOL,
        "here.remove_expired(spec, horizon, ",
        "here.remove_expired(spec, horizon + 7, ",
    ),
    "nothing is removed": Patch(
        PROTOCOL, "        self._remove_expired(here, commit, keys)\n", "        pass\n"
    ),
    "a batch of dead letters knows no horizon": Patch(
        "txstream/engine/loop/planning.py",
        "BatchMetas(carried=plan.last, horizons=horizons).retrying(letters)",
        "BatchMetas(carried=plan.last).retrying(letters)",
    ),
    "a plan forgets what came before": Patch(
        "txstream/coordinator.py",
        "before.positions(), replay, before.horizons)",
        "before.positions(), replay)",
    ),
}


@pytest.mark.parametrize("semantics", [Semantics.OPAQUE, Semantics.TRANSACTIONAL])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_is_found(mutant: str, semantics: Semantics) -> None:
    for seed in range(MOST_SEEDS):
        try:
            simulate_keeping(seed, semantics, 1 + seed % 2, Rules((MUTANTS[mutant],)))
        except AssertionError as error:
            if isinstance(error.__cause__, WrongResultError):
                return
            raise
    pytest.fail(f"{mutant}: not found in {MOST_SEEDS} histories")
