"""Roots and ids of tuples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from txstream.plugins.tracked.acker.ids import LAST_GENERATION, RootIds, TupleIds, generations_of, slots_of


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 8)), max_size=30), st.integers(1, 3))
def test_no_root_comes_twice_and_slots_are_reused(script: list[tuple[bool, int]], tasks: int) -> None:
    ids, most = RootIds(tasks - 1, tasks), 0
    seen: set[int] = set()
    taken: list[int] = []
    for take, count in script:
        if take:
            new = ids.take(count).tolist()
            assert not seen & set(new)
            seen |= set(new)
            taken += new
            most = max(most, len(taken))
        else:
            gone, taken = taken[:count], taken[count:]
            assert ids.release(gone + gone).tolist() == [True] * len(gone) + [False] * len(gone)
            assert not ids.release(gone).any()
        assert ids.taken == len(taken)
    assert all(
        number % tasks == tasks - 1 and number // tasks < most
        for number in slots_of(np.array([*seen], np.uint64))
    )


def test_tasks_share_the_slots_and_release_their_own_only() -> None:
    first, second = RootIds(0, 2), RootIds(1, 2)
    a, b = first.take(3), second.take(3)
    assert slots_of(a).tolist() == [0, 2, 4]
    assert slots_of(b).tolist() == [1, 3, 5]
    assert not first.release(b).any()
    assert first.taken == 3


def test_a_slot_whose_generations_are_used_up_is_not_given_out_again() -> None:
    ids = RootIds(first_generation=LAST_GENERATION)
    last = ids.take(1)
    assert ids.release(last).all()
    assert ids.taken == 0
    assert slots_of(ids.take(1)) == [1]
    assert not ids.release(last).any()


def test_a_task_that_starts_anew_goes_on_above_its_former_generations() -> None:
    former = RootIds()
    for _ in range(5):
        former.release(former.take(2))
    last = former.take(1)
    again = RootIds(first_generation=former.generation + 1)
    assert generations_of(again.take(1)) > generations_of(last)


def test_impossible_tasks_and_generations_are_refused() -> None:
    with pytest.raises(ValueError, match="task 2 of 2"):
        RootIds(2, 2)
    with pytest.raises(ValueError, match="first_generation=0"):
        RootIds(first_generation=0)
    with pytest.raises(ValueError, match="bits=65"):
        TupleIds(bits=65)


def test_ids_are_the_same_for_the_same_seed_and_never_0() -> None:
    assert TupleIds([3, 1, 4]).draw(5).tolist() == TupleIds([3, 1, 4]).draw(5).tolist()
    assert TupleIds([3, 1, 4]).draw(5).tolist() != TupleIds([3, 1, 5]).draw(5).tolist()
    assert TupleIds().draw(5).tolist() != TupleIds().draw(5).tolist()
    few = TupleIds(1, bits=2).draw(1_000)
    assert sorted(set(few.tolist())) == [1, 2, 3]
    assert TupleIds(1).draw(1_000).max() > 2**63
