"""The stable hash: fixed vectors, equal values hash alike, and every process agrees."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lists import each

from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.stable_hash import canonical_bytes, stable_hash, task_of, tasks_of_partial_key
from txstream.core.errors import TupleError

# Recorded once. A change to any of them would move keys to other tasks between two releases.
VECTORS: list[tuple[tuple[Any, ...], int]] = [
    ((), 0xE4A6A0577479B2B4),
    (("the",), 0x0BABD823F118935A),
    (("",), 0x50C6F468FF8DAE04),
    (("größe",), 0x2FF1513FE509C175),
    (("🙂",), 0xB4E7BDF540D0C7EC),
    ((None,), 0xCC6C19848D7E2088),
    ((True,), 0xF78E920F434A2090),
    ((False,), 0xE8D2B35D4DFF40F1),
    ((0,), 0x44265038BFF0372C),
    ((1,), 0x05A6F4E3656F916A),
    ((-1,), 0xADEEEDAB7F0D5901),
    ((2**63 - 1,), 0x4B459436902376A8),
    ((1.5,), 0x77013F09B1FE5BC9),
    ((0.0,), 0x12E03AA21467B11E),
    ((float("inf"),), 0xA3147B4A72B96334),
    ((float("nan"),), 0xDFBC302B0DF640C9),
    ((b"\x00\xff",), 0xA65C4C32E7B018DD),
    ((Decimal("12.30"),), 0x188469DF21D84385),
    ((Decimal("-7"),), 0x5666800E063200B9),
    ((Decimal(0),), 0x9BD611233E9AB4CB),
    ((dt.date(2024, 5, 1),), 0x0A10F42BB2CEB261),
    ((dt.datetime(2024, 5, 1, 12, 0, 0, 5),), 0x6642D96B16AB69B7),
    ((dt.datetime(2024, 5, 1, 12, tzinfo=dt.UTC),), 0x058AD66A1CE77A02),
    (("a", 1), 0xA1AF803A8E62C367),
    (("a", None, 2), 0x152BD4C1ADBE7A1F),
]

# The second hash, and the two of 8 tasks between which a partial key grouping chooses.
SECOND_VECTORS: list[tuple[tuple[Any, ...], int, tuple[int, int]]] = [
    ((), 0xC3CB3BA975F147C6, (4, 6)),
    (("the",), 0xF7BE4576C64F4907, (2, 7)),
    (("",), 0x4992E7332F51CA2F, (4, 7)),
    ((None,), 0x465C0A3A2D989E90, (0, 1)),  # both hashes say 0, so the second choice is the next task
    ((1,), 0x697AEF8F03243BC9, (2, 1)),
    ((1.5,), 0xB7488F834C51FC19, (1, 2)),  # both say 1
    ((b"\x00\xff",), 0xD0FE68590A3D5362, (5, 2)),
    ((Decimal("12.30"),), 0xC28B3928988DC858, (5, 0)),
    ((dt.date(2024, 5, 1),), 0xF134BCF74A070F22, (1, 2)),
    (("a", None, 2), 0x7F47793209C464DA, (7, 2)),
]


@each(("values", "expected"), VECTORS, ids=[repr(values) for values, _ in VECTORS])
def test_the_hash_of_fixed_values_never_changes(values: tuple[Any, ...], expected: int) -> None:
    assert stable_hash(values) == expected


@each(("values", "expected", "tasks"), SECOND_VECTORS, ids=[repr(values) for values, *_ in SECOND_VECTORS])
def test_the_second_hash_and_the_two_choices_never_change(
    values: tuple[Any, ...], expected: int, tasks: tuple[int, int]
) -> None:
    assert tasks_of_partial_key(values, 1 << 64)[1] == expected
    assert tasks_of_partial_key(values, 8) == tasks


def test_another_process_with_another_hash_seed_agrees() -> None:
    program = (
        "import json, sys; from txstream.api.stable_hash import stable_hash, task_of, tasks_of_partial_key;"
        "words = json.load(sys.stdin);"
        "print(json.dumps([hash('the')] + "
        "[[stable_hash((w,)), task_of((w,), 7), *tasks_of_partial_key((w,), 7)] for w in words]))"
    )
    words = ["the", "a", "größe", "", "🙂"]
    answers = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=json.dumps(words),
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        answers.append(json.loads(done.stdout))
    assert answers[0][0] != answers[1][0], "the seeds make no difference, so this test shows nothing"
    expected = [
        [stable_hash((word,)), task_of((word,), 7), *tasks_of_partial_key((word,), 7)] for word in words
    ]
    assert answers[0][1:] == answers[1][1:] == expected


@each(
    ("left", "right"),
    [
        (0.0, -0.0),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("100"), Decimal("1E+2")),
        (Decimal("0.00"), Decimal("-0")),
        (
            dt.datetime(2024, 5, 1, 14, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))),
            dt.datetime(2024, 5, 1, 12, 0, tzinfo=dt.UTC),
        ),
        (b"ab", bytearray(b"ab")),
        (float("nan"), -float("nan")),
    ],
)
def test_equal_values_of_one_type_have_equal_bytes(left: Any, right: Any) -> None:
    assert canonical_bytes(left) == canonical_bytes(right)


@each(
    ("left", "right"),
    [
        (("ab", "c"), ("a", "bc")),
        (("a",), ("a", "")),
        ((1,), ("1",)),
        ((1,), (True,)),
        ((None,), ("",)),
        (("a",), (b"a",)),
        ((dt.date(2024, 5, 1),), (dt.datetime(2024, 5, 1),)),
        ((Decimal("1"),), (Decimal("-1"),)),
        ((Decimal("1"),), (Decimal("10"),)),
    ],
)
def test_different_values_have_different_hashes(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    assert stable_hash(left) != stable_hash(right)


def test_a_decimal_hashes_alike_whatever_the_threads_decimal_context() -> None:
    value = Decimal("1234567890123456789012345678.901234567800")
    before = stable_hash((value,))
    with decimal.localcontext(prec=3):
        assert stable_hash((value,)) == before
    other = Decimal("1234567890123456789012345678.9012345679")
    assert stable_hash((other,)) != before


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_zeros_at_the_end_of_a_decimal_do_not_matter(value: Decimal, zeros: int) -> None:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    longer = Decimal((sign, digits + (0,) * zeros, exponent - zeros))
    assert canonical_bytes(longer) == canonical_bytes(value)


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats()), max_size=4))
def test_every_key_has_one_task_within_bounds(values: list[Any]) -> None:
    for tasks in (1, 2, 3, 8):
        assert 0 <= task_of(values, tasks) < tasks
        assert task_of(values, tasks) == task_of(list(values), tasks)


def test_keys_are_spread_over_the_tasks() -> None:
    counts = [0] * 8
    for i in range(8000):
        counts[task_of((f"word-{i}",), 8)] += 1
    assert min(counts) > 800
    assert max(counts) < 1200


@given(st.lists(st.one_of(st.none(), st.integers(), st.text(), st.binary(), st.floats()), max_size=4))
def test_every_key_has_two_choices_and_the_first_is_that_of_a_fields_grouping(values: list[Any]) -> None:
    assert tasks_of_partial_key(values, 1) == (0, 0)
    for tasks in (2, 3, 8):
        first, second = tasks_of_partial_key(values, tasks)
        assert first == task_of(values, tasks)
        assert 0 <= second < tasks
        assert second != first


def test_the_keys_of_one_task_have_their_second_choices_all_over_the_others() -> None:
    choices = [tasks_of_partial_key((f"word-{i}",), 8) for i in range(16_000)]
    seconds = [second for first, second in choices if first == 3]
    counts = {task: seconds.count(task) for task in range(8)}
    assert counts.pop(3) == 0
    # If both hashes agree, the next task is taken, so it gets 2 of 8 shares and each of the others 1 of 8.
    assert 420 < counts.pop(4) < 580
    assert min(counts.values()) > 190
    assert max(counts.values()) < 310


def test_a_list_cannot_be_grouped_by() -> None:
    for use in (canonical_bytes, stable_hash):
        with pytest.raises(TupleError, match=r"a value of type list cannot be grouped by: \[1\]"):
            use([1] if use is canonical_bytes else ([1],))


def test_a_grouping_shows_what_it_is() -> None:
    assert str(Grouping(GroupingKind.FIELDS, "split", fields=("word", "day"))) == "fields(split, word, day)"
    assert str(Grouping(GroupingKind.SHUFFLE, "split", "errors")) == "shuffle(split.errors)"
    assert str(Grouping(GroupingKind.PARTIAL_KEY, "split", fields=("word",))) == "partial_key(split, word)"
    assert str(Grouping(GroupingKind.DIRECT, "split", "errors")) == "direct(split.errors)"
