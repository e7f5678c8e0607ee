"""Parquet files: complete or not there, and never changed.

A range is a range of rows, so a limit holds whatever the size of the row groups. To read it, the row groups
that contain it are read: one that is much larger than a batch is read several times, once for each batch.
"""

from __future__ import annotations

import hashlib
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from txstream.api.errors import DecodeError
from txstream.api.schema import format_type
from txstream.spouts.files import FileRange
from txstream.spouts.files_format import Backlog, File, FileFormat, Incomplete

if TYPE_CHECKING:
    from txstream.spouts.files import FileSpout

_CHUNK_ROWS = 10_000
_TAIL = struct.Struct("<I4s")  # the length of the footer, and the magic that ends the file
_MAGIC = b"PAR1"
_FOOTERS = 10_000


class _Footer:
    """What the footer of a file says about it."""

    def __init__(self, metadata: pq.FileMetaData, mark: str) -> None:
        self.mark = mark
        self.rows: int = metadata.num_rows
        size = sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups))
        self.bytes_per_row = max(1, size // max(1, self.rows))


class ParquetFormat(FileFormat):
    """Positions are rows. Footers are cached by the file's signature: a coordinator asks for them often."""

    def __init__(self, source: FileSpout) -> None:
        self._source = source
        self._footers: dict[str, tuple[tuple[int, int, int], _Footer]] = {}

    def check(self, file: File, meta: FileRange) -> None:
        if self._footer(file).mark != meta.mark:
            raise file.lost(meta, "its footer is no longer the same: it was replaced")

    def backlog(self, file: File, start: int) -> Backlog | None:
        footer = self._footer(file)
        return ParquetBacklog(footer, start) if footer.rows > start else None

    def length(self, file: File) -> int:
        return self._footer(file).rows

    def end(self, file: File) -> int:
        return self._footer(file).rows

    def lag_records(self, start: int, end: int) -> int | None:
        return max(0, end - start)

    def read(self, file: File, meta: FileRange) -> Iterator[pa.RecordBatch]:
        with file.path.open("rb") as stream, _parquet(file, stream) as parquet:
            # The mark of the open file, not of the one that has its name by now.
            if _mark(stream.fileno(), file) != meta.mark:
                raise file.lost(meta, "its footer is no longer the same: it was replaced")
            self._check_schema(file, parquet.schema_arrow)
            row = meta.start
            try:
                for batch in _rows(parquet, meta, self._source.columns.names):
                    yield self._fit(file, row, batch)
                    row += batch.num_rows
            except (pa.ArrowException, OSError) as error:
                if _is_of_the_disk(error):
                    raise
                raise DecodeError(f"{file.path}, rows from {row} on, cannot be read: {error}") from error
            if row != meta.end:
                raise file.lost(meta, f"its row groups end at row {row}")

    # --- schema -------------------------------------------------------------------------------------------

    def _check_schema(self, file: File, found: pa.Schema) -> None:
        for field in self._source.columns:
            if field.name not in found.names:
                raise DecodeError(
                    f"{file.path} has no column {field.name!r}; it has {', '.join(found.names) or 'none'}"
                )
            if found.names.count(field.name) > 1 or not _holds(field.type, found.field(field.name).type):
                raise DecodeError(
                    f"{file.path} has column {field.name!r} as {format_type(found.field(field.name).type)}, "
                    f"but FileSpout declares it as {format_type(field.type)}"
                )

    def _fit(self, file: File, row: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The declared columns in their order and types. Raises DecodeError for a value that does not fit."""
        columns: list[pa.Array] = []
        for field in self._source.columns:
            column = batch.column(field.name)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowInvalid as error:
                raise DecodeError(
                    f"{file.path}, rows {row} to {row + batch.num_rows}: column {field.name!r} does not fit "
                    f"{format_type(field.type)}: {error}"
                ) from error
            if not field.nullable and column.null_count:
                raise DecodeError(
                    f"{file.path}, rows {row} to {row + batch.num_rows}: column {field.name!r} has nulls, "
                    f"but is declared as not nullable"
                )
        if self._source.with_origin:
            columns += [
                pa.repeat(file.name, batch.num_rows),
                pa.array(range(row, row + batch.num_rows), pa.int64()),
            ]
        return pa.RecordBatch.from_arrays(columns, schema=self._source.output)

    # --- footer -------------------------------------------------------------------------------------------

    def _footer(self, file: File) -> _Footer:
        known = self._footers.get(file.name)
        if known is not None and known[0] == file.signature:
            return known[1]
        with file.path.open("rb") as stream:
            mark = _mark(stream.fileno(), file)
            with _parquet(file, stream) as parquet:
                # Refused before it is planned, while it can still be removed.
                self._check_schema(file, parquet.schema_arrow)
                footer = _Footer(parquet.metadata, mark)
        if len(self._footers) >= _FOOTERS:
            self._footers.clear()
        self._footers[file.name] = (file.signature, footer)
        return footer


class ParquetBacklog(Backlog):
    """Takes rows by the footer alone."""

    def __init__(self, footer: _Footer, start: int) -> None:
        self._footer = footer
        self._start = self._end = start

    def take(self, records: int, max_bytes: int) -> int:
        before = self._end
        fitting = max_bytes // self._footer.bytes_per_row
        if before == self._start:
            fitting = max(1, fitting)
        self._end = min(before + min(records, fitting), self._footer.rows)
        self.taken_bytes = (self._end - self._start) * self._footer.bytes_per_row
        self.exhausted = self._end == self._footer.rows
        return self._end - before

    def range(self) -> FileRange:
        return FileRange(
            self._start, self._end, self._end - self._start, self._footer.rows, self._footer.mark
        )


def _mark(handle: int, file: File) -> str:
    """The fingerprint of the footer, which says where every row group lies."""
    size = os.fstat(handle).st_size
    tail = os.pread(handle, _TAIL.size, max(0, size - _TAIL.size))
    if len(tail) < _TAIL.size:
        raise Incomplete(f"{file.path} has only {size} bytes")
    length, magic = _TAIL.unpack(tail)
    if magic != _MAGIC or length > size:
        raise Incomplete(f"{file.path} does not end as a Parquet file does")
    footer = os.pread(handle, length, size - _TAIL.size - length)
    return hashlib.blake2b(footer, digest_size=8).hexdigest()


def _parquet(file: File, stream: object) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(stream)
    except (pa.ArrowInvalid, OSError) as error:
        if _is_of_the_disk(error):
            raise
        raise Incomplete(f"{file.path} is no Parquet file: {error}") from error


def _is_of_the_disk(error: Exception) -> bool:
    """Did the disk fail? Arrow raises OSError also for a file's content, but then without an errno."""
    return isinstance(error, OSError) and error.errno is not None


def _rows(parquet: pq.ParquetFile, meta: FileRange, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows `[start, end)`, from the row groups that contain them."""
    ends = list(accumulate(parquet.metadata.row_group(at).num_rows for at in range(parquet.num_row_groups)))
    first, last = bisect_right(ends, meta.start), bisect_left(ends, meta.end)
    groups = list(range(first, min(last + 1, len(ends))))
    if not groups:
        return
    row = ends[first - 1] if first else 0
    for batch in parquet.iter_batches(_CHUNK_ROWS, row_groups=groups, columns=columns, use_threads=False):
        start, end = max(meta.start - row, 0), min(meta.end - row, batch.num_rows)
        if start < end:
            yield batch.slice(start, end - start)
        row += batch.num_rows


def _holds(declared: pa.DataType, found: pa.DataType) -> bool:
    """May a value of type `found` be read as `declared`, if it fits? Only within a family of types."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if declared == found or pa.types.is_null(found):
        return True
    if pa.types.is_timestamp(declared) and pa.types.is_timestamp(found):
        return (declared.tz is None) == (found.tz is None)
    if pa.types.is_floating(declared) and pa.types.is_floating(found):
        return bool(declared.bit_width >= found.bit_width)  # Arrow would round the other way
    if any(of_family(declared) and of_family(found) for of_family in _FAMILIES):
        return True
    # Writers differ in how they name the elements of lists and maps and in whether these may be null.
    if any(is_nested(declared) and is_nested(found) for is_nested in (pa.types.is_list, pa.types.is_map)):
        pairs = zip(_children(declared), _children(found), strict=True)
        return all(_holds(mine.type, theirs.type) for mine, theirs in pairs)
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        mine, theirs = _children(declared), _children(found)
        return [field.name for field in mine] == [field.name for field in theirs] and all(
            _holds(a.type, b.type) for a, b in zip(mine, theirs, strict=True)
        )
    return False


def _children(kind: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(at) for at in range(kind.num_fields)]


_FAMILIES = (
    pa.types.is_integer,
    pa.types.is_decimal,
    pa.types.is_date,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
)
