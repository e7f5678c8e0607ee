"""Digests of deltas: equal for equal rows, however they are stored, and different for any others."""

from __future__ import annotations

import itertools
import json
import random
import string
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from txstream.core.digests import TableDigest, digest_of

SCHEMA = pa.schema(
    [
        *(("name", pa.string()), ("number", pa.int64())),
        *(("n", pa.int64()), ("x", pa.float64()), ("text", pa.string()), ("amount", pa.decimal128(12, 2))),
        *(("seen", pa.timestamp("us", tz="UTC")), ("raw", pa.binary()), ("on", pa.bool_())),
        *(("day", pa.date32()), ("small", pa.int8()), ("real", pa.float32())),
    ]
)
KEYS = ("name", "number")
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40) | st.sampled_from(["", "a", "a\0", "a\0\0\0\0\0\0\0\0", "x" * 300, "x" * 301])
VALUES = st.fixed_dictionaries(
    {
        "n": st.none() | INT64,
        "x": st.none() | st.floats(allow_nan=False, width=32),
        "text": st.none() | TEXT,
        "amount": st.none() | st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents).scaleb(-2)),
        "seen": st.none()
        | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
        "raw": st.none() | st.binary(max_size=20),
        "on": st.none() | st.booleans(),
        "day": st.none() | st.dates(date(1970, 1, 1), date(2100, 1, 1)),
        "small": st.none() | st.integers(-128, 127),
        "real": st.none() | st.floats(allow_nan=False, width=16),
    }
)
ROWS = st.dictionaries(st.tuples(TEXT, INT64), VALUES, max_size=4)
Rows = dict[tuple[str, int], dict[str, Any]]


def table(rows: Rows) -> pa.Table:
    listed = [{"name": name, "number": number, **values} for (name, number), values in rows.items()]
    return pa.Table.from_pylist(listed, schema=SCHEMA)


def digest(deltas: pa.Table) -> TableDigest:
    return digest_of(deltas, KEYS)


@settings(max_examples=60)
@given(ROWS, st.data())
def test_neither_order_nor_chunks_nor_parts_matter(rows: Rows, data: st.DataObject) -> None:
    whole = table(rows)
    order = data.draw(st.permutations(range(len(rows))))
    cut = data.draw(st.integers(0, len(rows)))
    shuffled = whole.take(pa.array(order, pa.int64()))
    parts = [shuffled.slice(0, cut), shuffled.slice(cut)]
    assert digest(shuffled) == digest(whole)
    assert digest(pa.concat_tables(parts)) == digest(whole)
    assert digest(parts[0]) + digest(parts[1]) == digest(whole)
    assert digest(whole).differences(digest(shuffled)) == []


@settings(max_examples=60)
@given(ROWS.filter(bool), st.data())
def test_any_other_value_is_another_digest_and_its_column_is_named(rows: Rows, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(rows)))
    other = data.draw(VALUES)
    changed = {name for name, value in other.items() if value != rows[key][name]}
    found = digest(table(rows)).differences(digest(table({**rows, key: other})))
    assert set(found) == changed


@settings(max_examples=60)
@given(ROWS.filter(bool), st.tuples(TEXT, INT64))
def test_another_key_is_another_digest(rows: Rows, new: tuple[str, int]) -> None:
    if new in rows:
        return
    first = next(iter(rows))
    renamed = {new if key == first else key: values for key, values in rows.items()}
    assert "keys" in digest(table(rows)).differences(digest(table(renamed)))
    fewer = {key: values for key, values in rows.items() if key != first}
    assert {"rows", "keys"} <= set(digest(table(rows)).differences(digest(table(fewer))))


def counts(n: dict[str, int]) -> pa.Table:
    return pa.table({"word": list(n), "n": pa.array(n.values(), pa.int64())})


def test_what_one_key_has_more_and_another_less_does_not_cancel_out() -> None:
    chance = random.Random(7)
    words = ["".join(chance.choices(string.ascii_lowercase, k=6)) for _ in range(300)]
    n = dict.fromkeys(words, 5)
    found = {digest_of(counts(n), ["word"]).values["n"]}
    pairs = 0
    for one, other in itertools.pairwise(words):
        found.add(digest_of(counts({**n, one: 6, other: 4}), ["word"]).values["n"])
        pairs += 1
    assert len(found) == pairs + 1


def test_more_rows_than_a_chunk_and_the_widths_of_types() -> None:
    many = counts({f"w{number}": number for number in range(70_000)})
    assert digest_of(many, ["word"]) == digest_of(many.slice(0, 5), ["word"]) + digest_of(
        many.slice(5), ["word"]
    )
    wide = many.cast(pa.schema([("word", pa.large_string()), ("n", pa.int64())]))
    assert digest_of(wide, ["word"]) == digest_of(many, ["word"])


def test_a_sum_of_floats_may_differ_in_its_last_digits() -> None:
    def of(value: float) -> TableDigest:
        return digest_of(pa.table({"k": [1], "x": [value]}), ["k"])

    assert of(0.1 + 0.2 + 0.3) == of(0.3 + 0.2 + 0.1)
    assert of(0.0) == of(-0.0)
    assert of(float("nan")) == of(-float("nan"))
    assert of(1.0) != of(1.00000001)
    assert of(float("inf")) != of(-float("inf"))


@pytest.mark.parametrize("key", [0.1 + 0.2, -1.5])
def test_a_key_of_floating_point_counts_with_every_bit(key: float) -> None:
    one, other = (digest_of(pa.table({"k": [k], "n": [1]}), ["k"]) for k in (key, key + 1e-15))
    assert "keys" in one.differences(other)


def test_a_column_that_only_one_of_them_has_is_not_compared() -> None:
    old, new = counts({"a": 1}), counts({"a": 1}).append_column("more", [[3]])
    assert digest_of(old, ["word"]).differences(digest_of(new, ["word"])) == []


def test_it_is_json_and_the_same_everywhere() -> None:
    """A digest in a ledger must mean the same to every later version, on every machine."""
    found = digest_of(counts({"the": 3, "cat": 1, "": 2}), ["word"])
    document = json.loads(json.dumps(found.to_document()))
    assert TableDigest.from_document(document) == found
    assert document == {"rows": 3, "keys": "be8732ee98d6f078", "values": {"n": "5a6f4b291462bbf7"}}
    assert digest_of(counts({}), ["word"]) == TableDigest(values={"n": 0})
