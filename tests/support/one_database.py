"""A topology with two tables, each with a URL of its own, and what must come of it on a real server."""

from __future__ import annotations

from collections import Counter
from contextlib import closing

import pytest

from support.committing import WORDS, state, word_source
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import TopologyError
from txstream.inspect.databases import open_databases
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.state import open_database
from txstream.testing import TopologyTest


def two_tables(source: MemorySpout, first: str | None, second: str | None) -> Topology:
    builder = TransactionalTopologyBuilder("two", "words", OpaqueSpout(source, max_batch_records=2))
    for table, url in (("one", first), ("two", second)):
        bolt = SqlStateBolt(state(table, url), n=Count())
        builder.set_bolt(table, bolt).fields_grouping("words", "word")
    return builder.build()


def check_refused(first: str, second: str) -> None:
    """The message must name both URLs."""
    with word_source() as source:
        test = TopologyTest(two_tables(source, first, second))
        with pytest.raises(TopologyError, match="one database under two URLs") as told, test:
            pass
    for url in (first, second):
        with closing(open_database(url)) as database:
            assert database.display_url in str(told.value)


def check_one(first: str, second: str) -> None:
    """What was refused has left nothing, and a run with one URL is right."""
    with word_source() as source, TopologyTest(two_tables(source, first, first)) as test:
        test.run()
    assert stored(first, "one") == stored(second, "two") == Counter(WORDS)


def check_two(first: str, second: str) -> None:
    """Each table is where its URL leads, and whoever looks finds both."""
    with word_source() as source, TopologyTest(two_tables(source, first, second)) as test:
        test.run()
    assert stored(first, "one") == stored(second, "two") == Counter(WORDS)
    with open_databases(Settings(database=first, state_databases=(second,)), "two") as databases:
        assert len(databases.opened) == 2
        assert databases.listed_twice() == []


def check_read_once(run_with: str, looked_at: str) -> None:
    with word_source() as source, TopologyTest(two_tables(source, run_with, run_with)) as test:
        test.run()
    with open_databases(Settings(database=looked_at), "two") as databases:
        (one,) = databases.opened
        assert databases.missing == []
        assert len(one.batches("two")) == len(WORDS) / 2


def stored(url: str, table: str) -> dict[str, int]:
    with closing(open_database(url)) as database:
        return {row["word"]: row["n"] for row in database.top(table, topology="two", n=99)}
