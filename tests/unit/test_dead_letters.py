"""The setting of dead letters: what it allows, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

import txstream
from txstream import DeadLetters, TopologyError


@pytest.mark.parametrize(
    ("records", "most"), [(1, 1), (99, 1), (100, 1), (250, 2), (10_000, 100), (500_000, 100)]
)
def test_a_batch_may_lose_one_record_at_least_and_the_lesser_limit_at_most(records: int, most: int) -> None:
    assert DeadLetters().most_of(records) == most


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"max_per_batch": 0}, "max_per_batch of dead letters is 0"),
        ({"max_per_batch": True}, "max_per_batch of dead letters is True"),
        ({"max_share": 0}, "max_share of dead letters is 0"),
        ({"max_share": 1.5}, "max_share of dead letters is 1.5"),
        ({"topic": ""}, "the topic of dead letters is ''"),
    ],
)
def test_impossible_limits_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        DeadLetters(**setting)


def test_the_setting_is_exported() -> None:
    assert txstream.DeadLetters is DeadLetters
