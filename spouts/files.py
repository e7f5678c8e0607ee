"""`FileSpout`: a directory of append-only files as a source of exact, replayable ranges.

Invariants:

- A source is a description: a directory, a format, options. It holds no open file.
- What a batch holds is fixed by `FileRange`s alone. Reading a range again gives the same rows in the same
  order, or an error: the bytes of a range have a checksum, and what lies before its end a fingerprint.
- Only what is complete is planned: whole lines that end in a newline, whole Parquet files.

The driver's side is `files_coordinator`, the executors' `files_emitter`; `files_lines` and `files_parquet`
know the formats.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from txstream.api.errors import TopologyError
from txstream.api.schema import format_schema, parse_schema
from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.spouts.json_values import json_schema
from txstream.spouts.ranges import Span

if TYPE_CHECKING:
    from txstream.spouts.files_coordinator import FileCoordinator
    from txstream.spouts.files_emitter import FileEmitter
    from txstream.spouts.files_format import FileFormat

_ORIGIN = (pa.field("path", pa.string()), pa.field("offset", pa.int64()))


@dataclass(frozen=True, slots=True)
class FileRange(Span):
    """Positions `[start, end)` of one file: bytes of a file of lines, rows of a Parquet file.

    records: how many lines or rows that is.
    seen: the end of the file when this was planned, in positions; what lies behind `end` is unread.
    mark: fingerprint of what lies before `end`, so that another file of the same name is not taken for this.
    crc32: checksum of the bytes of the range; 0 for Parquet, whose files do not change.
    """

    records: int
    seen: int = 0
    mark: str = ""
    crc32: int = 0

    def __post_init__(self) -> None:
        Span.__post_init__(self)  # super() does not know a class that has got its slots
        if not 0 <= self.records <= self.end - self.start:
            raise ValueError(f"{self.records} records do not fit positions {self.start} to {self.end}")


class FileSpout(PartitionedSpout[FileRange]):
    """The files of a directory, each of them a partition, named by its path relative to the directory.

    directory: where the files are. The driver and every Spark executor must see it under this path.
    format: "text" (UTF-8; the output is `value string`, one row per line), "json" (one JSON object per line)
        or "parquet".
    schema: the columns, as Spark DDL or as an Arrow schema, for "json" and "parquet". JSON fields that it
        does not name are ignored and those that a line lacks are null; `json_values` says what fits which
        type. The columns of a Parquet file are found by name; a wider type of the same family may be
        declared.
    pattern: which files are read, by their name without folders ("*.log").
    recursive: also read the files of folders below, as "folder/name". Links to folders are not followed.
    with_origin: add the columns `path string` (the partition) and `offset bigint` (the byte at which the line
        begins, or the number of the row in its Parquet file).
    errors: for invalid UTF-8: "strict" is a DecodeError that names file, byte and line; "replace"
        puts U+FFFD.
    max_records_per_partition: upper bound, per batch, on the records taken from one file.
    max_batch_bytes: upper bound on the bytes of a batch; a batch holds at least one record all the same.
    max_line_bytes: a line longer than this is a DecodeError.

    How files must be written:

    - Text and JSON files grow at their end and are not changed otherwise. A line is read when its newline is
      there ("\\n" or "\\r\\n"). Blank lines are rows of text, and nothing in JSON. A byte order mark at the
      beginning is passed over.
    - A Parquet file does not change once it is there: write it under a name that begins with a dot or an
      underscore, then rename it. One that is not complete is left out, and a warning says so.
    - Files and folders whose names begin with "." or "_" are ignored.
    - A file keeps its name, and its name is not used again: a renamed one is a new file and is read again,
      one that was truncated or replaced is DataLostError. Do not rotate logs within the directory.
    - A file may be deleted when it has been read to its end and its batches are committed; deleted earlier,
      it is DataLostError. Its place is kept in the topology's progress: use thousands of files, not millions.

    A directory or file that cannot be read for the moment is an outage, and waited for. Raises TopologyError
    or SchemaError for anything that cannot be meant.
    """

    meta_type: ClassVar[type[FileRange]] = FileRange

    def __init__(
        self,
        directory: str | Path,
        format: Literal["text", "json", "parquet"] = "text",  # noqa: A002 - the word that Spark uses
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
        _one_of("format", format, "text", "json", "parquet")
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
        # Executors work in another folder, so a relative path would be another one there.
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
        """Raises UsageError when the directory does not exist, PartitionUnavailableError when it cannot be
        read now."""
        from txstream.spouts.files_coordinator import FileCoordinator

        return FileCoordinator(self)

    def emitter(self, context: SpoutContext) -> FileEmitter:
        """Opens nothing yet: each `emit` opens its file."""
        from txstream.spouts.files_emitter import FileEmitter

        return FileEmitter(self)

    def identity(self) -> Mapping[str, Any]:
        return {"directory": str(self.directory), "format": self.format}

    def reader(self) -> FileFormat:
        """What reads this format."""
        if self.format == "parquet":
            from txstream.spouts.files_parquet import ParquetFormat

            return ParquetFormat(self)
        from txstream.spouts.files_lines import LineFormat

        return LineFormat(self)


def _columns(format_name: str, schema: str | pa.Schema | None) -> pa.Schema:
    if format_name == "text":
        if schema is not None:
            raise TopologyError("text has no schema: its output is 'value string'; use format='json'")
        return parse_schema("value string")
    if schema is None:
        raise TopologyError(f"format={format_name!r} needs a schema, such as 'word string, n bigint'")
    return json_schema(schema) if format_name == "json" else parse_schema(schema)


def _one_of(name: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        raise TopologyError(f"{name} is {value!r}; it must be {' or '.join(map(repr, allowed))}")
