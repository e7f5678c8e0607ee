"""The spool of a `MemorySpout`: files through which other processes of the same machine read its rows.

A folder that only its user can open, with one file per partition, appended to, never changed otherwise. A
file is a sequence of frames: a header (first position, number of positions, length of the body, kind), then
the body: an Arrow IPC stream of rows, or a marker as JSON. Beside it lie `.hidden` files (an outage, with its
reason) and `.taken-N` files (the N-th time that a marker struck).

Invariant: one process writes rows. A reader believes a frame only if it is there in full, and is asked only
for positions that were written before they were planned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import struct
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from txstream.api.errors import (
    CorruptStateError,
    DataLostError,
    PartitionUnavailableError,
    ServiceUnavailableError,
    UsageError,
)
from txstream.spouts.markers import Marker, from_document, to_document

_HEADER = struct.Struct(">QQQB")
_ROWS, _MARKER = 1, 2


@dataclass(frozen=True, slots=True)
class Frame:
    """Positions `first` to `end` - 1: as many rows, or one marker."""

    first: int
    count: int
    rows: pa.RecordBatch | None
    marker: Marker | None

    @property
    def end(self) -> int:
        return self.first + self.count


class SpoolWriter:
    """The side of the process that has the rows."""

    def __init__(self, owner: object) -> None:
        """A new folder; `close` removes it, and so do the end of `owner` and of Python."""
        self.directory = tempfile.mkdtemp(prefix="txstream-memory-")
        self._finalizer = weakref.finalize(owner, _remove, self.directory, os.getpid())

    def write(self, partition: str, frames: Iterable[Frame]) -> None:
        """Append frames, all or none. Raises ServiceUnavailableError, when the disk is full for example."""
        data = b"".join(_pack(frame) for frame in frames)
        path = _rows_file(self.directory, partition)
        try:
            _append(path, data)
        except OSError as error:
            raise ServiceUnavailableError(
                f"the rows of partition {partition!r} cannot be written to {path}: {error}; none was added"
            ) from error

    def hide(self, partition: str, reason: str) -> None:
        path = _hidden_file(self.directory, partition)
        partial = path.with_suffix(".partial")
        partial.write_text(reason, encoding="utf-8")
        partial.replace(path)

    def show(self, partition: str) -> None:
        _hidden_file(self.directory, partition).unlink(missing_ok=True)

    def take(self, partition: str, position: int, times: int) -> bool:
        return _take(self.directory, partition, position, times)

    def close(self) -> None:
        self._finalizer()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a frame lies in its file."""

    first: int
    count: int
    kind: int
    offset: int
    length: int


class SpoolReader:
    """The side of a worker process. It keeps the headers that it has read: files only grow."""

    in_worker = True

    def __init__(self, directory: str, host: str) -> None:
        self.directory = directory
        self._host = host
        self._places: dict[str, list[_Place]] = {}

    def frames(self, partition: str, start: int, end: int) -> Iterator[Frame]:
        """See `LogView`."""
        try:
            handle = os.open(_rows_file(self.directory, partition), os.O_RDONLY)
        except FileNotFoundError as error:
            self.check_there()
            raise self._lost(partition, start, end, 0) from error
        except OSError as error:
            raise self._unreadable(partition, error) from error
        try:
            places = self._index(handle, partition, end)
            known = places[-1].first + places[-1].count if places else 0
            if known < end:
                raise self._lost(partition, start, end, known)
            at = max(bisect_right(places, start, key=lambda place: place.first) - 1, 0)
            while at < len(places) and places[at].first < end:
                yield self._read(handle, partition, places[at])
                at += 1
        except OSError as error:
            raise self._unreadable(partition, error) from error
        finally:
            os.close(handle)

    def hidden(self, partition: str) -> str | None:
        try:
            return _hidden_file(self.directory, partition).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(partition, error) from error

    def take(self, partition: str, position: int, times: int) -> bool:
        try:
            return _take(self.directory, partition, position, times)
        except FileNotFoundError:
            self.check_there()
            raise
        except OSError as error:
            raise self._unreadable(partition, error) from error

    def check_there(self) -> None:
        """Raises UsageError when the folder is not there."""
        if Path(self.directory).is_dir():
            return
        here = platform.node()
        if here != self._host:
            raise UsageError(
                f"the rows of a MemorySpout are on the host {self._host}, in the process that made it, and "
                f"cannot be read on {here}: use it with Spark on one machine only; across machines, read "
                f"from Kafka or a FileSpout"
            )
        raise UsageError(
            f"the spool {self.directory} of a MemorySpout is gone: it was closed, or its process has ended"
        )

    def _index(self, handle: int, partition: str, end: int) -> list[_Place]:
        """The places of all frames up to `end`, as far as they are there."""
        places = self._places.setdefault(partition, [])
        size = os.fstat(handle).st_size
        while not places or places[-1].first + places[-1].count < end:
            offset = places[-1].offset + places[-1].length if places else 0
            header = os.pread(handle, _HEADER.size, offset)
            if len(header) < _HEADER.size:
                break
            first, count, length, kind = _HEADER.unpack(header)
            if offset + _HEADER.size + length > size:
                break
            places.append(_Place(first, count, kind, offset + _HEADER.size, length))
        return places

    def _read(self, handle: int, partition: str, place: _Place) -> Frame:
        body = os.pread(handle, place.length, place.offset)
        where = f"{_rows_file(self.directory, partition)}, byte {place.offset}"
        try:
            if place.kind == _MARKER:
                return Frame(place.first, place.count, None, from_document(json.loads(body), where))
            with pa.ipc.open_stream(body) as stream:
                rows = stream.read_next_batch()
        except (pa.ArrowException, ValueError, StopIteration) as error:
            raise CorruptStateError(f"{where}: this is no frame of a spool: {error}") from error
        if rows.num_rows != place.count:
            raise CorruptStateError(f"{where}: {rows.num_rows} rows instead of {place.count}")
        return Frame(place.first, place.count, rows, None)

    def _lost(self, partition: str, start: int, end: int, known: int) -> DataLostError:
        return DataLostError(
            f"partition {partition!r} has {known} positions in the spool {self.directory}, but {start} to "
            f"{end} are planned: this MemorySpout does not hold what an earlier one did"
        )

    def _unreadable(self, partition: str, error: OSError) -> PartitionUnavailableError | UsageError:
        if isinstance(error, PermissionError):
            return UsageError(
                f"the spool {self.directory} of a MemorySpout belongs to the user who made it; Spark's "
                f"workers run as another one ({error})"
            )
        return PartitionUnavailableError(f"partition {partition!r} cannot be read from its spool: {error}")


def _append(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        before = os.fstat(handle).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(handle, rest) :]
        except OSError:
            os.ftruncate(handle, before)
            raise
    finally:
        os.close(handle)


def _pack(frame: Frame) -> bytes:
    if frame.marker is not None:
        kind, body = _MARKER, json.dumps(to_document(frame.marker)).encode()
    elif frame.rows is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, frame.rows.schema) as writer:
            writer.write_batch(frame.rows)
        kind, body = _ROWS, sink.getvalue().to_pybytes()
    else:
        raise ValueError(f"{frame} holds neither rows nor a marker")
    return _HEADER.pack(frame.first, frame.count, len(body), kind) + body


def _take(directory: str, partition: str, position: int, times: int) -> bool:
    """Whoever makes the N-th file has taken the N-th time, whatever process it is."""
    stem = _stem(partition)
    for time in range(1, times + 1):
        with contextlib.suppress(FileExistsError):
            os.close(
                os.open(Path(directory, f"{stem}.{position}.taken-{time}"), os.O_CREAT | os.O_EXCL, 0o600)
            )
            return True
    return False


def _stem(partition: str) -> str:
    """A file name for any partition name."""
    return hashlib.sha256(partition.encode()).hexdigest()[:40]


def _rows_file(directory: str, partition: str) -> Path:
    return Path(directory, f"{_stem(partition)}.rows")


def _hidden_file(directory: str, partition: str) -> Path:
    return Path(directory, f"{_stem(partition)}.hidden")


def _remove(directory: str, owner: int) -> None:
    """A fork of the owner must not take the folder from it."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
