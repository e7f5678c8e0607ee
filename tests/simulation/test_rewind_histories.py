"""Histories of savepoints and rewinds: whatever crashes or sleeps, what was undone is gone, everywhere, and
the rest counts once. With a guard taken away, it shows.

`TXSTREAM_SIMULATION_SEEDS=20000 make soak` runs many more; a failure prints its history and its seed.
"""

from __future__ import annotations

from collections import Counter

import pytest

from guards import GUARDS, Guard, RewindHunt
from simulation.histories import SOAK_SEEDS, Rules
from simulation.rewinding import simulate_rewinds
from txstream.core.semantics import Semantics

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
KINDS = [
    (spout, state, databases)
    for spout, state in [(OPAQUE, OPAQUE), (TRANSACTIONAL, TRANSACTIONAL), (TRANSACTIONAL, OPAQUE)]
    for databases in (1, 2)
]
EVERY_KIND = pytest.mark.parametrize(("spout", "state", "databases"), KINDS)
CI_SEEDS = 6
MOST_SEEDS = 150  # of the hunts, which end at the first that shows it

SIGNS = (
    "crashes",
    "is fenced",
    "wakes up",
    "is made of txid",
    "is not made",
    "executors are committing txid",
    "have committed txid",
    "drops s",
    "has gone back to",
    "cannot go back",
    "is too late",
    "is refused: topology 't' has no savepoint",
    "know only what they were before their last change",
    "keeps no earlier values",
    "is committed in part",
    "comes too late",
    "is lost",
)


def test_what_was_undone_is_gone_and_the_rest_counts_once() -> None:
    world = simulate_rewinds(4, OPAQUE, 2)
    assert world.rewinds
    assert world.crashes


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_histories_are_exact_and_have_in_them_what_they_are_to_show() -> None:
    """A simulation in which nobody goes back would pass too."""
    seen: Counter[str] = Counter()
    for kind in KINDS:
        for seed in range(CI_SEEDS):
            spout, state, databases = kind
            told = simulate_rewinds(seed, spout, databases, state=state).tell(last=100_000)
            seen.update(sign for sign in SIGNS if sign in told)
    assert set(seen) == set(SIGNS), seen


@pytest.mark.soak
@pytest.mark.timeout(0)
@EVERY_KIND
def test_many_more_histories_are_exact(spout: Semantics, state: Semantics, databases: int) -> None:
    for seed in range(CI_SEEDS, CI_SEEDS + SOAK_SEEDS // len(KINDS)):
        simulate_rewinds(seed, spout, databases, state=state)


HUNTS = [
    pytest.param(guard, hunt, id=f"{guard.mutant}-{hunt}")
    for guard in GUARDS
    for hunt in guard.hunts
    if isinstance(hunt, RewindHunt)
]


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found(guard: Guard, hunt: RewindHunt) -> None:
    for seed in range(MOST_SEEDS):
        try:
            simulate_rewinds(seed, hunt.semantics, hunt.databases, Rules(guard.patches), hunt.more)
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return
    pytest.fail(f"{guard.does}: not found in {MOST_SEEDS} histories")
