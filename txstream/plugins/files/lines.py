"""Files of lines: UTF-8 text, and JSON with one object per line.

Invariants:

- A line belongs to the range that holds its newline. Ranges begin and end right after a newline, so they
  never cut a line or a character.
- The checksum of a range is computed while its lines are counted, and compared while they are read.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from txstream.core.errors import DecodeError
from txstream.plugins.files import FileRange
from txstream.plugins.files.format import File
from txstream.spouts.formats.json_values import JsonReader
from txstream.spouts.formats.unfit_values import BadValueError

if TYPE_CHECKING:
    from txstream.plugins.files import FileSpout

_SCAN_BYTES = 256 * 1024
_READ_BYTES = 1024 * 1024
_MARK_BYTES = 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SHOWN_BYTES = 80


class LineFormat:
    """Positions are bytes. Keeps no state that it could not read again at any time. All methods raise OSError
    when the file cannot be read."""

    def __init__(self, source: FileSpout) -> None:
        self._source = source
        self._replace = source.errors == "replace"
        self._json: JsonReader | None = None
        if source.format == "json":
            self._json = JsonReader(source.columns, replace_invalid_utf8=self._replace)

    def check(self, file: File, meta: FileRange) -> None:
        """Raises DataLostError unless this is still the file that `meta` was read or planned from."""
        with _opened(file.path) as handle:
            self._check(handle, file, meta)

    def backlog(self, file: File, start: int) -> LineBacklog | None:
        """What lies after `start`; None when that is certainly nothing."""
        return LineBacklog(file, start, self._source.max_line_bytes) if file.size_bytes > start else None

    def end(self, file: File) -> int:
        """The end of the last whole line."""
        with _opened(file.path) as handle:
            at = file.size_bytes
            while at > 0:
                start = max(0, at - _SCAN_BYTES)
                newline = os.pread(handle, at - start, start).rfind(b"\n")
                if newline >= 0:
                    return start + newline + 1
                at = start
        return 0

    def read(self, file: File, meta: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Raises DataLostError when they are not there, DecodeError when they cannot be
        read as declared."""
        with _opened(file.path) as handle:
            self._check(handle, file, meta)
            try:
                for start, block in _blocks(handle, file, meta):
                    batch = self._decode(file, start, block)
                    if batch.num_rows:
                        yield batch
            except DecodeError:
                # If the bytes are no longer the planned ones, DataLostError is the better answer.
                for _ in _blocks(handle, file, meta):
                    pass
                raise

    # --- bytes ------------------------------------------------------------------------------------------

    def _check(self, handle: int, file: File, meta: FileRange) -> None:
        size = os.fstat(handle).st_size
        if size < meta.end:
            raise file.lost(meta, f"it has only {size} bytes now: it was truncated or replaced")
        if fingerprint(handle, meta.end) != meta.mark:
            raise file.lost(meta, "what lies before that is no longer the same: it was replaced or changed")

    def _decode(self, file: File, start: int, block: bytes) -> pa.RecordBatch:
        """The lines of a block that begins at byte `start` and ends in a newline."""
        lines = block[:-1].split(b"\n")
        offsets = list(accumulate((len(line) + 1 for line in lines[:-1]), initial=start))
        if b"\r\n" in block:
            lines = [line.removesuffix(b"\r") for line in lines]
        if start == 0:
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        if self._json is not None:
            kept = [row for row, line in enumerate(lines) if line.strip()]
            if len(kept) < len(lines):
                lines, offsets = [lines[row] for row in kept], [offsets[row] for row in kept]
            columns = self._read_json(self._json, file, lines, offsets)
        else:
            columns = [self._read_text(file, lines, offsets)]
        if self._source.with_origin:
            columns += [pa.repeat(file.name, len(lines)), pa.array(offsets, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self._source.output)

    # --- values -----------------------------------------------------------------------------------------

    def _read_text(self, file: File, lines: Sequence[bytes], offsets: Sequence[int]) -> pa.Array:
        try:
            return pa.array(lines, pa.binary()).cast(pa.string())
        except pa.ArrowInvalid:
            if self._replace:
                return pa.array([line.decode(errors="replace") for line in lines], pa.string())
            for line, offset in zip(lines, offsets, strict=True):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    reason = f"it is not UTF-8: {error.reason} at byte {error.start}"
                    raise _undecodable(file, offset, line, f"{reason}; use errors='replace'") from error
            raise

    def _read_json(
        self, reader: JsonReader, file: File, lines: Sequence[bytes], offsets: Sequence[int]
    ) -> list[pa.Array]:
        try:
            return reader.read(lines)
        except BadValueError as error:
            raise _undecodable(file, offsets[error.row], lines[error.row], error.reason) from error


class LineBacklog:
    """Counts lines from `start` on and computes their checksum. The file is open only during `take`."""

    taken_bytes = 0
    exhausted = False

    def __init__(self, file: File, start: int, max_line_bytes: int) -> None:
        self._file = file
        self._max_line_bytes = max_line_bytes
        self._start = self._end = self._scanned = start
        self._records = 0
        # The checksums of the bytes up to `_end` and up to `_scanned`.
        self._end_crc = self._scanned_crc = 0
        self._mark = ""

    def take(self, records: int, max_bytes: int) -> int:
        """Take up to `records` more lines within `max_bytes`, but at least one in all. Return how many. Sets
        `exhausted` when it meets the end of what is complete. Raises OSError."""
        before, first = self._records, self._scanned
        with _opened(self._file.path) as handle:
            while self._records - before < records:
                wanted = records - (self._records - before)
                left = max_bytes - (self._scanned - first)
                if left <= 0:
                    if self._records:
                        break
                    wanted, left = 1, _SCAN_BYTES  # the first line is longer than the whole bound
                data = os.pread(handle, min(_SCAN_BYTES, left), self._scanned)
                if not data:
                    self.exhausted = True
                    break
                self._count(data, wanted)
                if self._scanned - self._end > self._max_line_bytes:
                    raise DecodeError(
                        f"{self._file.path}, byte {self._end}: a line is longer than {self._max_line_bytes} "
                        f"bytes; give FileSpout a larger max_line_bytes if it is one"
                    )
            self._mark = fingerprint(handle, self._end)
        return self._records - before

    def range(self) -> FileRange:
        """All that was taken."""
        return FileRange(
            self._start,
            self._end,
            self._records,
            max(self._file.size_bytes, self._end),
            self._mark,
            self._end_crc,
        )

    def _count(self, data: bytes, wanted: int) -> None:
        found = data.count(b"\n")
        whole = found <= wanted
        cut = data.rfind(b"\n") + 1 if whole else _behind(data, wanted)
        if cut:
            self._records += min(found, wanted)
            self._end = self._scanned + cut
            self.taken_bytes = self._end - self._start
            self._end_crc = self._scanned_crc = zlib.crc32(data[:cut], self._scanned_crc)
        if whole:
            self._scanned_crc = zlib.crc32(data[cut:], self._scanned_crc)
            self._scanned += len(data)
        else:
            self._scanned = self._end


def fingerprint(handle: int, end: int) -> str:
    """A hash of the first and the last bytes before `end`, which do not change in a file that only grows."""
    first = os.pread(handle, min(end, _MARK_BYTES), 0)
    last = os.pread(handle, min(end, _MARK_BYTES), max(0, end - _MARK_BYTES))
    return hashlib.blake2b(first + last, digest_size=8).hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _behind(data: bytes, lines: int) -> int:
    """The position right after the given number of newlines; `data` must hold that many."""
    at = 0
    for _ in range(lines):
        at = data.index(b"\n", at) + 1
    return at


def _blocks(handle: int, file: File, meta: FileRange) -> Iterator[tuple[int, bytes]]:
    """The range in blocks of whole lines, each with the byte at which it begins. Raises DataLostError at the
    end when the bytes are not those that were planned."""
    start = at = meta.start
    crc = 0
    parts: list[bytes] = []
    while at < meta.end:
        data = os.pread(handle, min(_READ_BYTES, meta.end - at), at)
        if not data:
            raise file.lost(meta, f"it ends at byte {at} now: it was truncated")
        at += len(data)
        crc = zlib.crc32(data, crc)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield start, b"".join((*parts, data[:cut]))
            parts, start = [data[cut:]], at - len(data) + cut
        else:
            parts.append(data)
    if crc != meta.crc32:
        raise file.lost(meta, f"the bytes from {meta.start} on are no longer those that were planned")


def _undecodable(file: File, offset: int, line: bytes, reason: str) -> DecodeError:
    shown = line[:_SHOWN_BYTES].decode(errors="replace") + ("..." if len(line) > _SHOWN_BYTES else "")
    return DecodeError(f"{file.path}, byte {offset}, line {_line_number(file, offset)}: {reason}: {shown!r}")


def _line_number(file: File, offset: int) -> int:
    """The number of a line, counted only for an error: planning does not need it."""
    newlines = 0
    with _opened(file.path) as handle:
        at = 0
        while at < offset:
            data = os.pread(handle, min(_READ_BYTES, offset - at), at)
            if not data:
                break
            newlines += data.count(b"\n")
            at += len(data)
    return newlines + 1
