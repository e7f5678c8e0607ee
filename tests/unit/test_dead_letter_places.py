"""Where dead letters are kept: in the topology's first database, and only in one that can keep them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalTopologyBuilder,
    Tuple,
)
from txstream.core.errors import TopologyError
from txstream.core.fault_points import Point
from txstream.engine.commit.state_targets import state_targets
from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.state import StateBackend, open_database
from txstream.testing import TopologyTest


class Parse(BasicBolt):
    """Fails at the word "bad"."""

    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        if tup["word"] == "bad":
            raise ValueError("bad")
        collector.emit((tup["word"],))


class KeepsNone(MemoryBackend):
    """A store whose transactions have no dead letters."""

    keeps_dead_letters: ClassVar[bool] = False


def topology(source: MemorySpout, *urls: str | None, dead_letters: DeadLetters | None) -> Topology:
    """Words are counted in a table at each URL."""
    spout = OpaqueSpout(source)
    builder = TransactionalTopologyBuilder("words", "words", spout, dead_letters=dead_letters)
    builder.set_bolt("parse", Parse()).shuffle_grouping("words")
    for number, url in enumerate(urls):
        state = SqlState(f"words_{number}", key="word string", value="n bigint", url=url)
        store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
        store.fields_grouping("parse", "word")
    return builder.build()


def places(url: str) -> list[str]:
    database = open_database(url)
    try:
        return [one.place for one in database.dead_letters("words")]
    finally:
        database.close()


@pytest.mark.parametrize("at", [Point.BETWEEN_COMMITS, Point.BEFORE_COMMIT, Point.INSIDE_COMMIT])
def test_they_are_in_the_first_of_two_databases(tmp_path: Path, at: Point) -> None:
    first, second = (f"sqlite:///{tmp_path / name}.db" for name in ("first", "second"))
    rows = {"p": ["a", "bad", "b"]}
    with MemorySpout("word string", rows) as source:
        asked = topology(source, first, second, dead_letters=DeadLetters())
        with TopologyTest(asked, database=first) as test:
            test.crash(at=at, txid=1)
            test.restart()
            test.run()
            assert (test.table("words_0"), test.table("words_1")) == ({"a": 1, "b": 1}, {"a": 1, "b": 1})
    assert (places(first), places(second)) == (["p@1"], [])


def test_a_first_store_that_keeps_none_is_refused() -> None:
    def opened(url: str) -> StateBackend:
        return KeepsNone(url) if url == "memory://none" else open_database(url)

    with MemorySpout("word string", {"p": ["a"]}) as source:
        stores = "memory://none", "memory://keeps"
        asked = topology(source, *stores, dead_letters=DeadLetters())
        with pytest.raises(TopologyError, match=r"memory://none .KeepsNone. cannot keep any"):
            state_targets(asked, "", opened)
        state_targets(topology(source, *stores, dead_letters=None), "", opened)
        state_targets(topology(source, *stores[::-1], dead_letters=DeadLetters()), "", opened)
