"""Folds and the bolts over them, against a naive oracle: one right row per key, whatever the chunks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from decimal import Decimal
from operator import itemgetter
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings, strategies as st
from support.folds import Taken, prepared as prepared_for, to_batch as batch_of
from support.lists import each

import txstream.state.folding
from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.reducers import Count, Max, Min, Reducer, Sum
from txstream.api.schema import format_schema, parse_schema
from txstream.api.state import SqlState
from txstream.api.tuples import DEFAULT_STREAM, Chunk
from txstream.bolts.aggregate import CountBolt, ReduceBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import SchemaError, StateValueError, TopologyError
from txstream.state.folding import Fold, new_fold

INPUT = parse_schema("word string, day int, x bigint, y double")

Row = tuple[str | None, int | None, int | None, float | None]

ROWS = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "b", "c", ""])),
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.integers(-(1 << 40), 1 << 40)),
    st.one_of(st.none(), st.integers(-50, 50).map(lambda n: n / 4)),  # exact in any order of adding
)
CHUNKS = st.lists(st.lists(ROWS, max_size=6), max_size=5)


def to_batch(rows: Iterable[Sequence[Any]], schema: pa.Schema = INPUT) -> pa.RecordBatch:
    return batch_of(rows, schema)


def prepared(bolt: ReduceBolt | SqlStateBolt, schema: pa.Schema = INPUT) -> Taken:
    return prepared_for(bolt, schema)


def naive(rows: Iterable[Row], keys: Sequence[int]) -> dict[tuple[Any, ...], list[Any]]:
    """Compute n=Count(), filled=Count(x), total=Sum(x), least=Min(y), most=Max(x) by hand."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    if not keys:
        groups.setdefault((), [])
    answer: dict[tuple[Any, ...], list[Any]] = {}
    for key, group in groups.items():
        xs = [row[2] for row in group if row[2] is not None]
        ys = [row[3] for row in group if row[3] is not None]
        answer[key] = [len(group), len(xs), sum(xs), min(ys, default=None), max(xs, default=None)]
    return answer


REDUCERS: dict[str, Reducer] = {
    "n": Count(),
    "filled": Count("x"),
    "total": Sum("x"),
    "least": Min("y"),
    "most": Max("x"),
}


def by_key(rows: Iterable[dict[str, Any]], keys: Sequence[str]) -> dict[tuple[Any, ...], list[Any]]:
    answer: dict[tuple[Any, ...], list[Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        assert key not in answer, f"key {key} came twice"
        answer[key] = [row[name] for name in REDUCERS]
    return answer


@given(CHUNKS, st.sampled_from([(), ("word",), ("word", "day"), ("day",)]))
@settings(deadline=None)
def test_reduce_bolt_gives_one_right_row_per_key(chunks: list[list[Row]], keys: tuple[str, ...]) -> None:
    bolt = ReduceBolt(*keys, **REDUCERS)
    collector = prepared(bolt)
    for rows in chunks:
        bolt.execute_chunk(Chunk(to_batch(rows), "lines"))
    bolt.finish_batch()
    expected = naive(itertools.chain(*chunks), [INPUT.names.index(key) for key in keys])
    assert by_key(collector.rows(), keys) == expected


@given(CHUNKS)
@settings(deadline=None)
def test_tuple_by_tuple_and_chunk_by_chunk_are_the_same(chunks: list[list[Row]]) -> None:
    singly, together = ReduceBolt("word", **REDUCERS), ReduceBolt("word", **REDUCERS)
    answers = []
    for bolt in (singly, together):
        collector = prepared(bolt)
        for rows in chunks:
            chunk = Chunk(to_batch(rows), "lines")
            if bolt is together:
                bolt.execute_chunk(chunk)
            else:
                for tup in chunk.tuples():
                    bolt.execute(tup)
        bolt.finish_batch()
        answers.append(by_key(collector.rows(), ("word",)))
    assert answers[0] == answers[1]


@given(st.lists(CHUNKS, min_size=1, max_size=4), st.integers(1, 8))
@settings(deadline=None)
def test_partial_folds_of_several_tasks_merge_to_the_whole(
    tasks: list[list[list[Row]]], refold_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(txstream.state.folding, "_REFOLD_ROWS", refold_rows)
        bolt = ReduceBolt("word", **REDUCERS)
        prepared(bolt)
        schema = bolt.fold.schema
        whole = Fold(["word"], REDUCERS, schema)
        for chunks in tasks:
            part = Fold(["word"], REDUCERS, schema)
            for rows in chunks:
                part.add(to_batch(rows))
            whole.add_partial(part.finish())
        every_row = [row for chunks in tasks for rows in chunks for row in rows]
        assert by_key(whole.finish().to_pylist(), ("word",)) == naive(every_row, [0])


def test_small_chunks_are_folded_together_unless_they_differ_or_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folded: list[int] = []
    fold_tuples = Fold._fold_tuples

    def counting(fold: Fold, table: pa.Table) -> pa.Table:
        folded.append(table.num_rows)
        return fold_tuples(fold, table)

    monkeypatch.setattr(Fold, "_fold_tuples", counting)
    fold = Fold(["word"], {"n": Count()}, parse_schema("word string, n bigint"))
    for batch in (
        *[pa.record_batch({"word": ["a", "b"]})] * 3,
        *[pa.record_batch({"word": ["a"], "x": ["1" * 600_000]})] * 3,
    ):
        fold.add(batch)
    assert folded == [6, 2]
    assert fold.finish().to_pydict() == {"word": ["a", "b"], "n": [6, 3]}
    assert folded == [6, 2, 1]


PLAIN = parse_schema("word string, raw binary, yes boolean, day date, big bigint, short smallint, x bigint")
PLAIN_ROWS = st.tuples(
    st.one_of(st.none(), st.sampled_from(["a", "", "\N{PILE OF POO}"])),
    st.one_of(st.none(), st.sampled_from([b"", b"\xff"])),
    st.one_of(st.none(), st.booleans()),
    st.one_of(st.none(), st.dates(date(1, 1, 1), date(1, 1, 2))),
    st.one_of(st.none(), st.sampled_from([0, 1, -(1 << 63)])),
    st.one_of(st.none(), st.integers(0, 1)),
    st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([(1 << 63) - 1, -(1 << 63)])),
)


@given(
    st.lists(st.lists(PLAIN_ROWS, min_size=1, max_size=5), min_size=1, max_size=4),
    st.lists(st.sampled_from(PLAIN.names[:-1]), max_size=3, unique=True),
)
@example(
    [[(None,) * 7, (None,) * 7, (None, None, None, None, 0, None, None), (None, b"", *[None] * 5)]],
    ["word", "raw", "big"],
)
@settings(deadline=None)
def test_few_rows_are_folded_in_python_as_arrow_folds_them(chunks: list[list[Any]], keys: list[str]) -> None:
    reducers = {"n": Count(), "total": Sum("x")}
    schema = pa.schema([*(PLAIN.field(key) for key in keys), ("n", pa.int64()), ("total", pa.int64())])

    def folded(few_rows: int) -> tuple[pa.Table, pa.Table]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(txstream.state.folding, "_FEW_ROWS", few_rows)
            whole, parts = Fold(keys, reducers, schema), Fold(keys, reducers, schema)
            for rows in chunks:
                part = Fold(keys, reducers, schema)
                part.add(to_batch(rows, PLAIN))
                whole.add(to_batch(rows, PLAIN))
                parts.add_partial(part.partial())
            return whole.partial(), parts.partial()

    for mine, arrows in zip(folded(1000), folded(0), strict=True):
        assert mine.schema == arrows.schema
        # Arrow's groups may come in any order, if there are nulls in a key.
        assert sorted(map(repr, mine.to_pylist())) == sorted(map(repr, arrows.to_pylist()))


def test_memory_follows_the_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txstream.state.folding, "_REFOLD_ROWS", 10)
    fold = Fold(["word"], {"n": Count()}, parse_schema("word string, n bigint"))
    for i in range(100):
        fold.add(to_batch([("abc"[i % 3], 0, 0, 0.0), ("d", 0, 0, 0.0)]))
        assert fold._rows <= 12
    assert sum(fold.finish()["n"].to_pylist()) == 200


def test_count_bolt_emits_the_key_and_n() -> None:
    bolt = CountBolt("word")
    declarer = OutputFieldsDeclarer("count", [INPUT])
    bolt.declare_output_fields(declarer)
    assert format_schema(declarer.streams[DEFAULT_STREAM]) == "word string, n bigint"
    collector = prepared(bolt)
    bolt.execute_chunk(Chunk(to_batch([("a", 1, 1, 1.0), (None, 1, None, 1.0), ("a", 2, 2, 2.0)]), "lines"))
    bolt.finish_batch()
    assert collector.rows() == [{"word": "a", "n": 2}, {"word": None, "n": 1}]


def test_a_keyless_reduce_gives_one_row_also_when_nothing_came() -> None:
    bolt = ReduceBolt(n=Count(), most=Max("x"))
    collector = prepared(bolt)
    bolt.finish_batch()
    assert collector.rows() == [{"n": 0, "most": None}]


def test_a_key_may_be_called_like_a_result() -> None:
    schema = parse_schema("n bigint, n_sum bigint, count_all bigint")
    bolt = ReduceBolt("n_sum", "count_all", total=Sum("n"), rows=Count())
    collector = prepared(bolt, schema)
    bolt.execute_chunk(Chunk(to_batch([(1, 7, 8), (2, 7, 8)], schema), "lines"))
    bolt.finish_batch()
    assert collector.rows() == [{"n_sum": 7, "count_all": 8, "total": 3, "rows": 2}]


@each("values", [[1 << 62, 1 << 62], [-(1 << 63), -1], [(1 << 63) - 1] * 3])
def test_a_total_beyond_64_bits_is_refused_and_never_wraps_round(values: list[int]) -> None:
    def whole(fold: Fold) -> pa.Table:
        fold.add(to_batch([("a", 0, value, 0.0) for value in values]))
        return fold.finish()

    def merged(fold: Fold) -> pa.Table:
        for value in values:
            fold.add(to_batch([("a", 0, value, 0.0)]))
        return fold.finish()

    both: list[Callable[[Fold], pa.Table]] = [whole, merged]
    for folded in both:
        with pytest.raises(StateValueError, match=r"value column 'n' \(bigint\) cannot hold its result"):
            folded(Fold(["word"], {"n": Sum("x")}, parse_schema("word string, n bigint")))


SMALL = "n tinyint, x bigint, d decimal(3,2), f float"
NUMBERS = st.tuples(
    st.sampled_from("ab"),
    st.integers(-128, 127),
    st.sampled_from([(1 << 63) - 1, -(1 << 63), -1, 0, 1, 7]),
    st.integers(-999, 999).map(lambda n: Decimal(n).scaleb(-2)),
    st.sampled_from([1.0, -1.0, 2.0**24, -(2.0**24)]),
)


@given(st.lists(st.lists(NUMBERS, max_size=4), min_size=1, max_size=4), st.randoms())
@settings(deadline=None)
def test_a_total_is_refused_for_what_it_is_and_not_for_how_its_tuples_were_spread(
    parts: list[list[tuple[Any, ...]]], random: Random
) -> None:
    """If a part's sum is too large, another part may bring it back. Only the total must fit its column."""
    schema = parse_schema(f"word string, {SMALL}")
    reducers = {name: Sum(name) for name in schema.names[1:]}

    def folded(chunks: list[list[tuple[Any, ...]]]) -> list[dict[str, Any]] | str:
        whole = Fold(["word"], reducers, schema)
        for rows in chunks:
            part = Fold(["word"], reducers, schema)
            part.add(to_batch(rows, schema))
            whole.add_partial(part.partial())
        try:
            return sorted(whole.finish().to_pylist(), key=itemgetter("word"))
        except StateValueError as error:
            return str(error)

    together = folded([[row for rows in parts for row in rows]])
    random.shuffle(parts)
    apart = folded(parts)
    assert isinstance(apart, str) == isinstance(together, str), (together, apart)
    assert isinstance(apart, str) or apart == together


def test_a_total_that_does_not_fit_is_told_with_its_key() -> None:
    fold = Fold(["word"], {"n": Sum("x")}, parse_schema("word string, n tinyint"), "words")
    fold.add(to_batch([("a", 0, 100, 0.0), ("b", 0, 100, 0.0)]))
    fold.add(to_batch([("b", 0, 28, 0.0)]))
    with pytest.raises(
        StateValueError,
        match=r"^table 'words', key word='b': value column 'n' \(tinyint\) cannot hold its result 128;",
    ):
        fold.finish()


def test_large_numbers_that_cancel_out_are_added_exactly() -> None:
    fold = Fold(["word"], {"n": Sum("x")}, parse_schema("word string, n bigint"))
    fold.add(to_batch([("a", 0, x, 0.0) for x in ((1 << 62), (1 << 62), -(1 << 62), 5, None)]))
    fold.add(to_batch([("b", 0, None, 0.0)]))
    assert fold.finish().to_pylist() == [{"word": "a", "n": (1 << 62) + 5}, {"word": "b", "n": 0}]


def test_decimals_are_summed_as_decimals() -> None:
    schema = parse_schema("word string, price decimal(5,2)")
    bolt = ReduceBolt("word", price=Sum("price"))
    collector = prepared(bolt, schema)
    bolt.execute_chunk(
        Chunk(to_batch([("a", Decimal("0.10")), ("a", Decimal("0.20")), ("b", None)], schema), "lines")
    )
    bolt.finish_batch()
    assert collector.rows() == [
        {"word": "a", "price": Decimal("0.30")},
        {"word": "b", "price": Decimal("0.00")},
    ]


def test_a_decimal_total_with_too_many_digits_is_refused() -> None:
    schema = parse_schema("word string, price decimal(3,2)")
    bolt = ReduceBolt("word", price=Sum("price"))
    prepared(bolt, schema)
    rows = [("a", Decimal("9.99")), ("a", Decimal("0.01"))]
    bolt.execute_chunk(Chunk(to_batch(rows, schema), "lines"))
    with pytest.raises(StateValueError, match=r"value column 'price' \(decimal\(3,2\)\) cannot hold"):
        bolt.finish_batch()


@each(
    ("bolt", "error", "message"),
    [
        (
            ReduceBolt("wrod", n=Count()),
            TopologyError,
            "component 'bolt' needs a field 'wrod', but its input has only word string, day int",
        ),
        (ReduceBolt("word", n=Sum("z")), TopologyError, "component 'bolt' needs a field 'z'"),
        (
            ReduceBolt("word", n=Sum("word")),
            TopologyError,
            "component 'bolt': Sum cannot take field 'word' of type string",
        ),
        (
            ReduceBolt("word", n="n"),  # type: ignore[arg-type]
            TopologyError,
            r"component 'bolt': n='n' is not a reducer; write for example n=Sum\('n'\)",
        ),
        (ReduceBolt("word", word=Count()), SchemaError, "field 'word' is declared twice"),
    ],
)
def test_what_reduce_bolt_refuses_when_it_is_built(
    bolt: ReduceBolt, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        bolt.declare_output_fields(OutputFieldsDeclarer("bolt", [INPUT]))


def test_a_reduce_bolt_without_reducers_is_refused() -> None:
    with pytest.raises(TopologyError, match="ReduceBolt needs at least one reducer, for example n=Count"):
        ReduceBolt("word")


# --- the state's bolt --------------------------------------------------------------------------------


def state_bolt() -> SqlStateBolt:
    state = SqlState(
        "words",
        key="word string",
        value="n bigint, filled bigint, total bigint, least double, most bigint",
    )
    return SqlStateBolt(state, **REDUCERS)


@given(st.lists(CHUNKS, min_size=1, max_size=3))
@settings(deadline=None)
def test_deltas_of_all_tasks_merge_on_the_driver_to_one_row_per_key(tasks: list[list[list[Row]]]) -> None:
    merged = new_fold(state_bolt())
    every_row = []
    for chunks in tasks:
        bolt = state_bolt()
        prepared(bolt)
        for rows in chunks:
            kept = [row for row in rows if row[0] is not None]
            every_row += kept
            bolt.execute_chunk(Chunk(to_batch(kept), "lines"))
        merged.add_partial(bolt.deltas())
    assert by_key(merged.finish().to_pylist(), ("word",)) == naive(every_row, [0])


def test_a_null_in_a_key_is_refused_with_its_tuple() -> None:
    bolt = state_bolt()
    prepared(bolt)
    with pytest.raises(
        StateValueError,
        match=r"key column 'word' of table 'words' got a null, in Tuple\(word=None, day=2, x=3, y=0.5\); "
        r"filter such tuples out before the state or give them a key",
    ):
        bolt.execute_chunk(Chunk(to_batch([("a", 1, 1, 1.0), (None, 2, 3, 0.5)]), "lines"))


def test_a_null_key_is_found_in_one_tuple_too() -> None:
    bolt = state_bolt()
    prepared(bolt)
    with pytest.raises(StateValueError, match="key column 'word'"):
        bolt.execute(next(Chunk(to_batch([(None, 2, 3, 0.5)]), "lines").tuples()))


def test_a_value_column_without_a_reducer_is_a_sum() -> None:
    bolt = SqlStateBolt(SqlState("words", key="word string", value="x bigint"))
    assert bolt.reducers == {"x": Sum("x")}


def test_a_result_outside_of_the_columns_range_is_refused() -> None:
    bolt = SqlStateBolt(SqlState("words", key="word string", value="x tinyint"))
    prepared(bolt)
    bolt.execute_chunk(Chunk(to_batch([("a", 1, 100, 1.0), ("a", 1, 28, 1.0)]), "lines"))
    merged = new_fold(bolt)
    merged.add_partial(bolt.deltas())
    with pytest.raises(StateValueError, match=r"key word='a': value column 'x' \(tinyint\) cannot hold its"):
        merged.finish()


@each(
    ("state", "reducers", "message"),
    [
        (
            SqlState("words", key="word int", value="x bigint"),
            {},
            "key column 'word' of table 'words' is int, the field is string",
        ),
        (SqlState("words", key="wrod string", value="x bigint"), {}, "needs a field 'wrod'"),
        (SqlState("words", key="word string", value="n bigint"), {}, "needs a field 'n'"),
        (
            SqlState("words", key="word string", value="n bigint"),
            {"n": Sum("word")},
            "Sum cannot take field 'word' of type string",
        ),
        (
            SqlState("words", key="word string", value="n string"),
            {"n": Count()},
            r"value column 'n' of table 'words' is string, but Count\(\) gives bigint",
        ),
        (
            SqlState("words", key="word string", value="n bigint"),
            {"n": Sum("y")},
            r"value column 'n' of table 'words' is bigint, but Sum\(y\) gives double",
        ),
        (
            SqlState("words", key="word string", value="n decimal(20,2)"),
            {"n": Count()},
            r"value column 'n' of table 'words' is decimal\(20,2\), but Count\(\) gives bigint",
        ),
    ],
)
def test_what_the_states_bolt_refuses_when_it_is_built(
    state: SqlState, reducers: dict[str, Reducer], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        SqlStateBolt(state, **reducers).declare_output_fields(OutputFieldsDeclarer("store", [INPUT]))


@each("column", ["n int", "n bigint", "n double", "n float", "n decimal(21,2)"])
def test_columns_that_may_hold_a_count(column: str) -> None:
    bolt = SqlStateBolt(SqlState("words", key="word string", value=column), n=Count())
    prepared(bolt)
    bolt.execute_chunk(Chunk(to_batch([("a", 1, 1, 1.0), ("a", 1, 1, 1.0)]), "lines"))
    assert bolt.deltas().to_pylist() == [{"word": "a", "n": 2}]


def test_a_reducer_for_a_column_that_is_not_there_is_refused() -> None:
    state = SqlState("words", key="word string", value="n bigint, m bigint")
    with pytest.raises(TopologyError, match="state table 'words' has no value column 'k'; it has n, m"):
        SqlStateBolt(state, k=Count())


def test_the_states_bolt_takes_a_state() -> None:
    with pytest.raises(TopologyError, match="SqlStateBolt takes a SqlState, not str"):
        SqlStateBolt("words")  # type: ignore[arg-type]
