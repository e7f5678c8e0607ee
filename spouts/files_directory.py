"""The directory of a `FileSpout` as the file system shows it now."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path

from txstream.api.errors import PartitionUnavailableError, UsageError
from txstream.spouts.files_format import File


class Directory:
    """Lists files. Raises PartitionUnavailableError when the directory itself cannot be read."""

    def __init__(self, path: Path, pattern: str, *, recursive: bool) -> None:
        self._path = path
        self._pattern = pattern
        self._recursive = recursive
        self._device = self.check()

    def check(self) -> int:
        """The device that the directory is on. An empty mount point would look as if all files were deleted,
        so another device than at first is an outage."""
        try:
            device = self._path.stat().st_dev
        except OSError as error:
            raise self._away(error) from error
        if device != getattr(self, "_device", device):
            raise PartitionUnavailableError(
                f"the directory {self._path} is on another device than when this run began: a file system "
                f"was mounted or went away"
            )
        return device

    def look(self) -> tuple[dict[str, File], dict[str, str]]:
        """All files by name, and the folders and files that cannot be looked at, each with its reason."""
        self.check()
        files: dict[str, File] = {}
        unreadable: dict[str, str] = {}
        try:
            self._list("", files, unreadable)
        except OSError as error:
            raise self._away(error) from error
        return files, unreadable

    def reason(self, unreadable: Mapping[str, str], name: str) -> str | None:
        """Why a file, or a folder above it, cannot be looked at."""
        while name:
            if name in unreadable:
                return unreadable[name]
            name = name.rpartition("/")[0]
        return None

    def _list(self, folder: str, files: dict[str, File], unreadable: dict[str, str]) -> None:
        with os.scandir(self._path / folder) as entries:
            for entry in entries:
                if entry.name.startswith((".", "_")):
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        if self._recursive:
                            self._list(name, files, unreadable)
                    elif entry.is_file() and fnmatch.fnmatchcase(entry.name, self._pattern):
                        files[_checked(name)] = File.of(name, self._path / name, entry.stat())
                except FileNotFoundError:
                    continue  # deleted while we looked
                except OSError as error:
                    unreadable[name] = str(error)

    def _away(self, error: OSError) -> PartitionUnavailableError:
        return PartitionUnavailableError(f"the directory {self._path} cannot be read: {error}")


def _checked(name: str) -> str:
    """Return the name. Raises UsageError if it is not UTF-8: only text can be stored."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"the file name {os.fsencode(name)!r} is not UTF-8; rename the file") from error
    return name
