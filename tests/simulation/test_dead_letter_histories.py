"""Histories with records that fail by themselves: whatever crashes, sleeps or is lost, of each record either
all its effects are in the tables or exactly one dead letter is there. With a guard taken away, it shows."""

from __future__ import annotations

from collections import Counter

import pytest

from guards import GUARDS, Guard, LetterHunt
from simulation.histories import SOAK_SEEDS, Rules
from simulation.letters import (
    ALWAYS,
    LETTER_FAULTS,
    REPAIRED,
    TWIN,
    WORDS,
    LetterDriver,
    LetterWorld,
    simulate_letters,
)
from txstream.core.semantics import Semantics
from txstream.state.stored_letters import DEAD

FEW_SEEDS = 1
MOST_SEEDS = 300
BOTH = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)
KINDS = [(semantics, n, refuses) for refuses in (False, True) for semantics in BOTH for n in (1, 2)]
EVERY_KIND = pytest.mark.parametrize(("semantics", "databases", "refuses"), KINDS)


def letters_of(world: LetterWorld) -> list[tuple[str, str]]:
    """The word and the status of each dead letter."""
    stores = [target.database for target in world.drivers[-1].targets]
    found = [one for store in stores for one in store.dead_letters(world.topology_id)]
    return [(WORDS[one.place], one.status) for one in found]


@EVERY_KIND
def test_each_record_is_counted_or_dead(semantics: Semantics, databases: int, refuses: bool) -> None:
    for seed in range(FEW_SEEDS):
        for at_once in (False, True):
            simulate_letters(seed, semantics, databases, refuses=refuses, at_once=at_once)


@pytest.mark.soak
@pytest.mark.timeout(0)
@EVERY_KIND
def test_each_record_is_counted_or_dead_in_many_more_histories(
    semantics: Semantics, databases: int, refuses: bool
) -> None:
    for seed in range(FEW_SEEDS, SOAK_SEEDS):
        simulate_letters(seed, semantics, databases, refuses=refuses, at_once=bool(seed % 2))


@pytest.mark.soak
def test_histories_have_in_them_what_they_are_to_show() -> None:
    """A simulation in which nothing fails, and nobody retries, would pass too."""
    points, crashes, told = set[str](), set[str](), Counter[str]()
    signs = ("ValueError: moody", "ValueError: sour-p", "RuntimeError: together", "killed its worker process")
    for seed in range(60):
        world = simulate_letters(seed, Semantics.TRANSACTIONAL, 1 + seed % 2, more={"crash": 0.03})
        crashes.update(world.crashes)
        points.update(world.points)
        told.update(sign for sign in signs if sign in world.tell(last=100_000))
        for word, status in letters_of(world):
            kind = "always" if word in ALWAYS else "repaired" if word in REPAIRED else word
            told[f"{kind} {'dead' if status == DEAD else 'retried'}"] += 1
    assert {
        *signs, "always dead", "repaired retried",
    } <= told.keys()  # fmt: skip
    # A driver may crash wherever it passes: an amendment is rare, so it is not asked that one has.
    assert {"before amend", "after amend"} <= points
    # A trial, the commit, the answer to a request.
    assert {
        "before a batch is processed", "before the end of a transaction", "after a transaction",
        "before answer_request", "after answer_request",
    } <= crashes, crashes  # fmt: skip


@pytest.mark.soak
def test_histories_have_records_in_them_that_the_first_attempt_leaves_out() -> None:
    """Of a bolt behind which something else fails, the attempt fails all the same."""
    at_once, ends = 0, set[str]()
    seeds = iter(range(200))
    while at_once <= 30 or not {"before amend", "after amend"} <= ends:
        seed = next(seeds)
        world = simulate_letters(
            seed, Semantics.TRANSACTIONAL, 1 + seed % 2, more={"crash": 0.03}, at_once=True
        )
        at_once += sum(driver.left_out for driver in world.drivers if isinstance(driver, LetterDriver))
        ends.update(world.crashes)


@pytest.mark.soak
def test_a_database_refuses_values_within_the_commit() -> None:
    """An opaque run finds their records; a transactional one ends if a database may have counted them."""
    dead, ends = Counter[Semantics](), Counter[tuple[Semantics, int]]()
    for seed in range(20):
        for semantics in BOTH:
            world = simulate_letters(seed, semantics, 1 + seed % 2, refuses=True)
            dead[semantics] += any(word == TWIN for word, _ in letters_of(world))
            ends[semantics, world.databases] += (
                "may not change" in world.tell(last=100_000).partition("ends: ")[2]
            )
    assert dead[Semantics.OPAQUE] > 5, dead
    assert dead[Semantics.TRANSACTIONAL] > 0, dead
    assert {kind for kind, number in ends.items() if number} == {(Semantics.TRANSACTIONAL, n) for n in (1, 2)}


@pytest.mark.soak
@pytest.mark.parametrize("databases", [1, 2])
def test_a_transactional_run_ends_only_at_what_a_database_may_have_counted(databases: int) -> None:
    """Without other faults. A driver's own commit to one database is refused as a whole, so no run ends."""
    none, told = dict.fromkeys(LETTER_FAULTS, 0.0), Counter[str]()
    for seed in range(20):
        world = simulate_letters(seed, Semantics.TRANSACTIONAL, databases, more=none, refuses=True)
        has_ended = "ends: " in world.tell(last=100_000)
        told["ended"] += has_ended
        if world.commit == "driver" and databases == 1:
            assert not has_ended
            told["left out"] += any(word == TWIN for word, _ in letters_of(world))
    assert {kind for kind, number in told.items() if number} == {"ended", *(["left out"] * (databases == 1))}


# --- with a guard taken away ---------------------------------------------------------------------------

HUNTS = [
    pytest.param(guard, hunt, id=f"{guard.mutant}-{hunt}")
    for guard in GUARDS
    for hunt in guard.hunts
    if isinstance(hunt, LetterHunt)
]


@pytest.mark.soak
@pytest.mark.parametrize(("guard", "hunt"), HUNTS)
def test_a_missing_guard_is_found(guard: Guard, hunt: LetterHunt) -> None:
    for seed in range(MOST_SEEDS):
        try:
            rules = Rules(guard.patches)
            simulate_letters(
                *(seed, hunt.semantics, hunt.databases, rules, hunt.more),
                refuses=hunt.refuses,
                at_once=hunt.at_once,
            )
        except AssertionError as error:
            if isinstance(error.__cause__, hunt.shows):
                return
    pytest.fail(f"{guard.does}: not found in {MOST_SEEDS} histories")
