"""Thousands of histories, each from a seed: whatever crashes, sleeps or is lost, the tables are exact.

`TXSTREAM_SIMULATION_SEEDS=20000 make soak` runs many more; a failure prints its history and its seed.
"""

from __future__ import annotations

from collections import Counter

import pytest
from support.lists import each

from guards import GUARDS
from simulation.histories import SOAK_SEEDS, Rules, simulate, world_of
from txstream.core.errors import CorruptStateError, ProgressMismatchError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.simulation.world import FAULTS, World, WrongResultError
from txstream.zookeeper.tree import Node

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
BASELINE = Semantics.NON_TRANSACTIONAL

FEW_SEEDS, CI_SEEDS = 3, 60

PAIRS = [(OPAQUE, OPAQUE), (TRANSACTIONAL, TRANSACTIONAL), (TRANSACTIONAL, OPAQUE)]
EVERY_KIND = pytest.mark.parametrize(
    ("spout", "state", "databases"),
    [(spout, state, databases) for spout, state in PAIRS for databases in (1, 2)],
    ids=lambda value: str(value),
)
SEEDS = pytest.mark.parametrize(
    "seeds", [range(FEW_SEEDS), pytest.param(range(FEW_SEEDS, CI_SEEDS), marks=pytest.mark.soak)], ids=str
)

# All that can interrupt a driver, more often than in CI's mix.
STORM = {name: min(2 * chance, 0.3) for name, chance in FAULTS.items()}


@SEEDS
@EVERY_KIND
def test_results_are_exact(spout: Semantics, state: Semantics, databases: int, seeds: range) -> None:
    for seed in seeds:
        simulate(seed, spout, databases, state=state)


@pytest.mark.soak
@EVERY_KIND
def test_results_are_exact_in_a_storm_of_faults(spout: Semantics, state: Semantics, databases: int) -> None:
    for seed in range(CI_SEEDS // 8):
        simulate(seed, spout, databases, faults=STORM, state=state)


@pytest.mark.soak
@pytest.mark.timeout(0)
@EVERY_KIND
def test_results_are_exact_in_many_more_histories(spout: Semantics, state: Semantics, databases: int) -> None:
    for seed in range(CI_SEEDS, SOAK_SEEDS):
        faults = STORM if seed % 8 == 0 else FAULTS
        simulate(seed, spout, databases, faults=faults, steps=120 + seed % 200, state=state)


@pytest.mark.soak
def test_histories_have_in_them_what_they_are_to_show() -> None:
    """A simulation in which nothing goes wrong would pass too."""
    seen: Counter[str] = Counter()
    signs = (
        "simulation.sqlite",
        "crashes",
        "cannot start",
        "is fenced",
        "wakes up",
        "a task falls asleep",
        "is late",
        "has committed txid",
        "what was late is there",
        "what was late never arrives",
        "comes too late",
        "is there at last",
        "ends a transaction",
        "is lost, before",
        "is lost, after",
        "was not committed",
        "fails",
        "is refused",
        "is found",
        "replays {",
        "message_timeout_seconds",
        "the share of",
        ", again",
        "its tasks take too long",
        "a begin_commit to",
        "a end_commit to",
    )
    for seed in (*range(25), 84, 113):  # the last two are on SQLite
        for semantics in (OPAQUE, TRANSACTIONAL):
            told = simulate(seed, semantics, 2).tell(last=100_000)
            seen.update(sign for sign in signs if sign in told)
    assert set(seen) == set(signs)
    assert min(seen.values()) >= 3, seen


def test_a_seed_is_a_whole_history() -> None:
    first, again = (simulate(7, OPAQUE, 2).tell(last=100_000) for _ in range(2))
    assert first == again
    assert first != simulate(8, OPAQUE, 2).tell(last=100_000)


@pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL])
def test_tables_are_compared_after_every_commit(
    semantics: Semantics, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = dict.fromkeys(FAULTS, 0.0)
    lagging = Rules(next(guard.patches for guard in GUARDS if guard.mutant == "TablesLagBehind"))
    with pytest.raises(AssertionError, match=r"WrongResultError: after the commit of txid \d+ attempt"):
        simulate(2, semantics, rules=lagging, faults=nothing)
    monkeypatch.setattr(World, "_wrong_so_far", lambda *_: None)
    simulate(2, semantics, rules=lagging, faults=nothing)  # at the end all is there


# --- the baseline ------------------------------------------------------------------------------------


def test_the_non_transactional_baseline_is_exact_only_when_nothing_goes_wrong() -> None:
    nothing = dict.fromkeys(FAULTS, 0.0)
    for seed in range(30):
        world_of(seed, BASELINE, faults=nothing).run(alone=True)


def test_the_non_transactional_baseline_doubles() -> None:
    wrong: list[BaseException | None] = []
    for seed in range(25):
        try:
            simulate(seed, BASELINE)
        except AssertionError as error:
            wrong.append(error.__cause__)
    assert len(wrong) >= 5
    assert {type(cause) for cause in wrong} == {WrongResultError}


# --- old copies ----------------------------------------------------------------------


@each("semantics", [OPAQUE, TRANSACTIONAL])
@each("databases", [1, 2])
def test_a_zookeeper_that_was_restored_from_an_old_copy_is_a_mismatch(
    semantics: Semantics, databases: int
) -> None:
    """Going on from it would count again, or skip, what came after the copy."""
    for seed in range(10):
        world = world_of(seed, semantics, databases, faults=dict.fromkeys(FAULTS, 0.0))
        driver = world.new_driver()
        copies: dict[int, dict[str, Node]] = {}
        while len(copies) < 5:
            world.grow()
            driver.step()
            copies[driver.store.load().current] = world.tree.copy()
        current = max(copies)
        # A crash leaves ZooKeeper at most one batch behind, which a start settles.
        for old in (old for old in copies if current - old > 1):
            world.tree.restore(copies[old])
            with pytest.raises(ProgressMismatchError, match=f"txid {old - 1} was committed last"):
                world.new_driver().step()


@each("semantics", [OPAQUE, TRANSACTIONAL])
@each("databases", [1, 2])
def test_a_database_that_is_restored_beneath_a_driver_is_not_built_upon(
    semantics: Semantics, databases: int
) -> None:
    """A commit, a task or a start refuses, or the result is exact; it is never wrong."""
    refused = 0
    for seed in range(CI_SEEDS // 2):
        world = world_of(seed, semantics, databases, Rules(restores=True))
        with world.rules.in_force():
            try:
                world.run()
            except (CorruptStateError, ProgressMismatchError) as error:
                if "is restored" not in world.tell(last=100_000) or "an older copy" not in str(error):
                    raise AssertionError(f"seed {seed}: {world.tell()}") from error
                refused += isinstance(error, ProgressMismatchError)
    assert refused > CI_SEEDS // 16
