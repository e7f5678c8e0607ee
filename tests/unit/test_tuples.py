"""Tuples and the Arrow chunks behind them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from txstream.api.tuples import Chunk, Tuple
from txstream.core.errors import TupleError


def chunk() -> Chunk:
    batch = pa.record_batch({"word": ["a", None, "c"], "n": pa.array([1, 2, 3], pa.int32())})
    return Chunk(batch, "split", "default", 4)


def test_values_by_name_and_by_position() -> None:
    tup = list(chunk().tuples())[1]
    assert tup["word"] is None
    assert tup["n"] == tup[1] == tup[-1] == 2
    assert tup.values == (None, 2)
    assert tup.fields == ("word", "n")
    assert list(tup) == [None, 2]
    assert len(tup) == 2


def test_a_tuple_knows_where_it_came_from() -> None:
    tup = next(chunk().tuples())
    assert (tup.source_component, tup.source_stream, tup.source_task) == ("split", "default", 4)


def test_an_unknown_field_names_those_that_there_are() -> None:
    tup = next(chunk().tuples())
    with pytest.raises(TupleError, match="no field 'wrod' in stream 'default' of 'split'; it has word, n"):
        tup["wrod"]
    with pytest.raises(TupleError, match="no field 2 in stream"):
        tup[2]


def test_a_tuple_shows_its_fields() -> None:
    assert repr(next(chunk().tuples())) == "Tuple(word='a', n=1)"


def test_a_column_is_converted_once() -> None:
    rows = chunk()
    assert len(rows) == 3
    assert rows.column("n") is rows.column(1)
    assert rows.column("n") == [1, 2, 3]


def test_a_slice_is_read_from_its_own_beginning() -> None:
    rows = Chunk(chunk().batch.slice(1, 2), "split")
    assert [tup["n"] for tup in rows.tuples()] == [2, 3]
    assert Tuple(rows, 1)["word"] == "c"
