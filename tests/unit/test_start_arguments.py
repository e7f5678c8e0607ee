"""What `start` and `run` refuse before they do anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.lists import each

from txstream import (
    Count,
    MemorySpout,
    OpaqueSpout,
    Settings,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalTopologyBuilder,
    UsageError,
)
from txstream.engine.run import run, start
from txstream.testing import TopologyTest


def builder() -> TransactionalTopologyBuilder:
    made = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySpout("word string")))
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


@each("begin", [run, start])
def test_rows_in_this_process_are_refused_on_spark_before_anything_is_written(
    begin: Any, tmp_path: Path
) -> None:
    told = "'lines' reads a MemorySpout, .* where Spark's workers cannot read it; use a FileSpout, or run it"
    with pytest.raises(UsageError, match=told):
        begin(topology(), settings=Settings(zookeeper="nowhere:1", data_dir=tmp_path / "data"))
    assert list(tmp_path.iterdir()) == []
    session: Any = object()
    with pytest.raises(UsageError, match=told), TopologyTest(topology(), spark=session):
        pass
