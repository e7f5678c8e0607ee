"""Swap: a fork's tables take the names of a topology's, finished or not begun."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.saved_rigs import BOTH, SPOUTS
from support.swap_rigs import (
    MORE,
    REMOVABLE,
    WORDS,
    Died,
    Mirror,
    Pair,
    begin,
    dies_at,
    nothing_is_changed_while_one_is_away,
    removed_rows_and_changes_go_along,
    running,
    truth,
)

from txstream import Versions, inspect
from txstream.api.spouts import OpaqueSpout
from txstream.core.errors import (
    CorruptStateError,
    ProgressMismatchError,
    StaleAttemptError,
    UsageError,
)
from txstream.core.transaction import AttemptId
from txstream.plugins.change import swapping
from txstream.plugins.change.savepoints import opened
from txstream.spouts.memory import MemorySpout


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"{name}.db" for name in ("first", "second")]


@pytest.fixture
def pair(files: list[Path]) -> Iterator[Pair]:
    with MemorySpout("word string, number bigint", {"words/0": WORDS}) as source:
        made = Pair([f"sqlite:///{file}" for file in files], source)
        with running(made):
            yield made


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


def test_what_hangs_on_the_name_goes_with_it(pair: Pair, files: list[Path]) -> None:
    begin(pair)
    with sqlite3.connect(files[0]) as file:
        file.execute("CREATE INDEX by_n ON words_0 (n)")
        file.execute("CREATE VIEW most AS SELECT word FROM words_0 ORDER BY n DESC LIMIT 1")

    def hung() -> list[tuple[str, str]]:
        with sqlite3.connect(files[0]) as file:
            query = "SELECT name, tbl_name FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
            assert file.execute("SELECT word FROM most").fetchall() == [("a",)]
            return sorted(file.execute(query))

    pair.swap()
    before, live = "words_0__before_new", "words_0"
    assert hung() == [("by_n", live), (f"ix_{before}_txid", before), (f"ix_{live}_txid", live)]
    pair.swap(back=True)
    assert hung() == [("by_n", live), (f"ix_{before}_txid", before), (f"ix_{live}_txid", live)]
    pair.go_on(weight=1)


@BOTH
def test_removed_rows_and_changes_to_a_topic_go_along(files: list[Path], spout: str) -> None:
    with MemorySpout("word string, number bigint, gone boolean", {"words/0": REMOVABLE}) as source:
        pair = Mirror([f"sqlite:///{file}" for file in files], source)
        with running(pair):
            removed_rows_and_changes_go_along(pair, spout)


def test_versions_go_along_and_are_told_nothing(files: list[Path]) -> None:
    """What a row was before a swap is in no version: its numbers are another topology's."""
    with MemorySpout("word string, number bigint, gone boolean", {"words/0": REMOVABLE}) as source:
        pair = Mirror([f"sqlite:///{file}" for file in files], source)
        pair.changes_to = Versions()
        with running(pair):
            begin(pair, OpaqueSpout)
            before = pair.asked(1, "SELECT * FROM sums_versions ORDER BY 1, 2")
            assert before
            assert pair.swap().tables == ("last", "sums", "sums_versions")
            assert pair.asked(1, "SELECT * FROM sums_versions ORDER BY 1, 2") == before
            pair.source.append("words/0", ("b", 2, False))
            pair.go_on(OpaqueSpout, weight=2)
            assert pair.asked(1, "SELECT word, n FROM sums ORDER BY word") == [("a", 2), ("b", 3)]
            (last,) = pair.asked(1, "SELECT max(txid) FROM sums_versions")
            query = f"SELECT word, n FROM sums_versions WHERE txid = {last[0]}"
            assert pair.asked(1, query) == [("b", 2)]


STEPS = [
    *("checked", "identity narrowed", "plans dropped", "inside", "database 0 swapped", "database 1 swapped"),
    *("advanced", "identity replaced"),
]


@pytest.mark.soak
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("by", ["start", "command"])
def test_a_swap_that_dies_is_finished_or_not_begun(pair: Pair, step: str, back: bool, by: str) -> None:
    begin(pair)
    if back:
        pair.swap()
        pair.source.append("words/0", *MORE)
        pair.go_on(weight=2)
    before, after = (truth("abacad", 2), truth("aba")) if back else (truth("aba"), truth("aba", 2))
    txid = pair.ledger(0)[-1][0] + 1
    identity = pair.side("new").identity
    pair.side("words").store.beside("new").create_identity(identity)
    with dies_at(step), pytest.raises(Died):
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
    if by == "start" and not back:
        left = pair.side("words").store.beside("new").read_identity()
        assert (left is None) == begun, "ZooKeeper forgets the fork"
        pair.tests["words"].restart(pair.code("words", OpaqueSpout, weight=weight))
    swaps = [[one for one, _, told in pair.ledger(number) if told] for number in (0, 1)]
    assert [one[-1:] for one in swaps] == ([[txid]] * 2 if begun else [[3] if back else []] * 2)
    pair.source.append("words/0", ("e", 2))
    pair.go_on(weight=weight)
    assert pair.totals() == truth("abacade" if back else "abae", weight)
    txids = [one for one, _, _ in pair.ledger(0)]
    assert txids == list(range(1, len(txids) + 1)), "a txid is never used again"


def test_nothing_is_changed_while_a_database_is_away_and_later_all_is(pair: Pair, files: list[Path]) -> None:
    away = files[1].with_suffix(".away")

    def leave() -> None:
        for one in pair.databases:
            one.sessions.close()
        files[1].rename(away)
        files[1].mkdir()  # opening it is refused

    def come_back() -> None:
        files[1].rmdir()
        away.rename(files[1])

    nothing_is_changed_while_one_is_away(pair, leave, come_back)


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


def test_what_is_in_the_way_is_named(pair: Pair, files: list[Path]) -> None:
    begin(pair)
    with sqlite3.connect(files[1]) as file:
        file.execute("CREATE TRIGGER told AFTER INSERT ON words_1 BEGIN SELECT 1; END")
    with pytest.raises(UsageError, match="trigger told on words_1; nothing was changed"):
        pair.swap()
    with pytest.raises(UsageError, match="nothing is kept of one"):
        pair.swap(back=True)
    with sqlite3.connect(files[1]) as file:
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
    with sqlite3.connect(files[0]) as file:
        assert not file.execute("SELECT * FROM sqlite_master WHERE name LIKE '%before%'").fetchall()
