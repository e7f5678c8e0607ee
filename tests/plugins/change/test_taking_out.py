"""`diff --now` while one of the two is ahead: what is taken out of its rows, and what is left out by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from plugins.change.test_forks import ForkRig, more

from txstream import Count, Max, SqlState, SqlStateBolt, SqlTable, Sum
from txstream.bolts.append import SqlAppendBolt
from txstream.cli.beside import beside
from txstream.core.errors import UsageError
from txstream.plugins.change import diff_command
from txstream.plugins.change.diffing import Difference, differences
from txstream.plugins.change.taking_out import LeftOutError, Since
from txstream.spouts.memory import MemorySpout


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ForkRig]:
    with MemorySpout("word string, number bigint", {"words/0": [("a", 1), ("b", 2), ("a", 3)]}) as source:
        made = ForkRig(tmp_path, source)
        yield made
        for test in (made.test, made.forked):
            if test is not None:
                test.close()


def told(found: Difference) -> dict[str, tuple[int, ...]]:
    return {
        one.table: (one.equal, one.only_old, one.only_new, one.different, one.left_out)
        for one in found.states
    }


def test_what_one_has_read_beyond_the_other_is_taken_out(rig: ForkRig) -> None:
    rig.start().run()
    more(rig)
    rig.fork()
    rig.run_fork()
    # The fork is one record further, and then the original three, in a batch that begins before that place.
    rig.source.append("words/0", ("e", 7))
    rig.run_fork()
    assert rig.test is not None
    made = {"words": rig.test.topology, "new": beside(rig.test.topology, "new")}
    with pytest.raises(UsageError, match="'new' is 1 record ahead; leave out --now"):
        differences("words", "new", rig.settings, now=True)
    found = differences("words", "new", rig.settings, now=True, code=made.__getitem__)
    assert found.taken_out == {"new": 1}
    assert found.places == {"words/0": 6}
    assert told(found) == {"kept": (4, 0, 0, 0, 1), "words_0": (4, 0, 0, 0, 0), "words_1": (4, 0, 0, 0, 0)}
    before = rig.all_rows()
    rig.source.append("words/0", ("a", 8), ("f", 9))
    rig.test.run()
    after = rig.all_rows()
    assert after != before
    assert [len(one) for one in (Counter("abacadeaf"), rig.totals(0))] == [6, 6]
    found = differences("words", "new", rig.settings, now=True, code=made.__getitem__)
    assert found.taken_out == {"words": 2}
    assert found.places == {"words/0": 7}
    assert told(found) == {"kept": (4, 0, 0, 0, 2), "words_0": (5, 0, 0, 0, 0), "words_1": (5, 0, 0, 0, 0)}
    assert rig.all_rows() == after, "nothing is written"
    assert not found.same, "rows were left out"
    (kept, *_) = found.states
    assert kept.note == "2 rows left out: what a replaced row held is not kept"
    words = " ".join(diff_command.in_words(found, None))
    assert "are compared without the last 2 records of words" in words
    assert "state kept: rows are the same, 2 rows left out; state words_0: rows are the same" in words


def test_what_differs_beside_it_is_told(rig: ForkRig) -> None:
    rig.start().run()
    more(rig)
    rig.fork(start="2")  # without ("a", 1), ("b", 2)
    rig.run_fork()
    rig.source.append("words/0", ("a", 8), ("b", 9), ("f", 9))
    assert rig.test is not None
    rig.test.run()
    made = {"words": rig.test.topology}
    found = differences("words", "new", rig.settings, now=True, code=made.__getitem__)
    assert told(found)["words_0"] == (2, 1, 0, 1, 0)
    rows = {row.key["word"]: (row.old, row.new) for row in found.states[1].rows}
    assert rows == {"a": ({"n": 3}, {"n": 2}), "b": ({"n": 1}, None)}


def test_what_cannot_be_taken_out_is_named() -> None:
    def before(state: SqlState, now: dict[str, Any] | None, delta: dict[str, Any], **reducers: Any) -> Any:
        bolt = SqlAppendBolt(state) if isinstance(state, SqlTable) else SqlStateBolt(state, **reducers)
        table: Any = SimpleNamespace(bolt=bolt)
        since = Since(tables={"t": table}, deltas={"t": {("a",): delta}})
        assert since.before("t", ("b",), {"n": 1}) == {"n": 1}, "no record has touched it"
        return since.before("t", ("a",), now)

    counted = SqlState("t", key="k string", value="n bigint")
    assert before(counted, {"n": 5}, {"n": 2}, n=Count()) == {"n": 3}
    assert before(counted, {"n": 2}, {"n": 2}, n=Count()) is None
    assert before(counted, {"n": 5}, {"n": None}, n=Sum("x")) == {"n": 5}
    both = SqlState("t", key="k string", value="n bigint, m bigint")
    assert before(both, {"n": 1, "m": 7}, {"n": 1, "m": 7}, n=Count(), m=Max("x")) is None
    appended = SqlTable("t", "n bigint", key="k string", on_conflict="fail")
    assert before(appended, {"n": 1}, {"n": 1}) is None
    refused: list[tuple[Callable[[], Any], str]] = [
        (
            lambda: before(both, {"n": 2, "m": 7}, {"n": 1, "m": 7}, n=Count(), m=Max("x")),
            "of m nobody knows",
        ),
        (lambda: before(counted, {"n": 2}, {"n": 2}, n=Sum("x")), "a sum of 0"),
        (lambda: before(counted, None, {"n": 2}, n=Count()), "the row is gone"),
    ]
    for ask, why in refused:
        with pytest.raises(LeftOutError, match=why):
            ask()
