"""What a format must say about a file, to the coordinator that plans and to the emitter that reads."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from txstream.api.errors import DataLostError

if TYPE_CHECKING:
    from txstream.spouts.files import FileRange


@dataclass(frozen=True, slots=True)
class File:
    """One file as the file system shows it now. `signature` changes when the file is written to."""

    name: str
    path: Path
    size_bytes: int
    signature: tuple[int, int, int]

    @classmethod
    def look(cls, directory: Path, name: str) -> File:
        """Look at one file. Raises OSError, and FileNotFoundError also for what is not a regular file."""
        path = directory / name
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise FileNotFoundError(2, "is no regular file", str(path))
        return cls.of(name, path, found)

    @classmethod
    def of(cls, name: str, path: Path, found: os.stat_result) -> File:
        return cls(name, path, found.st_size, (found.st_ino, found.st_size, found.st_mtime_ns))

    @classmethod
    def missing(cls, directory: Path, name: str) -> File:
        """A file that is not there, for errors about it."""
        return cls(name, directory / name, 0, (0, 0, 0))

    def lost(self, meta: FileRange, what: str) -> DataLostError:
        return DataLostError(
            f"{self.path} was planned up to {meta.end}, but {what}: a file of a FileSpout may only grow, and "
            f"its name may not be used again; restore it, or start under a new topology id"
        )


class Incomplete(Exception):  # noqa: N818 - no error: the file is still being written
    """The file cannot be read in its format yet; the message says what is missing."""


class Backlog(ABC):
    """What one file holds after a place, taken piece by piece. The file is open only during `take`."""

    taken_bytes = 0
    exhausted = False

    @abstractmethod
    def take(self, records: int, max_bytes: int) -> int:
        """Take up to `records` more records within `max_bytes`, but at least one in all. Return how many.
        Sets `exhausted` when it meets the end of what is complete. Raises OSError."""

    @abstractmethod
    def range(self) -> FileRange:
        """All that was taken."""


class FileFormat(ABC):
    """Keeps no state that it could not read again at any time. All methods raise OSError when the file cannot
    be read, and Incomplete when it is still being written."""

    @abstractmethod
    def check(self, file: File, meta: FileRange) -> None:
        """Raises DataLostError unless this is still the file that `meta` was read or planned from."""

    @abstractmethod
    def backlog(self, file: File, start: int) -> Backlog | None:
        """What lies after `start`; None when that is certainly nothing."""

    @abstractmethod
    def length(self, file: File) -> int:
        """The end of the file, complete or not, as a position."""

    @abstractmethod
    def end(self, file: File) -> int:
        """The end of the complete part, as a position."""

    @abstractmethod
    def lag_records(self, start: int, end: int) -> int | None:
        """How many records are between two positions; None when only reading would show it."""

    @abstractmethod
    def read(self, file: File, meta: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of a range. Raises DataLostError when they are not there, DecodeError when they cannot be
        read as declared."""
