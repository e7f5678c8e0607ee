"""`FileSpout`: a directory of append-only files as a source of exact, replayable ranges.

Invariants:

- A source is a description: a directory, a format, options. It holds no open file.
- `FileRange`s alone determine what a batch holds. Reading a range again gives the same rows in the same
  order, or an error: a checksum covers the bytes of the range, a fingerprint what lies before its end.
- Only complete data is planned: whole lines that end in a newline.

The driver's side is `coordinator`; `lines` knows the formats.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from txstream.api.schema import format_schema, parse_schema
from txstream.api.spouts import PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.core.errors import DataLostError, PartitionUnavailableError, TopologyError
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.files.format import File
from txstream.spouts.formats.json_values import json_schema
from txstream.spouts.ranges import Span

if TYPE_CHECKING:
    from txstream.plugins.files.coordinator import FileCoordinator
    from txstream.plugins.files.lines import LineFormat


_ORIGIN = (pa.field("path", pa.string()), pa.field("offset", pa.int64()))


@dataclass(frozen=True, slots=True)
class FileRange(Span):
    """Positions `[start, end)` of one file, in bytes.

    records: how many lines the range holds.
    seen: the end of the file when this was planned; anything past `end` is unread.
    mark: fingerprint of what lies before `end`, so that another file of the same name is not mistaken for it.
    crc32: checksum of the bytes of the range.
    """

    records: int
    seen: int = 0
    mark: str = ""
    crc32: int = 0

    def __post_init__(self) -> None:
        Span.__post_init__(self)  # super() fails here: slots=True has replaced the class
        if not 0 <= self.records <= self.end - self.start:
            raise ValueError(f"{self.records} records do not fit positions {self.start} to {self.end}")


class FileSpout(PartitionedSpout[FileRange]):
    """The files of a directory. Each is a partition, named by its path relative to the directory.

    directory: where the files are. The driver and every Spark executor must see it under this path.
    format: "text" (UTF-8; the output is `value string`, one row per line) or "json" (one JSON object per
        line).
    schema: the columns, as Spark DDL or as an Arrow schema, for "json". Fields that it does not name are
        ignored, and fields that a line lacks are null; `json_values` says what fits which type.
    pattern: which files are read, matched against the name without folders ("*.log").
    recursive: also read the files in subfolders, as "folder/name". Links to folders are not followed.
    with_origin: add the columns `path string` (the partition) and `offset bigint` (the byte at which the line
        begins).
    errors: what to do with invalid UTF-8: "strict" raises a DecodeError that names file, byte and line;
        "replace" puts U+FFFD.
    max_records_per_partition: upper bound, per batch, on the records taken from one file.
    max_batch_bytes: upper bound on the bytes of a batch; a batch holds at least one record all the same.
    max_line_bytes: a line longer than this is a DecodeError.

    How files must be written:

    - Files only grow at their end. A line is read once its newline is there ("\\n" or
      "\\r\\n"). A blank line is a row of text; in JSON it is ignored. A byte order mark at the beginning is
      ignored too.
    - Files and folders whose names begin with "." or "_" are ignored.
    - A file keeps its name, and the name is not used again. A renamed file is a new file and is read again; a
      truncated or replaced one is DataLostError. Do not rotate logs within the directory.
    - A file may be deleted once it has been read to its end and its batches are committed; earlier it is
      DataLostError. Its place stays in the topology's progress: use thousands of files, not millions.

    A directory or file that cannot be read for the moment is an outage, which the spout waits out. Raises
    TopologyError or SchemaError for invalid arguments.
    """

    __module__ = "txstream.spouts.files"  # a topology\'s identity has this path

    meta_type: ClassVar[type[FileRange]] = FileRange

    def __init__(
        self,
        directory: str | Path,
        format: Literal["text", "json"] = "text",  # noqa: A002 - the word that Spark uses
        schema: str | pa.Schema | None = None,
        *,
        pattern: str = "*",
        recursive: bool = False,
        with_origin: bool = False,
        errors: Literal["strict", "replace"] = "strict",
        max_records_per_partition: int | None = None,
        max_batch_bytes: int = 64 * 1024 * 1024,
        max_line_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        if not str(directory):
            raise TopologyError("FileSpout needs a directory")
        _one_of("format", format, "text", "json")
        _one_of("errors", errors, "strict", "replace")
        bounds = {
            "max_records_per_partition": max_records_per_partition,
            "max_batch_bytes": max_batch_bytes,
            "max_line_bytes": max_line_bytes,
        }
        for name, value in bounds.items():
            if value is not None and value < 1:
                raise TopologyError(f"{name} is {value}; it must be at least 1")
        if not pattern or "/" in pattern:
            raise TopologyError(
                f"pattern is {pattern!r}; it matches a file's name without folders, such as '*.log'"
            )
        # Executors work in another folder: a relative path would mean something else there.
        self.directory = Path(directory).expanduser().absolute()
        self.format = format
        self.columns = _columns(format, schema)
        self.pattern = pattern
        self.recursive = recursive
        self.with_origin = with_origin
        self.errors = errors
        self.max_records_per_partition = max_records_per_partition
        self.max_batch_bytes = max_batch_bytes
        self.max_line_bytes = max_line_bytes
        self.driver_host = platform.node()
        taken = [field.name for field in _ORIGIN if with_origin and field.name in self.columns.names]
        if taken:
            raise TopologyError(
                f"with_origin adds a column {taken[0]!r}, which is also in {format_schema(self.columns)!r}"
            )
        self.output: pa.Schema = pa.schema([*self.columns, *(_ORIGIN if with_origin else ())])

    def __repr__(self) -> str:
        return f"FileSpout({str(self.directory)!r}, {self.format!r})"

    def coordinator(self, context: SpoutContext) -> FileCoordinator:
        """Open the driver's side. Raises UsageError when the directory does not exist,
        PartitionUnavailableError when it cannot be read now."""
        from txstream.plugins.files.coordinator import FileCoordinator

        return FileCoordinator(self)

    def emitter(self, context: SpoutContext) -> FileEmitter:
        """Open the executors' side. Opens no file yet: each `emit` opens its own."""
        return FileEmitter(self)

    def identity(self) -> Mapping[str, Any]:
        return {"directory": str(self.directory), "format": self.format}

    def reader(self) -> LineFormat:
        """The reader of this format."""
        from txstream.plugins.files.lines import LineFormat

        return LineFormat(self)


def _columns(format_name: str, schema: str | pa.Schema | None) -> pa.Schema:
    if format_name == "text":
        if schema is not None:
            raise TopologyError("text has no schema: its output is 'value string'; use format='json'")
        return parse_schema("value string")
    if schema is None:
        raise TopologyError("format='json' needs a schema, such as 'word string, n bigint'")
    return json_schema(schema)


def _one_of(name: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        raise TopologyError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")


class FileEmitter(PartitionEmitter["FileRange"]):
    """The executors' side: reads ranges of one format. No file stays open."""

    def __init__(self, source: FileSpout) -> None:
        self._source = source
        self._format = source.reader()

    def emit(self, attempt: TransactionAttempt, partition: str, meta: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Raises DecodeError for what cannot be read as declared. A file that differs
        from the plan is DataLostError on the driver's host. Another host may see changes late (a network file
        system), so there it is PartitionUnavailableError, and the batch is tried again."""
        if meta.is_empty:
            return
        directory = self._source.directory
        try:
            yield from self._format.read(File.look(directory, partition), meta)
        except DataLostError as error:
            raise self._gone(error) from error
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise PartitionUnavailableError(
                    f"the directory {directory} is not there on the host {platform.node()}; the driver and "
                    f"every Spark executor must see it under this path"
                ) from error
            raise self._gone(File.missing(directory, partition).lost(meta, "it was deleted")) from error
        except OSError as error:
            raise PartitionUnavailableError(f"{directory / partition} cannot be read: {error}") from error

    def _gone(self, error: DataLostError) -> DataLostError | PartitionUnavailableError:
        here = platform.node()
        if here == self._source.driver_host:
            return error
        return PartitionUnavailableError(
            f"as the host {here} sees it, {error}. Does it see the same directory as the driver's host "
            f"{self._source.driver_host}, and at once?"
        )
