"""Topologies over two databases, with a fork, for tests of swaps."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError

from support.saved_rigs import SPOUTS
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState, SqlTable
from txstream.bolts.append import SqlAppendBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.engine.start.driver import Driver
from txstream.plugins.change import rewind_command, rewinding, swap_command, swapping
from txstream.plugins.change.rewinding import Rewound, rewind_in
from txstream.plugins.change.savepoints import create_savepoint, opened
from txstream.plugins.change.swapping import Side, Swapped, swap_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.testing import driver as testing_driver
from txstream.settings import Settings
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.state import StateDatabase
from txstream.testing import TopologyTest

WORDS = [("a", 2), ("b", 2), ("a", 2)]
REMOVABLE = [("a", 1, False), ("b", 1, False), ("a", 2, False), ("b", 3, True)]
MORE = [("c", 2), ("a", 2), ("d", 2)]


class Died(BaseException):
    """As when the process is killed."""


@contextlib.contextmanager
def dies_at(step: str) -> Iterator[None]:
    """Let a swap end at a step, as if it was killed there."""

    def reached(name: str) -> None:
        if name == step:
            raise Died

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(swapping, "_reached", reached)
        yield


class Pair:
    """Words counted in two databases, and a fork of that which counts them twice as much."""

    def __init__(self, urls: Sequence[str], source: MemorySpout) -> None:
        self.source, self.urls = source, list(urls)
        self.settings = Settings(database=self.urls[0])
        self.tests: dict[str, TopologyTest] = {}
        self.databases: Sequence[StateDatabase] = ()

    def code(
        self, name: str, spout: Any, *, suffix: str = "", weight: int = 1, records: int = 2
    ) -> TransactionalTopologyBuilder:
        builder = TransactionalTopologyBuilder(name, "words", spout(self.source, max_batch_records=records))
        for number, url in enumerate(self.urls):
            table = f"words_{number}{suffix}"
            state = SqlState(table, key="word string", value="n bigint", index_txid=number == 0, url=url)
            bolt = SqlStateBolt(state, n=Count() if weight == 1 else Sum("number"))
            builder.set_committer_bolt(f"store{number}", bolt).fields_grouping("words", "word")
        return builder

    def start(self, name: str, spout: Any, **options: Any) -> TopologyTest:
        test = self.tests[name] = TopologyTest(self.code(name, spout, **options), database=self.urls[0])
        test.__enter__()
        return test

    def go_on(self, spout: Any = OpaqueSpout, *, weight: int) -> None:
        """Run the topology with this code, in the same ZooKeeper."""
        self.tests["words"].restart(self.code("words", spout, weight=weight))
        self.tests["words"].run()

    def side(self, name: str) -> Side:
        with contextlib.suppress(UsageError):  # it does not run
            self.tests[name].crash()
        codec = MetaCodec(MemoryRange)
        store = MemoryProgress(self.tests[name]._control.driver._world.tree, name, codec)
        identity = store.read_identity()
        assert identity is not None
        return Side(identity, store, codec)

    def swap(self, **options: Any) -> Swapped:
        sides = self.side("words"), self.side("new")
        with opened("words", self.settings) as databases:
            self.databases = databases
            return swap_in(*sides, "new", databases, **options)

    def rewind(self, to: str) -> Rewound:
        side = self.side("words")
        with opened("words", self.settings) as databases:
            self.databases = databases
            return rewind_in("words", to, side.identity, side.store, databases, side.codec)

    def asked(self, number: int, query: str) -> list[tuple[Any, ...]]:
        """Ask a database, without us."""
        engine = create_engine(self.urls[number], poolclass=NullPool)
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    def done(self, number: int, *statements: str) -> None:
        engine = create_engine(self.urls[number], poolclass=NullPool)
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(text(statement))

    def rows(self, number: int, table: str) -> dict[str, tuple[int, int]]:
        rows = self.asked(number, f"SELECT word, n, txid FROM {table}")
        return {word: (n, txid) for word, n, txid in rows}

    def totals(self, suffix: str = "") -> list[dict[str, int]]:
        tables = ((number, f"words_{number}{suffix}") for number in (0, 1))
        return [{word: n for word, (n, _) in self.rows(*one).items()} for one in tables]

    def ledger(self, number: int) -> list[tuple[int, str, dict[str, Any]]]:
        query = "SELECT txid, status, details FROM txstream_batch WHERE topology = 'words' ORDER BY txid"
        rows = self.asked(number, query)
        return [(txid, status, json.loads(details or "{}").get("swap")) for txid, status, details in rows]


class Mirror(Pair):
    """The last row of each word, which can be removed, and its sum, whose changes leave for a topic."""

    changes_to: Any = "changes"

    def code(
        self, name: str, spout: Any, *, suffix: str = "", weight: int = 1, records: int = 2
    ) -> TransactionalTopologyBuilder:
        builder = TransactionalTopologyBuilder(name, "words", spout(self.source, max_batch_records=records))
        last = SqlTable(
            f"last{suffix}", "number bigint, gone boolean", key="word string", on_conflict="replace",
            removed_by="gone", sequence_by="number", url=self.urls[0],
        )  # fmt: skip
        builder.set_bolt("keep", SqlAppendBolt(last, order_by="number")).fields_grouping("words", "word")
        topic = None if suffix else self.changes_to
        sums = SqlState(
            f"sums{suffix}", key="word string", value="n bigint", url=self.urls[1], changes_to=topic,
            index_txid=True,
        )  # fmt: skip
        bolt = SqlStateBolt(sums, n=Sum("number") if weight == 1 else Count())
        builder.set_committer_bolt("store", bolt).fields_grouping("words", "word")
        return builder


def truth(words: str, weight: int = 1) -> list[dict[str, int]]:
    return [{word: n * weight for word, n in Counter(words).items()}] * 2


def begin(pair: Pair, spout: Any = OpaqueSpout, records: int = 1) -> None:
    """The topology has counted, and the fork too, with more batches than it."""
    pair.start("words", spout).run()
    pair.start("new", spout, suffix="__new", weight=2, records=records).run()


@contextlib.contextmanager
def running(pair: Pair) -> Iterator[None]:
    """Let its starts finish what was broken off; close its topologies at the end."""
    with pytest.MonkeyPatch.context() as patch:
        settlers = [rewind_command.settle, swap_command.settle]
        patch.setattr(testing_driver, "Driver", partial(Driver, settlers=settlers))
        try:
            yield
        finally:
            for test in pair.tests.values():
                test.close()


def nothing_is_changed_while_one_is_away(
    pair: Pair, leave: Callable[[], None], come_back: Callable[[], None]
) -> None:
    """The second database goes away before a command begins, and once the first has done its part."""

    def reached(step: str) -> None:
        if step in ("database 0 swapped", "database 0 put back"):
            leave()

    begin(pair)
    create_savepoint("words", "monday", pair.settings)
    pair.source.append("words/0", *MORE)
    for name in ("words", "new"):
        pair.tests[name].run()
    leave()
    for command in (pair.swap, partial(pair.rewind, "monday")):
        with pytest.raises(ServiceUnavailableError):
            command()
    come_back()
    assert (pair.totals(), len(pair.ledger(0))) == (truth("abacad"), 4)
    for module, command, after, txid in (
        (rewinding, partial(pair.rewind, "monday"), truth("aba"), 5),
        (swapping, pair.swap, truth("abacad", 2), 8),
    ):
        before = pair.totals()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "_reached", reached)
            with pytest.raises(ServiceUnavailableError):
                command()
        assert pair.ledger(0)[-1][0] == txid
        come_back()
        assert pair.totals() == [after[0], before[1]], "the databases are apart"
        weight = 2 if module is swapping else 1
        pair.tests["words"].restart(pair.code("words", OpaqueSpout, weight=weight))
        assert pair.totals() == after, "the next start finishes it"
        pair.tests["words"].run()
        assert pair.totals() == truth("abacad", weight)


def removed_rows_and_changes_go_along(pair: Mirror, spout: str) -> None:
    begin(pair, SPOUTS[spout])
    pair.done(0, "CREATE VIEW most AS SELECT max(number) AS n FROM last")
    done = pair.swap()
    assert done.tables == ("last", "sums", "sums_changes")
    shown, changes = "SELECT word, number FROM ", "SELECT txid, word, n, txstream_gone FROM sums_changes"
    assert pair.asked(0, f"{shown} last") == pair.asked(0, f"{shown} last__before_new") == [("a", 2)]
    assert pair.asked(1, "SELECT word, n FROM sums ORDER BY word") == [("a", 2), ("b", 2)]
    told = [row for row in pair.asked(1, changes) if row[0] == done.txid]
    assert told == [(done.txid, "a", 2, 0), (done.txid, "b", 2, 0)] or told == [(done.txid, "b", 2, 0)]
    pair.source.append("words/0", ("b", 2, False), ("c", 9, False))
    pair.go_on(SPOUTS[spout], weight=2)
    rows = pair.asked(0, f"{shown} last ORDER BY word")
    assert rows == [("a", 2), ("c", 9)], "an older row brings nothing back"
    assert pair.asked(0, "SELECT n FROM most") == [(9,)]
    back = pair.swap(back=True)
    assert pair.asked(0, f"{shown} last") == [("a", 2)]
    told = sorted(row[1:] for row in pair.asked(1, changes) if row[0] == back.txid)
    assert told == [("a", 3, 0), ("b", 4, 0), ("c", 1, 1)], "what differs, and what is gone"
    pair.go_on(SPOUTS[spout], weight=1)
    assert pair.asked(0, f"{shown} last ORDER BY word") == [("a", 2), ("c", 9)]
    assert pair.asked(1, "SELECT word, n FROM sums ORDER BY word") == [("a", 3), ("b", 6), ("c", 9)]
    with opened("words", pair.settings) as databases:
        for database in databases:
            with database.sessions.writing("dropping") as (connection, _):
                swapping.drop_kept_in(connection, "words")
    for number, table in ((0, "last__before_new"), (0, "last__before_new__rows"), (1, "sums__before_new")):
        with pytest.raises(DBAPIError):
            pair.asked(number, f"SELECT * FROM {table}")
