"""Swap, savepoint and rewind in MySQL and MariaDB, where each renaming commits by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mysql_servers import MySQLFamilyServer
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
    removed_rows_and_changes_go_along,
    running,
    truth,
)

from txstream.core.errors import UsageError
from txstream.plugins.change.savepoints import create_savepoint
from txstream.spouts.memory import MemorySpout

pytestmark = pytest.mark.soak
STEPS = [
    *("identity narrowed", "plans dropped", "prepared", "inside", "database 0 recorded", "renamed"),
    *("indexes dropped", "database 0 swapped", "database 1 recorded", "database 1 swapped", "advanced"),
]


@pytest.fixture
def urls(mysql_server: MySQLFamilyServer, unique: str) -> list[str]:
    return [mysql_server.create_database(f"{unique}_{number}") for number in (0, 1)]


@pytest.fixture
def pair(urls: list[str]) -> Iterator[Pair]:
    with MemorySpout("word string, number bigint", {"words/0": WORDS}) as source:
        made = Pair(urls, source)
        with running(made):
            yield made


@BOTH
def test_a_savepoint_is_gone_back_to(pair: Pair, spout: str) -> None:
    pair.start("words", SPOUTS[spout]).run()
    create_savepoint("words", "monday", pair.settings)
    pair.source.append("words/0", *MORE)
    pair.tests["words"].run()
    assert pair.totals() == truth("abacad")
    assert pair.rewind("monday").txid == 5
    assert pair.totals() == truth("aba")
    pair.go_on(SPOUTS[spout], weight=1)
    assert pair.totals() == truth("abacad")


@BOTH
def test_removed_rows_and_changes_to_a_topic_go_along(urls: list[str], spout: str) -> None:
    with MemorySpout("word string, number bigint, gone boolean", {"words/0": REMOVABLE}) as source:
        pair = Mirror(urls, source)
        with running(pair):
            removed_rows_and_changes_go_along(pair, spout)


def test_what_hangs_on_the_name_goes_with_it_or_is_named(pair: Pair) -> None:
    begin(pair)
    pair.done(0, "CREATE INDEX by_n ON words_0 (n)", "ALTER TABLE words_0 COMMENT = 'it''s 100 %'")
    pair.done(0, "CREATE VIEW most AS SELECT max(n) AS n FROM words_0")
    pair.done(1, "CREATE TRIGGER told BEFORE INSERT ON words_1 FOR EACH ROW SET @told = 1")
    with pytest.raises(UsageError, match=r"index by_n, which words_0__new lacks, on words_0.*trigger told"):
        pair.swap()
    pair.done(0, "CREATE INDEX by_n ON words_0__new (n)")
    pair.done(1, "DROP TRIGGER told")
    pair.swap()
    assert pair.totals() == truth("aba", 2)
    assert pair.asked(0, "SELECT n FROM most") == [(4,)]
    comment = "SELECT table_comment FROM information_schema.tables WHERE table_name = 'words_0' "
    assert pair.asked(0, f"{comment} AND table_schema = DATABASE()") == [("it's 100 %",)]
    pair.source.append("words/0", *MORE)
    pair.go_on(weight=2)
    assert pair.totals() == truth("abacad", 2)
    pair.swap(back=True)
    assert pair.totals() == truth("aba")
    pair.go_on(weight=1)
    assert pair.totals() == truth("abacad")


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("by", ["start", "command"])
@pytest.mark.parametrize("step", STEPS)
def test_a_swap_that_dies_is_finished_or_not_begun(pair: Pair, step: str, back: bool, by: str) -> None:
    begin(pair)
    if back:
        pair.swap()
        pair.source.append("words/0", *MORE)
        pair.go_on(weight=2)
    before, after = (truth("abacad", 2), truth("aba")) if back else (truth("aba"), truth("aba", 2))
    with dies_at(step), pytest.raises(Died):
        pair.swap(back=back)
    begun = STEPS.index(step) >= STEPS.index("database 0 recorded")
    if STEPS.index(step) < STEPS.index("renamed"):
        assert pair.totals() == before, "readers see what was there"
    weight = 2 if back != begun else 1
    if by == "command":
        pair.swap(back=back)
        weight, begun = (1 if back else 2), True
    else:
        pair.tests["words"].restart(pair.code("words", SPOUTS["opaque"], weight=weight))
    assert pair.totals() == (after if begun else before)
    pair.source.append("words/0", ("e", 2))
    pair.go_on(weight=weight)
    assert pair.totals() == truth("abacade" if back else "abae", weight)
    txids = [one for one, _, _ in pair.ledger(0)]
    assert txids == list(range(1, len(txids) + 1)), "a txid is never used again"
    marks = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
    assert not begun or not pair.asked(0, f"{marks} AND table_name LIKE 'txstream_swap%'")
