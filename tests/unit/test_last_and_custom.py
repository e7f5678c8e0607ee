"""`Last` and `custom` fold to the same answer, however tuples are ordered and spread over tasks."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from decimal import Decimal
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from pyspark import cloudpickle
from support.folds import prepared, to_batch
from support.lists import each

import txstream.state.folding
from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.reducers import Count, Last, Max, Min, Reducer, Sum, custom
from txstream.api.schema import parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import Chunk
from txstream.bolts.aggregate import ReduceBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import StateValueError, TopologyError
from txstream.state.folding import Fold, new_fold
from txstream.testing import run_bolt

INPUT = parse_schema(
    "word string, at int, offset bigint, x bigint, text string, flag boolean, d decimal(38,2)"
)

Row = tuple[Any, ...]

ROWS = st.tuples(
    st.sampled_from(["a", "b"]),
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.integers(-(1 << 60), 1 << 60), st.integers(-2, 2)),
    st.one_of(st.none(), st.sampled_from(["", "a", "B", "ä", "\uffff", "\U0001f980"])),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.integers(-(10**37), 10**37).map(lambda n: Decimal(n).scaleb(-2))),
)


def product(left: int, right: int) -> int:
    return left * right % 1_000_003


REDUCERS: dict[str, Reducer] = {
    "newest": Last("x", by="at"),
    "newest_text": Last("text", by=("at", "offset")),
    "newest_flag": Last("flag", by=("text", "at", "offset")),
    "newest_d": Last("d", by="d"),
    "n": Count(),
    "total": Sum("x"),
    "least": Min("text"),
    "most": Max("flag"),
    "product": custom(product, 1, field="x"),
    "union": custom(lambda left, right: "".join(sorted(set(left) | set(right))), "", field="text"),
    "gcd": custom(math.gcd, None, field="x"),
}
STATE = SqlState(
    "words",
    key="word string",
    value="newest bigint, newest_text string, newest_flag boolean, newest_d decimal(38,2), n bigint, "
    "total decimal(38,0), least string, most boolean, product bigint, union string, gcd bigint",
)


def last(rows: Sequence[Row], field: str, *by: str) -> Any:
    def place(name: str, row: Row) -> tuple[bool, Any]:
        value = row[INPUT.names.index(name)]
        return (value is not None, value)

    column = INPUT.names.index(field)
    found = [row for row in rows if row[column] is not None]
    return max(found, key=lambda row: [place(name, row) for name in (*by, field)])[column] if found else None


def naive(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    answer: dict[str, dict[str, Any]] = {}
    for word in {row[0] for row in rows}:
        mine = [row for row in rows if row[0] == word]
        xs = [row[3] for row in mine if row[3] is not None]
        texts = [row[4] for row in mine if row[4] is not None]
        answer[word] = {
            "newest": last(mine, "x", "at"),
            "newest_text": last(mine, "text", "at", "offset"),
            "newest_flag": last(mine, "flag", "text", "at", "offset"),
            "newest_d": last(mine, "d", "d"),
            "n": len(mine),
            "total": sum(xs),
            "least": min(texts, default=None),
            "most": max((row[5] for row in mine if row[5] is not None), default=None),
            "product": reduce(product, xs, 1),
            "union": "".join(sorted({letter for text in texts for letter in text})),
            "gcd": math.gcd(*xs) if len(xs) > 1 else xs[0] if xs else None,
        }
    return answer


@given(st.lists(ROWS, max_size=12), st.integers(1, 4), st.integers(1, 6), st.data())
@settings(deadline=None)
def test_any_split_in_any_order_gives_the_same_deltas(
    rows: list[Row], tasks: int, refold_rows: int, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(rows))
    owners = [data.draw(st.integers(0, tasks - 1)) for _ in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txstream.state.folding, "_REFOLD_ROWS", refold_rows)
        driver = new_fold(SqlStateBolt(STATE, **REDUCERS))
        parts = []
        for task in range(tasks):
            bolt = SqlStateBolt(STATE, **REDUCERS)
            prepared(bolt, INPUT)
            mine = [row for row, owner in zip(shuffled, owners, strict=True) if owner == task]
            size = data.draw(st.integers(1, 5))
            for start in range(0, len(mine), size):
                bolt.execute_chunk(Chunk(to_batch(mine[start : start + size], INPUT), "lines"))
            parts.append(bolt.deltas())
        for part in data.draw(st.permutations(parts)):
            driver.add_partial(part)
        merged = driver.finish()
    assert merged.schema.names == [*STATE.key_names, *STATE.value_names]
    found = {row.pop("word"): row for row in merged.to_pylist()}
    assert len(found) == merged.num_rows
    assert found == naive(rows)


def test_reduce_bolt_emits_what_it_declares() -> None:
    """The fields that decide which tuple is last (`by=`) are not emitted."""
    bolt = ReduceBolt("word", x=Last("x", by=("at", "offset")), text=custom(max, ""))
    collector = prepared(bolt, INPUT)
    rows = [
        ("a", 1, 2, 20, "p", None, None),
        ("a", 1, 3, 30, "q", None, None),
        ("a", 1, 1, 99, "z", None, None),
    ]
    for row in rows:
        bolt.execute_chunk(Chunk(to_batch([row], INPUT), "lines"))
    bolt.finish_batch()
    assert collector.rows() == [{"word": "a", "x": 30, "text": "z"}]
    result = run_bolt(SqlStateBolt(STATE, **REDUCERS), rows=rows, schema=INPUT)
    assert result.deltas == [("a", 99, "q", None, None, 3, Decimal(149), "p", None, 59400, "pqz", 1)]


def test_among_equal_places_the_greatest_value_wins() -> None:
    rows: list[Row] = [("a", None, 0, 7, None, None, None), ("a", None, 0, 9, None, None, None)]
    rows += [("b", 1, 0, None, None, None, None), ("b", None, 0, -5, None, None, None)]
    for order in (rows, rows[::-1]):
        fold = Fold(["word"], {"x": Last("x", by="at")}, parse_schema("word string, x bigint"))
        for row in order:
            fold.add(to_batch([row], INPUT))
        assert {row["word"]: row["x"] for row in fold.finish().to_pylist()} == {"a": 9, "b": -5}


def test_a_column_may_be_called_as_those_that_carry_the_order() -> None:
    schema = parse_schema("`n by at` string, at int, n bigint")
    reducers: dict[str, Reducer] = {"n": Last("n", by="at")}
    parts = []
    for row in (("a", 2, 1), ("a", 1, 9), ("a", None, 10)):
        fold = Fold(["n by at"], reducers, parse_schema("`n by at` string, n bigint"))
        fold.add(to_batch([row], schema))
        parts.append(fold.partial())
    merged = Fold(["n by at"], reducers, parse_schema("`n by at` string, n bigint"))
    for part in parts:
        merged.add_partial(part)
    assert merged.finish().to_pylist() == [{"n by at": "a", "n": 1}]


def test_without_keys() -> None:
    bolt = ReduceBolt(x=Last("x", by="at"), product=custom(product, 1, field="x"))
    collector = prepared(bolt, INPUT)
    bolt.finish_batch()
    assert collector.rows() == [{"x": None, "product": 1}]


def test_both_zeros_are_one_key_and_decimals_never_wrap_round() -> None:
    schema = parse_schema("k double, d decimal(38,2)")
    fold = Fold(["k"], {"d": Sum("d")}, schema)
    large = Decimal("9" * 35 + ".99")
    for key, d in ((-0.0, large), (0.0, large), (-0.0, large.copy_negate())):
        fold.add(to_batch([(key, d)], schema))
    (row,) = fold.finish().to_pylist()
    assert (math.copysign(1, row["k"]), row["d"]) == (1, large)
    fold = Fold(["k"], {"d": Sum("d")}, schema)
    fold.add(to_batch([(1.0, Decimal("9" * 36 + ".99"))] * 3, schema))
    with pytest.raises(StateValueError, match=r"'d' \(decimal\(38,2\)\) cannot hold its result"):
        fold.finish()


def broken(left: int, right: int) -> Any:
    raise ZeroDivisionError("by hand")


@each(
    ("reducer", "message"),
    [
        (
            custom(broken, 0),
            r"custom\(broken, x\) raised ZeroDivisionError: by hand \(in test_last.*, line \d+\), for 0 ",
        ),
        (
            custom(math.factorial, 0),  # type: ignore[arg-type]  # it takes one
            r"custom\(factorial, x\) raised TypeError: .*\(2 given\), for 0 and 7",
        ),
        (custom(lambda left, right: None, 0), "gave None for 0 and 7"),
        (custom(lambda left, right: "text", 0), r"\(bigint\) cannot hold 'text'"),
        (custom(lambda left, right: 1 << 70, 0), r"\(bigint\) cannot hold 1180591620717411303424"),
        (custom(lambda left, right: 0.5, 0), r"\(bigint\) cannot hold 0\.5"),
    ],
)
def test_what_a_function_does_wrong_is_told_with_its_key(reducer: Reducer, message: str) -> None:
    words = SqlState("words", key="word string", value="n bigint, x bigint")
    bolt = SqlStateBolt(words, n=Count(), x=reducer)
    prepared(bolt, INPUT)
    bolt.execute_chunk(Chunk(to_batch([("a", 1, 1, 7, None, None, None)], INPUT), "lines"))
    with pytest.raises(
        StateValueError, match=f"table 'words', key word='a': value column 'x'.*{message}"
    ) as told:
        bolt.deltas()
    assert told.value.__cause__ is not None or "None" in message


@each(
    ("reducers", "message"),
    [
        ({"x": Last("x", by="nowhere")}, "needs a field 'nowhere'"),
        ({"x": Last("x", by=("at", "tags"))}, r"cannot order by field 'tags' of type array<string>"),
        ({"x": custom(max, "a")}, "the identity 'a' is no value of type bigint"),
        ({"x": custom(max, 1 << 64)}, "the identity 18446744073709551616 is no value of type bigint"),
        ({"x": custom(max, None, field="nowhere")}, "needs a field 'nowhere'"),
        ({"x": custom(max, None, field="text")}, "'x' of table 'words' is bigint, but .* gives string"),
    ],
)
def test_what_is_refused_when_it_is_built(reducers: dict[str, Reducer], message: str) -> None:
    schema = INPUT.append(pa.field("tags", pa.list_(pa.string())))
    bolt = SqlStateBolt(SqlState("words", key="word string", value="x bigint"), **reducers)
    with pytest.raises(TopologyError, match=message):
        bolt.declare_output_fields(OutputFieldsDeclarer("store", [schema]))


def test_a_function_travels_with_its_bolt() -> None:
    offset = 40
    bolt = ReduceBolt("word", x=custom(lambda left, right: left + right - offset, 40))
    shipped: ReduceBolt = pickle.loads(cloudpickle.dumps(bolt))  # type: ignore[no-untyped-call]  # pyspark's copy
    assert shipped.reducers["x"].combine(41, 41) == 42


@each("reducer", [Min("y"), Max("y"), Sum("y"), Last("y", by="y")], ids=str)
@each("where", ["key", "value"])
def test_not_a_number_is_refused_with_its_tuple(reducer: Reducer, where: str) -> None:
    schema = parse_schema("k double, y double")
    bolt = SqlStateBolt(SqlState("t", key="k double", value="y double"), y=reducer)
    prepared(bolt, schema)
    nan = math.nan
    row = (nan, 1.0) if where == "key" else (1.0, nan)
    name = "k" if where == "key" else "y"
    with pytest.raises(StateValueError, match=f"{where} column '{name}' of table 't' got nan.*, in Tuple"):
        bolt.execute_chunk(Chunk(to_batch([(1.0, 1.0), row], schema), "lines"))
