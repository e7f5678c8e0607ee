"""The table of guards names code and tests that exist. `tools/check_guards.py` proves that they guard."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.lists import each
from support.promises import STATE_KINDS

import check_guards
from guards import GUARDS, Guard, proofs
from guards.patch import Patch, in_force
from txstream.core.transaction import AttemptId
from txstream.state import FenceRow
from txstream.state.fence_rules import joining_keeps

ROOT = Path(__file__).parents[2]


@each("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_guard_is_in_the_code_and_something_proves_it(guard: Guard) -> None:
    text = (ROOT / guard.file).read_text(encoding="utf-8")
    assert guard.patch.applied(text) != text
    assert guard.test or guard.hunts
    assert bool(guard.mutant) == bool(guard.does) == bool(guard.hunts)
    if guard.hunts or guard.broken:
        with in_force(guard.patches):
            pass


def test_a_patch_is_in_force_for_its_block_and_for_all_that_have_its_function() -> None:
    rule = Patch("txstream/state/fence_rules.py", "return found.attempt == 0 or", "return")
    fence, asked = FenceRow("t", "u", AttemptId(0), {}), joining_keeps
    with in_force([rule]):
        assert not asked(fence)
    assert asked(fence)


def test_a_patch_outside_of_functions_cannot_be_in_force() -> None:
    with (
        pytest.raises(ValueError, match="not in a function"),
        in_force([Patch("txstream/__init__.py", "__all__ =", "x =")]),
    ):
        pass


def test_every_clause_and_every_hole_has_one() -> None:
    clauses = {guard.clause for guard in GUARDS}
    assert {"5.1", "5.3", "5.4"} <= clauses
    assert {f"5.2.{step}" for step in (1, 2, 5, 6)} <= clauses
    assert {f"hole {number}" for number in range(1, 11)} <= clauses


@each("test", sorted({guard.test for guard in GUARDS if guard.test}))
def test_its_test_exists(test: str) -> None:
    path, *names = test.split("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    if names:
        name = names[-1].partition("[")[0]
        # A server's test class takes its tests from SQLite's class, in another file.
        every = "".join(found.read_text(encoding="utf-8") for found in (ROOT / "tests").rglob("test_*.py"))
        assert re.search(rf"def {name}\b", every if len(names) > 1 else text)


def test_a_promise_is_one_of_those_that_its_test_checks() -> None:
    keep = (proofs.SQLITE_KEEPS, proofs.MEMORY_KEEPS)
    for guard in GUARDS:
        tests = [
            test.format(kind)
            for test in keep
            for kind, names in STATE_KINDS.items()
            if guard.promise in names
        ]
        assert guard.test in tests if guard.promise else "::test_promises[" not in guard.test, guard.name


def test_the_guides_show_them_as_they_are() -> None:
    """`python tools/check_guards.py --tables` writes the tables."""
    guides = [guide.read_text(encoding="utf-8") for guide in check_guards.GUIDES]
    assert [check_guards.with_tables(guide) for guide in guides] == guides
    shown = "".join(guides)
    for guard in GUARDS:
        assert not guard.test or check_guards.place_of(guard) in shown
        assert not guard.mutant or f"| `{guard.mutant}` |" in shown


def test_the_tests_that_the_guides_name_exist() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))
    for guide in check_guards.GUIDES:
        for name in re.findall(r"`test_\w+\.py::(test_\w+)`", guide.read_text(encoding="utf-8")):
            assert f"def {name}(" in tests, name


def test_a_guard_that_is_gone_is_told() -> None:
    with pytest.raises(ValueError, match="has the code 0 times, it must be there once"):
        GUARDS[0].patch.applied("something else")
