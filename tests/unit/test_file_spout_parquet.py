"""`FileSpout` over Parquet files: ranges of rows, whatever the row groups."""

from __future__ import annotations

import datetime
import logging
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.inmemory import CONTEXT, attempt

from txstream.api.errors import DataLostError, DecodeError, PartitionUnavailableError, TxstreamError
from txstream.api.spouts import Unavailable
from txstream.spouts import files_parquet
from txstream.spouts.files import FileRange, FileSpout

DECLARED = "n bigint, word string"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tables"
    made.mkdir()
    return made


@pytest.fixture
def source(folder: Path) -> FileSpout:
    return FileSpout(folder, "parquet", DECLARED)


def table(first: int, rows: int) -> pa.Table:
    numbers = range(first, first + rows)
    return pa.table({"n": list(numbers), "extra": [0.5] * rows, "word": [f"w{n}" for n in numbers]})


def write(path: Path, content: pa.Table, row_group_size: int = 10) -> None:
    partial = path.with_name(f".{path.name}")
    pq.write_table(content, partial, row_group_size=row_group_size)
    partial.rename(path)


def read(source: FileSpout, name: str, meta: FileRange) -> list[dict[str, Any]]:
    rows = []
    for batch in source.emitter(CONTEXT).emit(attempt(1), name, meta):
        assert batch.schema.equals(source.output)
        rows += batch.to_pylist()
    return rows


def only(source: FileSpout, last: dict[str, FileRange] | None = None, limit: int = 1000) -> FileRange:
    (meta,) = source.coordinator(CONTEXT).plan(last or {}, limit).values()
    assert isinstance(meta, FileRange)
    return meta


@pytest.mark.parametrize("limit", [1, 7, 10, 25, 1000])
@pytest.mark.parametrize("row_group_size", [1, 10, 100])
def test_each_row_once_whatever_the_row_groups(
    folder: Path, source: FileSpout, limit: int, row_group_size: int
) -> None:
    write(folder / "a.parquet", table(0, 43), row_group_size)
    coordinator = source.coordinator(CONTEXT)
    last: dict[str, FileRange] = {}
    found: list[dict[str, Any]] = []
    while metas := coordinator.plan(last, limit):
        meta = metas["a.parquet"]
        assert isinstance(meta, FileRange)
        assert meta.records == min(limit, 43 - meta.start)
        rows = read(source, "a.parquet", meta)
        assert len(rows) == meta.records
        found += rows
        last = {"a.parquet": meta}
    assert found == [{"n": n, "word": f"w{n}"} for n in range(43)]


def test_row_groups_without_rows(folder: Path, source: FileSpout) -> None:
    with pq.ParquetWriter(folder / "a", table(0, 1).schema) as writer:
        for rows in (table(0, 2), table(0, 1).slice(1), table(2, 3)):
            writer.write_table(rows)
    write(folder / "b", table(0, 0))
    assert [row["n"] for row in read(source, "a", only(source))] == [0, 1, 2, 3, 4]
    assert source.coordinator(CONTEXT).targets() == {"a": 5, "b": 0}


def test_long_files_come_in_chunks(folder: Path, source: FileSpout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_parquet, "_CHUNK_ROWS", 4)
    write(folder / "a", table(0, 30), row_group_size=15)
    meta = only(source)
    sizes = [batch.num_rows for batch in source.emitter(CONTEXT).emit(attempt(1), "a", meta)]
    assert sum(sizes) == 30
    assert max(sizes) == 4


def test_origin(folder: Path) -> None:
    write(folder / "a", table(0, 25))
    source = FileSpout(folder, "parquet", "n bigint", with_origin=True)
    meta = only(source, {"a": only(source, limit=13)})
    assert read(source, "a", meta) == [{"n": n, "path": "a", "offset": n} for n in range(13, 25)]


def test_bytes_bound_a_batch(folder: Path) -> None:
    write(folder / "a", pa.table({"word": ["x" * 100 + str(n) for n in range(1000)]}), row_group_size=1000)
    source = FileSpout(folder, "parquet", "word string", max_batch_bytes=5_000)
    assert 20 < only(source).records < 100
    assert only(FileSpout(folder, "parquet", "word string", max_batch_bytes=1)).records == 1


def test_targets_and_lag(folder: Path, source: FileSpout) -> None:
    write(folder / "a", table(0, 25))
    write(folder / "b", table(0, 5))
    coordinator = source.coordinator(CONTEXT)
    targets = coordinator.targets()
    last = {"a": FileRange(0, 20, 20)}
    assert coordinator.lag_records({}, targets) == 30
    assert coordinator.lag_records(last, targets) == 10
    assert not coordinator.reached(last, targets)
    assert coordinator.reached({"a": FileRange(20, 25, 5), "b": FileRange(0, 5, 5)}, targets)


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_an_incomplete_file_is_left_out_with_a_warning(
    folder: Path, source: FileSpout, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    write(folder / "whole", table(0, 5))
    content = (folder / "whole").read_bytes()
    (folder / "part").write_bytes(content[:cut])
    coordinator = source.coordinator(CONTEXT)
    reasons = set()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            planned = coordinator.plan({}, 100)
            left_out = planned["part"]
            assert isinstance(left_out, Unavailable)
            reasons.add(left_out.reason)
            assert isinstance(planned["whole"], FileRange)
    assert coordinator.targets() == {"whole": 5}
    warnings = {record.message for record in caplog.records}
    assert warnings == {f"{reason}: it is left out until it is complete" for reason in reasons}
    assert len(caplog.records) == 1
    (folder / "part").write_bytes(content)
    assert isinstance(coordinator.plan({}, 100)["part"], FileRange)


def test_a_text_file_in_between(folder: Path, source: FileSpout) -> None:
    (folder / "README.txt").write_text("PAR1 this is no table PAR1" + "\x10\x00\x00\x00PAR1")
    planned = source.coordinator(CONTEXT).plan({}, 100)["README.txt"]
    assert isinstance(planned, Unavailable)
    assert "is no Parquet file" in planned.reason


def test_a_file_that_was_replaced_is_lost(folder: Path, source: FileSpout) -> None:
    write(folder / "a", table(0, 20))
    coordinator = source.coordinator(CONTEXT)
    meta = only(source, limit=10)
    write(folder / "a", table(100, 20))
    for act in (
        lambda: coordinator.plan({"a": meta}, 10),
        lambda: coordinator.unreadable({"a": meta}),
        lambda: read(source, "a", meta),
    ):
        with pytest.raises(DataLostError, match="its footer is no longer the same"):
            act()


def test_a_file_that_was_cut_off_is_lost(folder: Path, source: FileSpout) -> None:
    write(folder / "a", table(0, 20))
    meta = only(source)
    (folder / "a").write_bytes((folder / "a").read_bytes()[:50])
    with pytest.raises(DataLostError, match="it is no longer complete"):
        read(source, "a", meta)


def test_a_deleted_file(folder: Path, source: FileSpout) -> None:
    write(folder / "a", table(0, 20))
    half, whole = only(source, limit=10), only(source)
    (folder / "a").unlink()
    coordinator = source.coordinator(CONTEXT)
    assert coordinator.plan({"a": whole}, 10) == {}
    with pytest.raises(DataLostError, match="it was deleted, and went on to 20"):
        coordinator.plan({"a": half}, 10)
    with pytest.raises(DataLostError, match="it was deleted"):
        read(source, "a", half)


def test_damaged_pages_are_told_with_the_file(folder: Path, source: FileSpout) -> None:
    write(folder / "a", table(0, 1000), row_group_size=1000)
    meta = only(source)
    content = bytearray((folder / "a").read_bytes())
    content[4:2000] = bytes(1996)
    (folder / "a").write_bytes(content)
    with pytest.raises(DecodeError, match="a, rows from 0 on, cannot be read"):
        read(source, "a", meta)


def test_a_failing_disk_is_an_outage(
    folder: Path, source: FileSpout, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "a", table(0, 20))
    meta = only(source)

    def failing(*arguments: Any) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", failing)
    assert isinstance(source.coordinator(CONTEXT).plan({}, 10)["a"], Unavailable)
    with pytest.raises(PartitionUnavailableError, match="Input/output error"):
        read(source, "a", meta)


# --- types --------------------------------------------------------------------------------------------------

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("declared", "column", "expected"),
    [
        ("bigint", pa.array([1, None], pa.int16()), [1, None]),
        ("int", pa.array([1, 2], pa.int64()), [1, 2]),
        ("double", pa.array([0.5], pa.float32()), [0.5]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("string", pa.array(["a"], pa.large_string()), ["a"]),
        ("timestamp", pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), [NOON]),
        ("timestamp", pa.array([NOON], pa.timestamp("ns", "UTC")), [NOON]),
        ("timestamp_ntz", pa.array([NOON], pa.timestamp("ns")), [NOON.replace(tzinfo=None)]),
        ("decimal(20,2)", pa.array([Decimal("1.25")], pa.decimal128(5, 2)), [Decimal("1.25")]),
        ("array<bigint>", pa.array([[1], None], pa.list_(pa.field("element", pa.int32()))), [[1], None]),
        ("string", pa.array([None, None]), [None, None]),
        ("struct<a:bigint>", pa.array([{"a": 1}], pa.struct([("a", pa.int32())])), [{"a": 1}]),
        ("map<string,bigint>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), [[("a", 1)]]),
    ],
)
def test_a_column_of_the_same_family_is_read(
    folder: Path, declared: str, column: pa.Array, expected: list[Any]
) -> None:
    write(folder / "a", pa.table({"x": column}))
    source = FileSpout(folder, "parquet", f"x {declared}")
    assert [row["x"] for row in read(source, "a", only(source))] == expected


@pytest.mark.parametrize(
    ("declared", "column", "message"),
    [
        ("bigint", pa.array(["1"]), "has column 'x' as string, but FileSpout declares it as bigint"),
        ("bigint", pa.array([1.0]), "as double, but"),
        ("float", pa.array([0.1]), "as double, but FileSpout declares it as float"),
        ("string", pa.array([b"x"]), "as binary, but"),
        ("timestamp", pa.array([NOON], pa.timestamp("us")), "as timestamp_ntz, but"),
        ("array<bigint>", pa.array([["a"]]), "as array<string>, but"),
        ("struct<a:bigint>", pa.array([{"b": 1}]), "as struct<b:bigint>, but"),
        ("tinyint", pa.array([1, 1000]), "rows 0 to 2: column 'x' does not fit tinyint"),
        ("timestamp", pa.array([1], pa.timestamp("ns", "UTC")), "column 'x' does not fit timestamp"),
    ],
)
def test_any_other_column_is_refused(folder: Path, declared: str, column: pa.Array, message: str) -> None:
    write(folder / "a", pa.table({"x": column}))
    source = FileSpout(folder, "parquet", f"x {declared}")
    with pytest.raises(DecodeError, match=f"{folder}/a") as caught:
        read(source, "a", only(source))
    assert message in str(caught.value)


def test_a_missing_column_is_told_before_anything_is_planned(folder: Path) -> None:
    write(folder / "a", table(0, 5))
    source = FileSpout(folder, "parquet", "word string, city string")
    with pytest.raises(DecodeError, match="a has no column 'city'; it has n, extra, word"):
        source.coordinator(CONTEXT).plan({}, 10)


def test_nulls_where_none_are_allowed(folder: Path) -> None:
    write(folder / "a", pa.table({"x": pa.array([1, None])}))
    source = FileSpout(folder, "parquet", pa.schema([pa.field("x", pa.int64(), nullable=False)]))
    with pytest.raises(TxstreamError, match="has nulls, but is declared as not nullable"):
        read(source, "a", only(source))
