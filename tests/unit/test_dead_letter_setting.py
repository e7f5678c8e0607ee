"""The setting of dead letters: what it allows, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from support.lists import each

import txstream
from txstream import (
    Count,
    DeadLetters,
    MemorySpout,
    NonTransactionalSpout,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TopologyError,
    TransactionalTopologyBuilder,
)
from txstream.api.spouts import SourceSpout
from txstream.cli.main import main


@each(
    ("records", "most"),
    [(1, 10), (3, 10), (20, 10), (100, 10), (1_000, 10), (2_500, 25), (10_000, 100), (500_000, 100)],
)
def test_a_batch_may_always_lose_ten_and_a_large_one_the_lesser_limit(records: int, most: int) -> None:
    assert DeadLetters().most_of(records) == most


def test_the_number_is_a_limit_of_small_batches_too() -> None:
    assert DeadLetters(max_per_batch=3).most_of(100) == 3


@each(
    ("setting", "words"),
    [
        ({"max_per_batch": 0}, "max_per_batch of dead letters is 0"),
        ({"max_per_batch": True}, "max_per_batch of dead letters is True"),
        ({"max_share": 0}, "max_share of dead letters is 0"),
        ({"max_share": 1.5}, "max_share of dead letters is 1.5"),
    ],
)
def test_impossible_limits_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(TopologyError, match=words):
        DeadLetters(**setting)


def test_the_setting_is_exported() -> None:
    assert txstream.DeadLetters is DeadLetters


def builder(spout: type[SourceSpout[Any]], dead_letters: Any) -> TransactionalTopologyBuilder:
    source = MemorySpout("word string", {"p": ["a"]})
    return TransactionalTopologyBuilder("t", "words", spout(source), dead_letters=dead_letters)


def test_a_built_topology_has_the_setting() -> None:
    given = builder(OpaqueSpout, DeadLetters(max_per_batch=7))
    state = SqlState("counts", key="word string", value="n bigint")
    given.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("words", "word")
    assert given.build().dead_letters == DeadLetters(max_per_batch=7)


@pytest.mark.parametrize(
    ("spout", "setting", "words"),
    [
        (NonTransactionalSpout, DeadLetters(), "which a non-transactional spout is not"),
        (OpaqueSpout, 100, "dead_letters is 100; it must be DeadLetters"),
    ],
)
def test_a_builder_refuses_what_is_no_setting_or_not_exact(
    spout: type[SourceSpout[Any]], setting: Any, words: str
) -> None:
    with pytest.raises(TopologyError, match=words):
        builder(spout, setting)


def test_the_command_refuses_no_letters_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "txstream.examples.word_count:topology", "--dead-letters", "0"]) == 2
    assert "--dead-letters is 0" in capsys.readouterr().err
