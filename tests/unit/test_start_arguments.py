"""What `start` and `run` refuse before they do anything."""

from __future__ import annotations

from typing import Any

import pytest
from support.inmemory import MemoryLog, MemorySource
from support.lists import each

from txstream import (
    Count,
    OpaqueSpout,
    Settings,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalTopologyBuilder,
    UsageError,
)
from txstream.engine.run import run, start


def builder() -> TransactionalTopologyBuilder:
    source = OpaqueSpout(MemorySource(MemoryLog({}), "word string"))
    made = TransactionalTopologyBuilder("t", "lines", source)
    store = SqlStateBolt(SqlState("words", key="word string", value="n bigint"), n=Count())
    made.set_committer_bolt("store", store).fields_grouping("lines", "word")
    return made


def topology() -> Topology:
    return builder().build()


@each("begin", [run, start])
@each(
    ("make_arguments", "told"),
    [
        (
            lambda: (topology(), Settings()),
            "Settings were given where a SparkSession belongs; write settings=",
        ),
        (lambda: (topology(), "local[2]"), "'local\\[2\\]' is no SparkSession"),
        (lambda: (topology(), None, "settings.toml"), "'settings.toml' is no txstream.Settings"),
        (lambda: (builder(),), "TransactionalTopologyBuilder .* is no Topology; end it with .build()"),
        (lambda: (topology,), "function topology .* is no Topology; give what the factory returns"),
    ],
)
def test_what_is_in_another_ones_place_is_told_in_a_sentence(
    begin: Any, make_arguments: Any, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        begin(*make_arguments())
