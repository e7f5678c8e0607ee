"""Rows for Spark's workers, in files: a `FileSpout` that a test adds to, hides and lets fail."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.core.errors import BatchFailedError
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.files import FileEmitter, FileRange, FileSpout


class RowFiles(FileSpout):
    """Tuples by partition, one JSON object a line. Takes and offers what a `MemorySpout` does."""

    def __init__(
        self,
        folder: Path,
        schema: str = "value string",
        partitions: Mapping[str, Sequence[tuple[Any, ...]]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, "json", schema, **options)
        folder.mkdir()
        for name, rows in (partitions or {}).items():
            self.append(name, *rows)

    def append(self, partition: str, *rows: tuple[Any, ...]) -> None:
        documents = (dict(zip(self.columns.names, row, strict=True)) for row in rows)
        with (self.directory / partition).open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(document)}\n" for document in documents))

    def rows(self, partition: str, span: FileRange) -> list[tuple[Any, ...]]:
        """Return the rows of a range, as they are in the file now."""
        hidden = self.directory / f".{partition}"
        found = (hidden if hidden.exists() else self.directory / partition).read_bytes()
        return [tuple(json.loads(line).values()) for line in found[span.start : span.end].splitlines()]

    def hide(self, partition: str) -> None:
        """Make a partition unreadable: a link to itself can be neither examined nor opened."""
        (self.directory / partition).rename(self.directory / f".{partition}")
        (self.directory / partition).symlink_to(self.directory / partition)

    def show(self, partition: str) -> None:
        (self.directory / f".{partition}").replace(self.directory / partition)

    def trip(self, how: Literal["fails", "dies"], partition: str) -> None:
        """Have the next worker that has read a range of this partition fail, or die. If a run before has read
        it, too, a task of that run that was given up may still read, and be the one."""
        (self.directory / f".{partition}.{how}").touch()

    def emitter(self, context: SpoutContext) -> FileEmitter:
        return _Emitter(self)


class _Emitter(FileEmitter):
    def emit(self, attempt: TransactionAttempt, partition: str, meta: FileRange) -> Iterator[pa.RecordBatch]:
        yield from super().emit(attempt, partition, meta)
        with suppress(FileNotFoundError):
            (self._source.directory / f".{partition}.dies").unlink()
            # To this very thread: otherwise it might run on past this point for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGKILL)
        with suppress(FileNotFoundError):
            (self._source.directory / f".{partition}.fails").unlink()
            raise BatchFailedError("flaky")
