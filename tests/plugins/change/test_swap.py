"""Swap: a fork's tables take the names of a topology's, finished or not begun."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.saved_rigs import BOTH, SPOUTS

from txstream import inspect
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Sum
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.bolts.sql import SqlStateBolt
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import CorruptStateError, ProgressMismatchError, StaleAttemptError, UsageError
from txstream.core.transaction import AttemptId
from txstream.engine.start.driver import Driver
from txstream.plugins.change import rewind_command, swap_command, swapping
from txstream.plugins.change.savepoints import opened
from txstream.plugins.change.swapping import Side, Swapped, swap_in
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.testing import driver as testing_driver
from txstream.settings import Settings
from txstream.spouts.memory import MemoryRange, MemorySpout
from txstream.testing import TopologyTest


class Died(BaseException):
    """As when the process is killed."""


class Pair:
    """Words counted in two databases, and a fork of that which counts them twice as much."""

    def __init__(self, folder: Path, source: MemorySpout) -> None:
        self.source = source
        self.files = [folder / f"{name}.db" for name in ("first", "second")]
        self.urls = [f"sqlite:///{file}" for file in self.files]
        self.settings = Settings(database=self.urls[0])
        self.tests: dict[str, TopologyTest] = {}

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
            return swap_in(*sides, "new", databases, **options)

    def rows(self, number: int, table: str) -> dict[str, tuple[int, int]]:
        with sqlite3.connect(self.files[number]) as connection:
            query = f'SELECT word, n, txid FROM "{table}"'
            return {word: (n, txid) for word, n, txid in connection.execute(query)}

    def totals(self, suffix: str = "") -> list[dict[str, int]]:
        tables = ((number, f"words_{number}{suffix}") for number in (0, 1))
        return [{word: n for word, (n, _) in self.rows(*one).items()} for one in tables]

    def ledger(self, number: int) -> list[tuple[int, str, dict[str, Any]]]:
        with sqlite3.connect(self.files[number]) as connection:
            query = "SELECT txid, status, details FROM txstream_batch WHERE topology = 'words' ORDER BY txid"
            rows = connection.execute(query).fetchall()
        return [(txid, status, json.loads(details or "{}").get("swap")) for txid, status, details in rows]


WORDS = [("a", 2), ("b", 2), ("a", 2)]
MORE = [("c", 2), ("a", 2), ("d", 2)]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    settlers = [rewind_command.settle, swap_command.settle]
    monkeypatch.setattr(testing_driver, "Driver", partial(Driver, settlers=settlers))
    with MemorySpout("word string, number bigint", {"words/0": WORDS}) as source:
        made = Pair(tmp_path, source)
        yield made
        for test in made.tests.values():
            test.close()


def truth(words: str, weight: int = 1) -> list[dict[str, int]]:
    return [{word: n * weight for word, n in Counter(words).items()}] * 2


def begin(pair: Pair, spout: Any = OpaqueSpout, records: int = 1) -> None:
    """The topology has counted, and the fork too, with more batches than it."""
    pair.start("words", spout).run()
    pair.start("new", spout, suffix="__new", weight=2, records=records).run()


@BOTH
def test_the_forks_rows_take_the_names_and_go_back_again(pair: Pair, spout: str) -> None:
    begin(pair, SPOUTS[spout])
    assert pair.totals() == truth("aba")
    assert {txid for _, txid in pair.rows(0, "words_0__new").values()} == {2, 3}
    done = pair.swap()
    assert (done.txid, done.tables) == (3, ("words_0", "words_1"))
    assert pair.totals() == truth("aba", 2)
    assert pair.totals("__before_new") == truth("aba")
    assert {txid for _, txid in pair.rows(0, "words_0").values()} == {3}, "numbers of the topology"
    pair.source.append("words/0", *MORE)
    pair.go_on(SPOUTS[spout], weight=2)
    assert pair.totals() == truth("abacad", 2), "it goes on from the fork's places"
    assert [txid for txid, _, _ in pair.ledger(0)] == [1, 2, 3, 4, 5], "a txid is never used again"
    back = pair.swap(back=True)
    assert (back.txid, back.back) == (6, True)
    assert pair.totals() == truth("aba")
    assert pair.totals("__before_new") == truth("abacad", 2)
    pair.go_on(SPOUTS[spout], weight=1)
    assert pair.totals() == truth("abacad"), "what came since the swap is read again"


def test_what_hangs_on_the_name_goes_with_it(pair: Pair) -> None:
    begin(pair)
    with sqlite3.connect(pair.files[0]) as file:
        file.execute("CREATE INDEX by_n ON words_0 (n)")
        file.execute("CREATE VIEW most AS SELECT word FROM words_0 ORDER BY n DESC LIMIT 1")

    def hung() -> list[tuple[str, str]]:
        with sqlite3.connect(pair.files[0]) as file:
            query = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            assert file.execute("SELECT word FROM most").fetchall() == [("a",)]
            return sorted(file.execute(query))

    pair.swap()
    before, live = "words_0__before_new", "words_0"
    assert hung() == [("by_n", live), (f"ix_{before}_txid", before), (f"ix_{live}_txid", live)]
    pair.swap(back=True)
    assert hung() == [("by_n", live), (f"ix_{before}_txid", before), (f"ix_{live}_txid", live)]
    pair.go_on(weight=1)


STEPS = [
    *("checked", "identity narrowed", "plans dropped", "inside", "database 0 swapped", "database 1 swapped"),
    *("advanced", "identity replaced"),
]


@pytest.mark.soak
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("by", ["start", "command"])
def test_a_swap_that_dies_is_finished_or_not_begun(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, step: str, back: bool, by: str
) -> None:
    begin(pair)
    if back:
        pair.swap()
        pair.source.append("words/0", *MORE)
        pair.go_on(weight=2)
    before, after = (truth("abacad", 2), truth("aba")) if back else (truth("aba"), truth("aba", 2))
    txid = pair.ledger(0)[-1][0] + 1
    with monkeypatch.context() as patch:
        patch.setattr(swapping, "_reached", partial(_die_at, step))
        with pytest.raises(Died):
            pair.swap(back=back)
    begun = STEPS.index(step) >= STEPS.index("database 0 swapped")
    if not begun:
        assert pair.totals() == before
    if step == "database 0 swapped":
        assert pair.totals() == [after[0], before[1]], "the databases are apart"
    weight = 2 if back != begun else 1
    if by == "command":
        assert pair.swap(back=back).txid == txid
        weight, begun = (1 if back else 2), True
    else:
        pair.tests["words"].restart(pair.code("words", OpaqueSpout, weight=weight))
    assert pair.totals() == (after if begun else before)
    swaps = [[one for one, _, told in pair.ledger(number) if told] for number in (0, 1)]
    assert [one[-1:] for one in swaps] == ([[txid]] * 2 if begun else [[3] if back else []] * 2)
    pair.source.append("words/0", ("e", 2))
    pair.go_on(weight=weight)
    assert pair.totals() == truth("abacade" if back else "abae", weight)
    txids = [one for one, _, _ in pair.ledger(0)]
    assert txids == list(range(1, len(txids) + 1)), "a txid is never used again"


def _die_at(step: str, name: str) -> None:
    if name == step:
        raise Died


def test_a_fork_that_is_behind_is_refused_and_one_that_is_ahead_is_not(pair: Pair) -> None:
    pair.start("words", OpaqueSpout).run()
    fork = pair.start("new", OpaqueSpout, suffix="__new", weight=2, records=1)
    fork.commit()
    before = pair.totals()
    with pytest.raises(UsageError, match="'new' is behind 'words' in words/0 by 2 records"):
        pair.swap()
    assert pair.totals() == before
    fork.restart()
    pair.source.append("words/0", *MORE)
    fork.run()
    assert not pair.swap(dry_run=True).is_done
    assert pair.totals() == before, "a dry run changes nothing"
    pair.swap()
    assert pair.totals() == truth("abacad", 2)
    pair.go_on(weight=2)
    assert pair.totals() == truth("abacad", 2), "nothing of it is read again"


def test_the_forks_driver_of_before_commits_nothing_once_the_swap_has_looked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topology's places would lack what such a batch adds to the tables."""
    begin(pair)
    with opened("words", pair.settings) as databases:
        zombies = [one.read_fence("new") for one in databases]
    pair.source.append("words/0", *MORE)
    woken: list[BaseException] = []

    def wake(step: str) -> None:
        if step != "checked":
            return
        with opened("words", pair.settings) as databases:
            for database, fence in zip(databases, zombies, strict=True):
                assert fence is not None
                states = database.of("new", fence.uuid, pair.tests["new"].topology.semantics)
                try:
                    states.raise_fence(AttemptId(fence.attempt + 7))
                except StaleAttemptError as error:
                    woken.append(error)

    monkeypatch.setattr(swapping, "_reached", wake)
    pair.swap()
    assert len(woken) == 2
    with pytest.raises((CorruptStateError, ProgressMismatchError)):
        pair.tests["new"].restart()
    pair.go_on(weight=2)
    assert pair.totals() == truth("abacad", 2)


def test_a_fork_that_another_driver_leads_meanwhile_is_not_swapped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(pair)

    def lead(step: str) -> None:
        if step == "plans dropped":
            pair.source.append("words/0", *MORE)
            pair.tests["new"].restart()
            pair.tests["new"].run()

    with monkeypatch.context() as patch:
        patch.setattr(swapping, "_reached", lead)
        with pytest.raises(StaleAttemptError):
            pair.swap()
    assert (pair.totals(), pair.totals("__new")) == (truth("aba"), truth("abacad", 2)), "nothing was changed"
    pair.swap()
    pair.go_on(weight=2)
    assert pair.totals() == truth("abacad", 2)


def test_those_who_look_back_count_nothing_of_before(pair: Pair) -> None:
    begin(pair)
    pair.swap()
    pair.source.append("words/0", *MORE)
    pair.go_on(weight=2)
    found = inspect.why(pair.tests["words"].topology, "words_0", ["d"], pair.settings)
    assert ([part.txid for part in found.parts], found.is_complete) == ([5], True)
    found = inspect.why(pair.tests["words"].topology, "words_0", ["a"], pair.settings)
    assert [part.txid for part in found.parts] == [4]
    assert not found.is_complete, "the rest came with the fork's rows"
    options: Any = {"settings": pair.settings, "timeout_seconds": 0}
    assert inspect.wait_for("words", "words", 0, 4, **options).txid == 4
    with pytest.raises(inspect.NotKnownError, match="came with the rows of a fork by txid 3"):
        inspect.wait_for("words", "words", 0, 0, **options)
    assert inspect.replay(pair.tests["words"].topology, 2, pair.settings).same is not None


def test_what_is_in_the_way_is_named(pair: Pair) -> None:
    begin(pair)
    with sqlite3.connect(pair.files[1]) as file:
        file.execute("CREATE TRIGGER told AFTER INSERT ON words_1 BEGIN SELECT 1; END")
    with pytest.raises(UsageError, match="trigger told on words_1; nothing was changed"):
        pair.swap()
    with pytest.raises(UsageError, match="nothing is kept of one"):
        pair.swap(back=True)
    with sqlite3.connect(pair.files[1]) as file:
        file.execute("DROP TRIGGER told")
    pair.swap()
    assert pair.swap().txid == 3, "the same command once more: it is done"
    assert [pair.swap(back=True).txid for _ in "12"] == [4, 4]
    pair.source.append("words/0", *MORE)
    pair.go_on(weight=1)
    with pytest.raises(UsageError, match="was gone back already"):
        pair.swap(back=True)
    with opened("words", pair.settings) as databases:
        for number, database in enumerate(databases):
            with database.sessions.writing("dropping") as (connection, _):
                dropped = swapping.drop_kept_in(connection, "words")
            assert dropped == [f"words_{number}__before_new"]
    with sqlite3.connect(pair.files[0]) as file:
        assert not file.execute("SELECT * FROM sqlite_master WHERE name LIKE '%before%'").fetchall()
