"""How many slots a component may have."""

from __future__ import annotations

import pytest
from support.bolts import word_count
from support.inmemory import MemoryLog
from support.lists import each

from txstream.core.errors import UsageError
from txstream.engine.loop.slots import Slots, check_scale, fitting_scale

COMPONENTS = {"lines": (2, 2), "split": (1, 4), "count": (2, 3)}


@each("slots", [{"split": 4}, {"split": 1, "count": 3}, {"lines": 2}])
def test_up_to_its_tasks_a_component_may_have_any_slots(slots: dict[str, int]) -> None:
    assert check_scale(slots, COMPONENTS) == slots
    assert fitting_scale(slots, COMPONENTS) == (slots, [])


@each(
    ("slots", "words"),
    [
        ({"cuont": 2}, ["'cuont'", "count, lines, split"]),
        ({"count": 4}, ["'count'", "4 slots", "3 tasks", ".set_num_tasks(4)"]),
        ({"count": 0}, ["'count'", "0 slots", "1 or more"]),
        ({"count": -1}, ["-1 slots"]),
        ({"count": True}, ["True slots"]),
        ({"count": 2.5}, ["2.5 slots"]),
        ({}, ["count=3"]),
        ({"split": 4, "nobody": 1, "count": 9}, ["'nobody'", "9 slots"]),
    ],
)
def test_what_cannot_be_had_is_refused_with_a_remedy(slots: dict[str, int], words: list[str]) -> None:
    with pytest.raises(UsageError) as refusal:
        check_scale(slots, COMPONENTS)
    assert all(word in str(refusal.value) for word in words), refusal.value


def test_a_spout_has_at_most_its_parallelism() -> None:
    assert check_scale({"lines": 1}, COMPONENTS, spouts=["lines"]) == {"lines": 1}
    with pytest.raises(UsageError) as refusal:
        check_scale({"lines": 3}, COMPONENTS, spouts=["lines"])
    assert "at most its parallelism of 2" in str(refusal.value)
    assert "parallelism=3" in str(refusal.value)
    assert "set_num_tasks" not in str(refusal.value), "a spout has no such method"
    fitting, sentences = fitting_scale({"lines": 3}, COMPONENTS, spouts=["lines"])
    assert fitting == {}
    assert "parallelism=3" in sentences[0]


def test_one_task_is_one() -> None:
    with pytest.raises(UsageError, match="it has 1 task;"):
        check_scale({"count": 2}, {"count": (1, 1)})


def test_stored_slots_that_the_code_no_longer_fits_are_left_out_and_told() -> None:
    fitting, sentences = fitting_scale({"split": 3, "gone": 2, "count": 9}, COMPONENTS)
    assert fitting == {"split": 3}
    assert [sentence.split(":")[0] for sentence in sentences] == [
        "count=9 is ignored",
        "gone=2 is ignored",
    ]
    assert "'gone'" in sentences[1]


def test_no_stored_slots_are_fine() -> None:
    assert fitting_scale({}, COMPONENTS) == ({}, [])


def test_what_is_changed_later_keeps_what_was_changed_before() -> None:
    slots = Slots(word_count(MemoryLog({"a": []}), parallelism=3))
    assert slots.change({"count": 1}) == {"count": 3}
    assert slots.change({"split": 2}) == {"split": 3}
    assert slots.change({"count": 2}) == {"count": 1}
    assert slots.changed == {"count": 2, "split": 2}
