"""A topology over two databases, for tests of savepoints and of going back to them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txstream.api.bolts import BasicBolt
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import NonTransactionalSpout, OpaqueSpout, TransactionalSpout
from txstream.api.state import SqlState, SqlTable
from txstream.bolts.append import SqlAppendBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.dead_letters import DeadLetters
from txstream.settings import Settings
from txstream.spouts.memory import MemorySpout
from txstream.testing import TopologyTest

SPOUTS = {"opaque": OpaqueSpout, "transactional": TransactionalSpout}
BOTH = pytest.mark.parametrize("spout", SPOUTS)


class Check(BasicBolt):
    """Fails at the words that are in `bad`."""

    output = "word string, number bigint"
    bad: ClassVar[set[str]] = set()

    def execute(self, tup: Any, collector: Any) -> None:
        if tup["word"] in self.bad:
            raise ValueError(tup["word"])
        collector.emit((tup["word"], tup["number"]))


class SavedRig:
    """Words counted in one database; counted and kept as rows in another."""

    def __init__(self, folder: Path, source: MemorySpout) -> None:
        self.source = source
        self.files = [folder / f"{name}.db" for name in ("first", "second")]
        self.urls = [f"sqlite:///{file}" for file in self.files]
        self.settings = Settings(database=self.urls[0])
        self.test: TopologyTest | None = None

    def start(
        self,
        spout: Any = OpaqueSpout,
        commit: Any = "driver",
        letters: DeadLetters | None = None,
        tells: bool = False,
    ) -> TopologyTest:
        """`tells`: changes of the tables wait for topics, and 5 in `kept` removes a row."""
        source, words = spout(self.source, max_batch_records=2), "words"
        builder = TransactionalTopologyBuilder("words", words, source, commit=commit, dead_letters=letters)
        if letters is not None:
            words = "check"
            builder.set_bolt(words, Check()).shuffle_grouping("words")
        for number, url in enumerate(self.urls):
            state = SqlState(
                f"words_{number}",
                key="word string",
                value="n bigint",
                url=url,
                changes_to=f"{number}" if tells else None,
            )
            store = builder.set_committer_bolt(f"store{number}", SqlStateBolt(state, n=Count()))
            store.fields_grouping(words, "word")
        if spout is not NonTransactionalSpout:
            rows = SqlTable(
                "kept",
                "number bigint",
                key="word string",
                on_conflict="replace",
                url=self.urls[1],
                changes_to="kept" if tells else None,
                removed_by="number = 5" if tells else None,
            )
            builder.set_bolt("keep", SqlAppendBolt(rows, order_by="number")).fields_grouping(words, "word")
        self.test = TopologyTest(builder, database=self.urls[0])
        self.test.__enter__()
        return self.test

    def rows(self, number: int, table: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.files[number]) as connection:
            return sorted(connection.execute(f'SELECT * FROM "{table}"'))

    def tables(self, number: int) -> set[str]:
        with sqlite3.connect(self.files[number]) as connection:
            return {
                name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
            }

    def all_rows(self) -> dict[str, list[tuple[Any, ...]]]:
        names = ((0, "words_0"), (1, "words_1"), (1, "kept"))
        return {name: self.rows(number, name) for number, name in names}
