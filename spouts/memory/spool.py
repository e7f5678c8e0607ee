"""The spool of a `MemorySpout`: files through which other processes of the same machine read its rows.

The spool is a folder that only its user can open. Each append to a partition is a file: an Arrow IPC stream
of its frames, named by the positions in it. A marker is JSON beside a batch without rows. There are also
`.hidden` files (an outage, with its reason) and `.taken-N` files (a marker struck for the N-th time).

Invariant: one process writes the rows, and a file gets its name once it is complete, before its rows are
planned.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from txstream.core.errors import DataLostError, PartitionUnavailableError, ServiceUnavailableError, UsageError
from txstream.spouts.memory.failure_markers import Crash, Fail, Marker

_MARKERS: dict[str, type[Marker]] = {"fail": Fail, "crash": Crash}


@dataclass(frozen=True, slots=True)
class Frame:
    """Positions `first` to `end` - 1: that many rows, or one marker."""

    first: int
    count: int
    rows: pa.RecordBatch | None
    marker: Marker | None

    @property
    def end(self) -> int:
        return self.first + self.count


class SpoolWriter:
    """The spool in the process that has the rows."""

    def __init__(self, owner: object) -> None:
        """Make a new folder. It is removed by `close`, and when `owner` or Python ends."""
        self.directory = tempfile.mkdtemp(prefix="txstream-memory-")
        self._finalizer = weakref.finalize(owner, _remove, self.directory, os.getpid())

    def write(self, partition: str, frames: Sequence[Frame]) -> None:
        """Append frames, all or none. Raises ServiceUnavailableError, for example when the disk is full."""
        if not frames:
            return
        path = _file(self.directory, partition, f"{frames[0].first:020}-{frames[-1].end:020}.rows")
        try:
            _put(path, _encode(frames))
        except OSError as error:
            raise ServiceUnavailableError(
                f"the rows of partition {partition!r} cannot be written to {path}: {error}; none was added"
            ) from error

    def hide(self, partition: str, reason: str) -> None:
        _put(_file(self.directory, partition, "hidden"), reason.encode())

    def show(self, partition: str) -> None:
        _file(self.directory, partition, "hidden").unlink(missing_ok=True)

    def take(self, partition: str, position: int, times: int) -> bool:
        return _take(self.directory, partition, position, times)

    def close(self) -> None:
        self._finalizer()


class SpoolReader:
    """The spool in a worker process."""

    in_worker = True

    def __init__(self, directory: str, host: str) -> None:
        self.directory = directory
        self._host = host

    def frames(self, partition: str, start: int, end: int) -> Iterator[Frame]:
        """See `LogView`."""
        self.check_there()
        try:
            known = 0
            for path in sorted(Path(self.directory).iterdir()):
                stem, _, what = path.name.partition(".")
                if stem != _stem(partition) or not what.endswith(".rows"):
                    continue
                first, known = map(int, what.removesuffix(".rows").split("-"))
                if first < end and known > start:
                    frames = _decode(path.read_bytes())
                    yield from (frame for frame in frames if frame.first < end and frame.end > start)
        except OSError as error:
            raise self._unreadable(partition, error) from error
        if known < end:
            raise DataLostError(
                f"partition {partition!r} has {known} positions in the spool {self.directory}, but {start} "
                f"to {end} are planned: this MemorySpout does not hold what an earlier one did"
            )

    def hidden(self, partition: str) -> str | None:
        try:
            return _file(self.directory, partition, "hidden").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._unreadable(partition, error) from error

    def take(self, partition: str, position: int, times: int) -> bool:
        self.check_there()
        try:
            return _take(self.directory, partition, position, times)
        except OSError as error:
            raise self._unreadable(partition, error) from error

    def check_there(self) -> None:
        """Raise UsageError when the folder is not there."""
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

    def _unreadable(self, partition: str, error: OSError) -> PartitionUnavailableError | UsageError:
        if isinstance(error, PermissionError):
            return UsageError(
                f"the spool {self.directory} of a MemorySpout belongs to the user who made it; Spark's "
                f"workers run as another one ({error})"
            )
        return PartitionUnavailableError(f"partition {partition!r} cannot be read from its spool: {error}")


def _encode(frames: Sequence[Frame]) -> bytes:
    schema = next((frame.rows.schema for frame in frames if frame.rows is not None), pa.schema([]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for frame in frames:
            rows = pa.RecordBatch.from_pylist([], schema) if frame.rows is None else frame.rows
            document = [frame.first, frame.count, _marker_document(frame.marker)]
            stream.write_batch(rows, {"frame": json.dumps(document)})
    return bytes(sink.getvalue())


def _decode(content: bytes) -> Iterator[Frame]:
    stream = pa.ipc.open_stream(content)
    with contextlib.suppress(StopIteration):
        while True:
            rows, metadata = stream.read_next_batch_with_custom_metadata()
            first, count, marker = json.loads(metadata["frame"])
            if marker is None:
                yield Frame(first, count, rows, None)
            else:
                yield Frame(first, count, None, _MARKERS[marker.pop("kind")](**marker))


def _marker_document(marker: Marker | None) -> dict[str, Any] | None:
    """Return a marker as JSON values. Raises UsageError for a kind that could not be read back."""
    if marker is None:
        return None
    for kind, known in _MARKERS.items():
        if type(marker) is known:
            return {"kind": kind, **asdict(marker)}  # type: ignore[call-overload]  # a dataclass, as both are
    raise UsageError(f"{marker!r} is no marker that can be stored; it must be a Fail or a Crash")


def _put(path: Path, data: bytes) -> None:
    """Write a file that gets its name only when it is complete."""
    handle, partial = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(partial).replace(path)
    except OSError:
        Path(partial).unlink()
        raise


def _take(directory: str, partition: str, position: int, times: int) -> bool:
    """Take one of the times. The process that creates the N-th file has taken the N-th time."""
    for time in range(1, times + 1):
        path = _file(directory, partition, f"{position}.taken-{time}")
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
            return True
    return False


def _stem(partition: str) -> str:
    """A file name for any partition name."""
    return hashlib.sha256(partition.encode()).hexdigest()[:40]


def _file(directory: str, partition: str, what: str) -> Path:
    return Path(directory, f"{_stem(partition)}.{what}")


def _remove(directory: str, owner: int) -> None:
    """Remove the folder, but not in a fork of its owner."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
