"""Groupings by key: a key of any type goes to its task, or to one of its two tasks; partial keys balance."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import random
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st
from support.lists import each
from support.routes import (
    CUTS,
    KEYED,
    TEXTS,
    UNTIMED,
    grouping,
    numbered,
    opened,
    pieces,
    sent,
    totals,
    words,
)

from txstream.api.groupings import GroupingKind
from txstream.api.stable_hash import task_of, tasks_of_partial_key
from txstream.core.errors import TupleError
from txstream.engine.batch import routing
from txstream.engine.batch.routing import open_router


def fewer_first(keys: Iterable[Sequence[Any]], tasks: int) -> dict[int, list[int]]:
    """Route by partial key in the plainest way; the tests compare with it."""
    loads = [0] * tasks
    expected: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        first, second = tasks_of_partial_key(key, tasks)
        task = second if loads[second] < loads[first] else first
        loads[task] += 1
        expected.setdefault(task, []).append(row)
    return expected


@UNTIMED
@given(
    texts=TEXTS, cuts=CUTS, tasks=st.integers(1, 9), starts=st.tuples(st.integers(0, 9), st.integers(0, 9))
)
def test_a_fields_grouping_sends_a_key_to_its_task_however_batches_are_cut(
    texts: list[str | None], cuts: list[int], tasks: int, starts: tuple[int, int]
) -> None:
    expected: dict[int, list[int]] = {}
    for row, text in enumerate(texts):
        expected.setdefault(task_of((text,), tasks), []).append(row)
    for start, batches in zip(starts, ([words(texts)], pieces(texts, cuts)), strict=True):
        assert sent(opened(GroupingKind.FIELDS, tasks, start), batches) == expected


@UNTIMED
@given(texts=TEXTS, cuts=CUTS, tasks=st.integers(1, 9))
def test_a_partial_key_grouping_sends_each_row_to_the_one_of_two_that_got_fewer(
    texts: list[str | None], cuts: list[int], tasks: int
) -> None:
    expected = fewer_first([(text,) for text in texts], tasks)
    assert sent(opened(GroupingKind.PARTIAL_KEY, tasks), [words(texts)]) == expected
    assert sent(opened(GroupingKind.PARTIAL_KEY, tasks), pieces(texts, cuts)) == expected


def test_all_routers_together_send_a_key_to_two_tasks_at_most() -> None:
    tasks_of: dict[str, set[int]] = {}
    chooser = random.Random(1)
    for start in range(4):
        router = opened(GroupingKind.PARTIAL_KEY, 8, start)
        for _ in range(20):
            batch = words([f"word-{chooser.randrange(50)}" for _ in range(100)])
            for task, part in router.route(batch):
                for word in part.column("word").to_pylist():
                    tasks_of.setdefault(word, set()).add(task)
    assert len(tasks_of) == 50
    for word, tasks in tasks_of.items():
        assert tasks <= set(tasks_of_partial_key((word,), 8))
    assert sum(len(tasks) == 2 for tasks in tasks_of.values()) > 40


def skewed(seed: int, rows: int) -> list[str]:
    """Return words: one key makes up 30 % of them, the others follow Zipf's law."""
    chooser = random.Random(seed)
    others = chooser.choices(range(1000), [1 / rank for rank in range(1, 1001)], k=rows)
    return ["hot" if chooser.random() < 0.3 else f"word-{seed}-{other}" for other in others]


@each("emitters", [1, 4])
@each("seed", range(3))
def test_a_hot_key_overloads_a_task_of_a_fields_grouping_but_not_of_a_partial_key(
    seed: int, emitters: int
) -> None:
    """With 4 tasks and a key of 30 %, no task gets more than 5 % over the average. By fields, the hot key
    alone puts its task about 20 % over it; the test asks for 15 %."""
    texts = skewed(seed, 8000)
    most = {}
    for kind in KEYED:
        loads = [0] * 4
        for emitter in range(emitters):
            mine = texts[emitter::emitters]
            got = sent(opened(kind, 4, emitter), pieces(mine, range(0, 8000, 700)))
            loads = [load + more for load, more in zip(loads, totals(got, 4), strict=True)]
        assert sum(loads) == 8000
        most[kind] = max(loads) / 2000
    assert most[GroupingKind.PARTIAL_KEY] <= 1.05
    assert most[GroupingKind.FIELDS] >= 1.15


# --- all types of keys, against the plain way ----------------------------------------------------------


def times(unit: str, zone: str | None) -> st.SearchStrategy[Any]:
    per_second = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    first, last = -2_000_000_000 * per_second, 4_000_000_000 * per_second
    back = 1_729_987_200 * per_second  # 2024-10-27, when clocks in Berlin showed 2 to 3 o'clock twice
    instants = st.one_of(st.integers(first, last), st.integers(back, back + 4 * 3600 * per_second))
    return instants.map(lambda instant: pa.scalar(instant, pa.timestamp(unit, zone)).as_py())


def decimals(precision: int, scale: int) -> st.SearchStrategy[Any]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda number: decimal.Decimal(number).scaleb(-scale, WIDE))


WIDE = decimal.Context(prec=76)
FLOATS = st.one_of(st.floats(width=16), st.sampled_from([0.0, -0.0, float("nan"), -float("nan")]))
KEY_TYPES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    *(
        (getattr(pa, f"int{bits}")(), st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1))
        for bits in (8, 16, 32, 64)
    ),
    *((getattr(pa, f"uint{bits}")(), st.integers(0, 2**bits - 1)) for bits in (8, 16, 32, 64)),
    (pa.float16(), FLOATS),
    (pa.float32(), FLOATS),
    (pa.float64(), st.one_of(FLOATS, st.floats())),
    (pa.string(), st.text(max_size=3)),
    (pa.large_string(), st.text(max_size=3)),
    (pa.binary(), st.binary(max_size=3)),
    (pa.large_binary(), st.binary(max_size=3)),
    (pa.binary(2), st.binary(min_size=2, max_size=2)),
    (pa.decimal32(7, 2), decimals(7, 2)),
    (pa.decimal64(15, 3), decimals(15, 3)),
    (pa.decimal128(38, 10), decimals(38, 10)),
    (pa.decimal256(60, 20), decimals(60, 20)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.timestamp("s"), times("s", None)),
    (pa.timestamp("ms"), times("ms", None)),
    (pa.timestamp("us"), times("us", None)),
    (pa.timestamp("us", "UTC"), times("us", "UTC")),
    (pa.timestamp("s", "Europe/Berlin"), times("s", "Europe/Berlin")),
    (pa.dictionary(pa.int8(), pa.string()), st.text(max_size=3)),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 5)),
    (pa.json_(), st.text(max_size=3).map(json.dumps)),
]


@st.composite
def key_columns(draw: st.DrawFn) -> pa.RecordBatch:
    """Draw a slice of a batch: one to three key columns of any type, with nulls and repeated keys."""
    rows = draw(st.integers(1, 30))
    columns = {}
    for position in range(draw(st.integers(1, 3))):
        data_type, values = draw(st.sampled_from(KEY_TYPES))
        few = draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=6))
        column = draw(st.lists(st.sampled_from(few), min_size=rows, max_size=rows))
        columns[f"key{position}"] = pa.array(column, data_type)
    offset = draw(st.integers(0, rows - 1))
    batch = pa.RecordBatch.from_pydict(columns).slice(offset, draw(st.integers(1, rows - offset)))
    return batch.append_column("row", pa.array(range(batch.num_rows), pa.int64()))


@settings(max_examples=300, deadline=None)
@given(batch=key_columns(), tasks=st.integers(2, 9))
def test_keys_of_every_type_go_where_their_values_say(batch: pa.RecordBatch, tasks: int) -> None:
    names = batch.schema.names[:-1]
    keys = list(zip(*(batch.column(name).to_pylist() for name in names), strict=True))
    expected: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        expected.setdefault(task_of(key, tasks), []).append(row)
    fields = open_router(grouping(GroupingKind.FIELDS, *names), tasks, "count", 0)
    assert sent(fields, [batch]) == expected
    partial_key = open_router(grouping(GroupingKind.PARTIAL_KEY, *names), tasks, "count", 0)
    assert sent(partial_key, [batch]) == fewer_first(keys, tasks)


@pytest.mark.parametrize("kind", KEYED)
def test_the_hour_that_a_clock_shows_twice_is_two_keys(kind: GroupingKind) -> None:
    """Python calls these two times equal. A batch with both must route like two batches with one each."""
    twice = [1_729_989_000, 1_729_992_600]  # 2:30 in summer time, 2:30 in winter time
    column = pa.array(twice, pa.timestamp("s", "Europe/Berlin"))
    summer, winter = column.to_pylist()
    assert summer == winter
    assert task_of((summer,), 16) != task_of((winter,), 16)
    batch = numbered({"word": column})
    expected = {task_of((summer,), 16): [0], task_of((winter,), 16): [1]}
    assert sent(opened(kind, 16), [batch]) == expected


def test_a_dictionary_with_a_null_and_a_value_twice_routes_by_value() -> None:
    indices = pa.array([0, 1, 2, None, 0], pa.int8())
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "a", None]))
    assert task_of(("a",), 7) != task_of((None,), 7)
    got = sent(opened(GroupingKind.FIELDS, 7), [numbered({"word": column})])
    assert got == {task_of(("a",), 7): [0, 1, 4], task_of((None,), 7): [2, 3]}


@pytest.mark.parametrize("fields", [("word",), ("word", "day")])
def test_a_distinct_key_is_hashed_once_per_batch(
    fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: Counter[Any] = Counter()

    def counting(key: Sequence[Any], tasks: int) -> int:
        asked[tuple(key)] += 1
        return task_of(key, tasks)

    monkeypatch.setattr(routing, "task_of", counting)
    batch = numbered({"word": ["a", "b", None, "c"] * 25, "day": [1, 2, 3, 3] * 25})
    router = open_router(grouping(GroupingKind.FIELDS, *fields), 4, "count", 0)
    sent(router, [batch])
    assert len(asked) == 4
    assert set(asked.values()) == {1}


@each("kind", KEYED)
@each(
    ("column", "reason"),
    [
        (pa.array([[1], [2]]), r"a value of type list cannot be grouped by: \[1\]"),
        (pa.array([{"a": 1}, None]), r"a value of type dict cannot be grouped by: \{'a': 1\}"),
        (pa.array([uuid.UUID(int=1).bytes] * 2, pa.uuid()), "a value of type UUID cannot be grouped by"),
        (pa.array([dt.time(1), None]), "a value of type time cannot be grouped by"),
        (pa.array([2**62, 0], pa.timestamp("us")), "out of range"),
    ],
    ids=["list", "struct", "uuid", "time", "far future"],
)
def test_a_key_that_cannot_be_grouped_by_is_told(kind: GroupingKind, column: pa.Array, reason: str) -> None:
    with pytest.raises(TupleError, match=f"tuples for 'count' cannot be grouped by word: .*{reason}"):
        opened(kind, 4).route(numbered({"word": column}))


@pytest.mark.parametrize("kind", KEYED)
def test_a_key_that_is_not_there_is_told(kind: GroupingKind) -> None:
    with pytest.raises(
        TupleError, match=r"'count' cannot be grouped by word, day: .*no field 'day', only word, row"
    ):
        open_router(grouping(kind, "word", "day"), 4, "count", 0).route(words(["a", "b"]))


def test_a_field_that_arrow_cannot_split_is_told() -> None:
    batch = numbered({"word": ["a", "b", "c"], "text": pa.array(["x", "y", "z"], pa.string_view())})
    with pytest.raises(TupleError, match=r"tuples for 'count' have a field of a type that .*string_view"):
        opened(GroupingKind.FIELDS, 16).route(batch)
