"""A file as the file system shows it, for the coordinator that plans and for the emitter that reads."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txstream.core.errors import DataLostError

if TYPE_CHECKING:
    from txstream.plugins.files import FileRange


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
