"""A map state within one attempt: what it folds in memory, and what it refuses."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from support.lists import each

from txstream.api.stable_hash import task_of
from txstream.api.state import SqlState
from txstream.core.errors import StateValueError, UsageError
from txstream.engine.states.state_cells import Cells
from txstream.engine.states.task_map_state import Ownership, TaskMapState

WORDS = SqlState("words", key="word string", value="n bigint")
PAIRS = SqlState("pairs", key="word string, day date", value="n bigint, share double")


class Rows:
    """A table that records the keys it is asked for."""

    def __init__(self, state: SqlState, rows: dict[Any, Any] | None = None) -> None:
        self.rows = rows or {}
        self.asked: list[list[Any]] = []
        self._keys = Cells(state.key_schema, are_keys=True)
        self._values = Cells(state.value_schema, are_keys=False)

    def load(self, keys: pa.Table) -> pa.Table:
        wanted = self._keys.read(keys)
        self.asked.append(wanted)
        found = [key for key in wanted if key in self.rows]
        table = self._keys.table(found)
        values = self._values.columns([self.rows[key] for key in found])
        for name, column in zip(self._values.schema.names, values, strict=True):
            table = table.append_column(name, column)
        return table


def opened(state: SqlState = WORDS, rows: dict[Any, Any] | None = None) -> tuple[Any, Rows]:
    table = Rows(state, rows)
    return TaskMapState("words", state, table.load), table


def test_several_updates_of_a_key_are_one_read_and_one_write() -> None:
    state, table = opened(rows={"a": 3})
    assert state.update("a", lambda old: (old or 0) + 1) == 4
    assert state.multi_update(["a", "b", "a"], lambda old: (old or 0) + 1) == [5, 1, 6]
    assert state.multi_update(["b"], [lambda old: old * 10]) == [10]
    state.put("c", 7)
    state.multi_put(["c", "d", "d"], [8, 1, 2])
    assert state.multi_get(["d", "c", "b", "a", "e"]) == [2, 8, 10, 6, None]
    assert table.asked == [["a"], ["b"], ["e"]]
    assert state.deltas().sort_by("word").to_pydict() == {"word": ["a", "b", "c", "d"], "n": [6, 10, 8, 2]}


def test_what_is_only_read_is_not_written() -> None:
    state, table = opened(rows={"a": 3})
    assert (state.get("a"), state.get("b"), state.get("a")) == (3, None, 3)
    assert table.asked == [["a"], ["b"]], "what is not there is known too"
    assert state.deltas().num_rows == 0
    assert state.multi_get([]) == []


def test_a_put_reads_nothing() -> None:
    state, table = opened(rows={"a": 3})
    state.put("a", 1)
    assert state.get("a") == 1
    assert table.asked == []


def test_keys_and_values_of_several_columns_are_tuples() -> None:
    day = dt.date(2026, 11, 21)
    state, _ = opened(PAIRS, {("a", day): (1, 0.5)})
    assert state.get(("a", day)) == (1, 0.5)
    assert state.update(("a", day), lambda old: (old[0] + 1, 1)) == (2, 1.0)
    assert state.deltas().to_pydict() == {"word": ["a"], "day": [day], "n": [2], "share": [1.0]}


def test_two_spellings_of_a_key_are_one_key() -> None:
    prices = SqlState("prices", key="price decimal(6,2), at timestamp", value="n bigint")
    state, table = opened(prices)
    there = dt.timezone(dt.timedelta(hours=2))
    spellings = [
        (Decimal("1.5"), dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)),
        (Decimal("1.50"), dt.datetime(2026, 1, 1, 14, tzinfo=there)),
    ]
    assert state.multi_update(spellings, lambda old: (old or 0) + 1) == [1, 2]
    assert len(table.asked[0]) == 1
    numbers = SqlState("numbers", key="x double", value="n bigint")
    state, _ = opened(numbers)
    assert state.multi_update([0.0, -0.0, 0], lambda old: (old or 0) + 1) == [1, 2, 3]


def test_a_value_is_at_once_what_a_read_would_give() -> None:
    state, _ = opened(SqlState("t", key="k string", value="x float, d decimal(6,2)"))
    state.put("a", (1.1, 3))
    assert state.get("a") == (pytest.approx(1.1, abs=1e-6), Decimal("3.00"))
    assert state.get("a")[0] != 1.1


KEYS = "state 'words' \\(table 'words'\\), key "


@each(
    ("key", "message"),
    [
        (None, "word=None: .*a null cannot be found again"),
        (5, r"word=5: key column 'word' \(string\) cannot hold 5"),
        (["a"], r"word=\['a'\]: "),
        ({"a": 1}, r"word=\{'a': 1\}: "),
        ("\ud800", ".*cannot hold .*surrogates"),
        ("a\0b", r"word='a\\x00b': .*the character NUL"),
        ("ä\0b", r"word='ä\\x00b': .*the character NUL"),
        (("a", "b"), r"word=\('a', 'b'\): key column 'word'"),
    ],
)
def test_a_wrong_key_is_named(key: Any, message: str) -> None:
    state, table = opened()
    for use in (state.get, lambda k: state.put(k, 1), lambda k: state.update(k, lambda _: 1)):
        with pytest.raises(StateValueError, match=KEYS + message):
            use(key)
    assert table.asked == []


@each(
    ("key", "message"),
    [
        ("a", r"'a': expected a tuple of 2 \(word string, day date\)"),
        (["a", dt.date(2026, 1, 1)], "expected a tuple of 2"),
        (("a",), "expected a tuple of 2"),
        (("a", None), "a null cannot be found again"),
        (("a", dt.datetime(2026, 1, 1, 5)), "a date has no time of day"),
    ],
)
def test_a_wrong_key_of_several_columns_is_named(key: Any, message: str) -> None:
    state, _ = opened(PAIRS)
    with pytest.raises(StateValueError, match=message):
        state.get(key)


def test_text_that_databases_do_not_keep_is_no_value() -> None:
    state, _ = opened(SqlState("words", key="word string", value="t string"))
    with pytest.raises(StateValueError, match=KEYS + "word='a': .*'t' .*the character NUL"):
        state.put("a", "x\0")


@each(
    ("value", "message"),
    [
        (None, "there is no null in a state"),
        ("1", "expected whole numbers"),
        (1.0, "expected whole numbers"),
        (True, "a truth value is no number"),
        (2**63, "value column 'n' .* cannot hold 9223372036854775808"),
        ((1, 2), r"cannot hold \(1, 2\)"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(value: Any, message: str) -> None:
    state, _ = opened(rows={"a": 1})
    named = KEYS + "word='a': .*" + message
    with pytest.raises(StateValueError, match=named):
        state.put("a", value)
    with pytest.raises(StateValueError, match=named):
        state.update("a", lambda _: value)
    assert state.deltas().num_rows == 0


@each(
    ("value", "message"),
    [
        ((1, math.nan), "NaN is no number"),
        ((1,), "expected a tuple of 2"),
        ([1, 2.0], "expected a tuple of 2"),
        ((1, None), "there is no null"),
        (1, "expected a tuple of 2"),
    ],
)
def test_a_wrong_value_of_several_columns_is_named(value: Any, message: str) -> None:
    state, _ = opened(PAIRS)
    with pytest.raises(StateValueError, match=message):
        state.put(("a", dt.date(2026, 1, 1)), value)


def test_a_key_that_is_not_a_number_is_refused() -> None:
    state, _ = opened(SqlState("t", key="x double", value="n bigint"))
    with pytest.raises(StateValueError, match="NaN is not equal to itself"):
        state.get(math.nan)


@each(
    "use",
    [
        lambda state: state.multi_put(["a"], [1, 2]),
        lambda state: state.multi_update(["a"], []),
        lambda state: state.multi_update(["a"], [5]),
        lambda state: state.multi_get("abc"),
        lambda state: state.multi_get(5),
        lambda state: state.multi_put(["a"], 5),
        lambda state: state.multi_put(["a"], "1"),
        lambda state: state.multi_update(["a"], None),
        lambda state: state.multi_put(iter(["a"]), iter([1, 2])),
        lambda state: state.multi_update(iter(["a"]), iter([])),
    ],
)
def test_a_wrong_call_is_refused(use: Callable[[TaskMapState], object]) -> None:
    state, _ = opened()
    with pytest.raises(UsageError, match=r"state 'words' \(table 'words'\): "):
        use(state)


def test_keys_values_and_updaters_may_come_from_anything_that_can_be_iterated() -> None:
    state, table = opened(rows={"a": 1})
    state.multi_put((word for word in ("b", "c")), {5: "", 6: ""})
    assert state.multi_update(iter("ab"), (plus for plus in (lambda n: n + 1, lambda n: n + 2))) == [2, 7]
    assert state.multi_get({"a": 0, "b": 0, "c": 0}) == [2, 7, 6]
    assert table.asked == [["a"]]


def test_what_fails_in_the_middle_leaves_what_was_done_before() -> None:
    state, _ = opened(rows={"a": 1})
    with pytest.raises(ZeroDivisionError):
        state.multi_update(["a", "b"], lambda n: 2 if n else 1 // 0)
    with pytest.raises(StateValueError):
        state.multi_put(["c", "d"], [3, None])
    assert state.written == {"a": 2, "c": 3}


def test_an_error_in_an_updater_is_the_bolts_own() -> None:
    state, _ = opened()
    with pytest.raises(ZeroDivisionError):
        state.update("a", lambda _: 1 // 0)
    assert state.deltas().num_rows == 0


def test_after_its_attempt_a_state_is_of_no_use() -> None:
    state, _ = opened(rows={"a": 1})
    state.put("a", 2)
    state.close()
    for method, *arguments in (("get", "a"), ("put", "a", 3), ("update", "a", abs), ("multi_put", [], [])):
        with pytest.raises(UsageError, match="was used outside of its attempt"):
            getattr(state, method)(*arguments)
    assert state.deltas().to_pydict() == {"word": ["a"], "n": [2]}


# --- several tasks ---------------------------------------------------------------------------------------


def test_a_task_writes_only_keys_whose_tuples_come_to_it() -> None:
    table = Rows(PAIRS)
    day = dt.date(2026, 1, 1)
    words = [f"w{n}" for n in range(20)]
    mine = [word for word in words if task_of([word], 3) == 1]
    state = TaskMapState("pairs", PAIRS, table.load, ownership=Ownership(1, 3, ("word",)))
    for word in words:
        assert state.get((word, day)) is None, "anybody may read"
        if word in mine:
            state.put((word, day), (1, 1.0))
            continue
        with pytest.raises(StateValueError, match=f"key word='{word}', .*its tuples come to task [02], so"):
            state.put((word, day), (1, 1.0))
    assert sorted(key[0] for key in state.written) == sorted(mine)
    assert sorted(key[0] for key, _ in state.cacheable()) == sorted(mine), "others may write the rest"


def test_with_a_global_grouping_task_0_has_all_keys() -> None:
    for task, writes in ((0, True), (1, False)):
        state = TaskMapState("words", WORDS, Rows(WORDS).load, ownership=Ownership(task, 2, ()))
        if writes:
            state.put("a", 1)
        else:
            with pytest.raises(StateValueError, match="its tuples come to task 0"):
                state.put("a", 1)


# --- any calls in any order ------------------------------------------------------------------------------

KEY = st.sampled_from(["a", "b", "c", "ä", ""])
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("get"), st.lists(KEY, max_size=4)),
        st.tuples(st.just("put"), st.lists(st.tuples(KEY, st.integers(-9, 9)), max_size=4)),
        st.tuples(st.just("add"), st.lists(st.tuples(KEY, st.integers(-9, 9)), max_size=4)),
    ),
    max_size=12,
)


@settings(deadline=None)
@given(before=st.dictionaries(KEY, st.integers(-9, 9)), calls=CALLS)
def test_it_behaves_as_a_dict(before: dict[str, int], calls: list[tuple[str, list[Any]]]) -> None:
    state, table = opened(rows=before)
    oracle, written = dict(before), set()
    for kind, arguments in calls:
        if kind == "get":
            assert state.multi_get(arguments) == [oracle.get(key) for key in arguments]
            continue
        keys, numbers = [key for key, _ in arguments], [number for _, number in arguments]
        written.update(keys)
        if kind == "put":
            state.multi_put(keys, numbers)
            oracle.update(arguments)
        else:
            after = []
            for key, number in arguments:
                oracle[key] = oracle.get(key, 0) + number
                after.append(oracle[key])
            updaters = [lambda old, number=number: (old or 0) + number for number in numbers]
            assert state.multi_update(keys, updaters) == after
    asked = [key for keys in table.asked for key in keys]
    assert len(asked) == len(set(asked)), "a key was read twice"
    assert dict(state.written) == {key: oracle[key] for key in written}
