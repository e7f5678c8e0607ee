"""The driver's side of `FileSpout`: plans the next batch from the last places and the files alone.

Invariants:

- A plan continues where the last one ended, in a file that is still the same, or it says why it cannot.
- Counting lines stops after a second or at the bounds of a batch. Whatever was counted by then is planned.
- Everything remembered between plans could be looked up again: which files were found unchanged (by their
  signature), how long they were seen to be, and how long a look at the directory took.
"""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from txstream.api.spouts import PartitionCoordinator, Unavailable
from txstream.core.errors import PartitionUnavailableError, UsageError
from txstream.plugins.files import FileRange, FileSpout
from txstream.plugins.files.format import File
from txstream.plugins.files.lines import LineBacklog

_PLANNING_SECONDS = 1.0
# The pause after a look that finds nothing is fifty times as long as the look: waiting costs 2% of a core.
_IDLE_FACTOR = 50
_IDLE_LONGEST_SECONDS = 10.0
_IDLE_ANYWAY_SECONDS = 0.1


class FileCoordinator(PartitionCoordinator[FileRange]):
    """Plans ranges. Raises UsageError when the directory does not exist or is not a directory,
    PartitionUnavailableError when it cannot be read now."""

    def __init__(self, source: FileSpout, clock: Callable[[], float] = time.monotonic) -> None:
        if not source.directory.exists():
            raise UsageError(f"FileSpout's directory {source.directory} does not exist; create it first")
        if not source.directory.is_dir():
            raise UsageError(f"FileSpout reads a directory, and {source.directory} is a file")
        self._source = source
        self._directory = Directory(source.directory, source.pattern, recursive=source.recursive)
        self._format = source.reader()
        self._clock = clock
        self._ready_at = 0.0
        self._checked: dict[str, tuple[object, ...]] = {}
        self._seen: dict[str, int] = {}

    def is_ready(self) -> bool:
        return self._clock() >= self._ready_at

    def plan(self, last: Mapping[str, FileRange], limit: int) -> Mapping[str, FileRange | Unavailable]:
        """Raises PartitionUnavailableError when the directory cannot be read, DataLostError when unread data
        is gone, DecodeError when a line is too long."""
        started = self._clock()
        files, unreadable = self._directory.look()
        # Some may be folders, whose new files we cannot even name.
        answer: dict[str, FileRange | Unavailable] = {
            name: Unavailable(reason) for name, reason in unreadable.items()
        }
        for name in last.keys() - files.keys():
            reason = self._directory.reason(unreadable, name) or self._missing(name, last[name])
            if reason is not None:
                answer[name] = Unavailable(reason)
        backlogs: dict[str, LineBacklog] = {}
        for name, file in files.items():
            try:
                backlog = self._backlog(file, last.get(name))
                if backlog is not None:
                    backlogs[name] = backlog
            except FileNotFoundError:
                continue  # deleted a moment ago: the next plan will notice
            except OSError as error:
                answer[name] = Unavailable(str(error))
        failures = self._share(backlogs, limit, sum(meta.end for meta in last.values()))
        answer.update({name: Unavailable(str(failure)) for name, failure in failures.items()})
        for name, backlog in backlogs.items():
            found = backlog.range()
            if not found.is_empty and name not in answer:
                answer[name] = found
        self._rest(started, idle=all(isinstance(meta, Unavailable) for meta in answer.values()))
        return answer

    def unreadable(self, metas: Mapping[str, FileRange]) -> Mapping[str, Unavailable]:
        """Raises DataLostError when a planned range can never be read again."""
        try:
            self._directory.check()
        except PartitionUnavailableError as error:
            return {name: Unavailable(str(error)) for name in metas}
        answer: dict[str, Unavailable] = {}
        for name, meta in metas.items():
            try:
                file = File.look(self._source.directory, name)
                self._format.check(file, meta)
            except FileNotFoundError as error:
                gone = File.missing(self._source.directory, name)
                raise gone.lost(meta, "it was deleted before its batch was committed") from error
            except OSError as error:
                answer[name] = Unavailable(str(error))
        return answer

    def targets(self) -> Mapping[str, int]:
        """The end of the complete part of each file now. Raises PartitionUnavailableError."""
        files, unreadable = self._directory.look()
        for name, reason in unreadable.items():
            raise PartitionUnavailableError(f"cannot tell where the files end now: {name}: {reason}")
        ends: dict[str, int] = {}
        for name, file in files.items():
            try:
                ends[name] = self._format.end(file)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise PartitionUnavailableError(f"cannot tell where {file.path} ends now: {error}") from error
        return ends

    def reached(self, last: Mapping[str, FileRange], targets: Mapping[str, Any]) -> bool:
        return all(_place(last, name) >= end for name, end in targets.items())

    def lag_records(self, last: Mapping[str, FileRange], targets: Mapping[str, Any]) -> int | None:
        """None while there are lines to read, since only reading them would show how many."""
        return 0 if self.reached(last, targets) else None

    # --- one file -----------------------------------------------------------------------------------------

    def _backlog(self, file: File, meta: FileRange | None) -> LineBacklog | None:
        if meta is not None:
            found = (file.signature, meta.end, meta.mark)
            if self._checked.get(file.name) != found:
                self._format.check(file, meta)
                self._checked[file.name] = found
        self._seen[file.name] = max(file.size_bytes, self._seen.get(file.name, 0))
        return self._format.backlog(file, 0 if meta is None else meta.end)

    def _missing(self, name: str, meta: FileRange) -> str | None:
        """Why a file that was read and is no longer listed cannot be read now. None when it was deleted after
        it had been read to its end, or when the pattern no longer matches it. Raises DataLostError."""
        try:
            File.look(self._source.directory, name)
        except FileNotFoundError as error:
            seen = max(meta.seen, self._seen.get(name, 0))
            if seen > meta.end:
                gone = File.missing(self._source.directory, name)
                raise gone.lost(meta, f"it was deleted, and went on to {seen}") from error
        except OSError as error:
            return str(error)
        return None

    # --- the batch ----------------------------------------------------------------------------------------

    def _share(self, backlogs: Mapping[str, LineBacklog], limit: int, progress: int) -> Mapping[str, OSError]:
        """Take from the backlogs what one batch may hold. In each round every file gets an equal part of what
        is left, until nothing is. Return the files that could not be read.

        `progress` changes as batches are read. It decides whose turn it is when there are more files than
        records.
        """
        names = sorted(backlogs)
        turn = progress % len(names) if names else 0
        names = names[turn:] + names[:turn]
        cap = self._source.max_records_per_partition or limit
        taken = dict.fromkeys(names, 0)
        failures: dict[str, OSError] = {}
        records, size = limit, self._source.max_batch_bytes
        deadline = self._clock() + _PLANNING_SECONDS
        while names:
            records_each, bytes_each = max(1, records // len(names)), max(1, size // len(names))
            waiting: list[str] = []
            before = records
            for name in names:
                if records <= 0 or size <= 0 or (records < limit and self._clock() > deadline):
                    return failures
                backlog = backlogs[name]
                had = backlog.taken_bytes
                try:
                    count = backlog.take(min(records_each, records, cap - taken[name]), bytes_each)
                except OSError as error:
                    failures[name] = error
                    continue
                taken[name] += count
                records -= count
                size -= backlog.taken_bytes - had
                if not backlog.exhausted and taken[name] < cap:
                    waiting.append(name)
            if records == before:
                return failures
            names = waiting
        return failures

    def _rest(self, started: float, *, idle: bool) -> None:
        now = self._clock()
        pause = min(_IDLE_FACTOR * (now - started), _IDLE_LONGEST_SECONDS)
        self._ready_at = now + pause if idle and pause > _IDLE_ANYWAY_SECONDS else now


def _place(last: Mapping[str, FileRange], name: str) -> int:
    return last[name].end if name in last else 0


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
