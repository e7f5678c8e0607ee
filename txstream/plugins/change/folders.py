"""A savepoint as a folder: a Parquet file for each state table, and `manifest.json` with their digests.

The manifest is written last, so a folder without one is not a savepoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txstream.core.errors import CorruptStateError, UsageError
from txstream.plugins.change.registry import SavedPart, SavedTable

if TYPE_CHECKING:
    from txstream.state import BatchRecord

MANIFEST: Final = "manifest.json"


def refuse(folder: Path) -> None:
    """Raise UsageError unless the folder is new or empty and can be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"--to {folder} is not empty; name a new folder")
    except OSError as error:
        raise UsageError(f"--to {folder} cannot be made: {error.strerror or error}") from error


def write_table(folder: Path, one: SavedTable, parts: Iterator[pa.Table]) -> tuple[SavedTable, int]:
    """Write a table's file; return it with its rows and digest, and its size in bytes."""
    import pyarrow.parquet as pq

    file, rows = folder / one.copy, 0
    first = next(parts)
    with pq.ParquetWriter(file, first.schema) as writer:
        for part in parts:
            writer.write_table(part)
            rows += part.num_rows
    with file.open("rb") as written:
        os.fsync(written.fileno())
    return SavedTable(one.table, one.copy, one.declaration, rows, digest(file)), file.stat().st_size


def write_manifest(folder: Path, topology_id: str, row: BatchRecord, parts: Mapping[str, SavedPart]) -> None:
    """Write what the folder holds: by database, each state table with its file, rows and SHA-256."""
    some = next(iter(parts.values()))
    manifest = {
        "topology": topology_id,
        "uuid": row.uuid,
        "semantics": str(row.semantics),
        "name": some.name,
        "txid": row.txid,
        "attempt": row.attempt,
        "at": some.at.isoformat(),
        "metas": row.metas,
        "databases": {url: [asdict(one) for one in part.tables] for url, part in parts.items()},
    }
    new = folder / f"{MANIFEST}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / MANIFEST)


def read_table(folder: Path, one: SavedTable) -> Iterator[pa.Table]:
    """Yield the rows of a table's file. Raises CorruptStateError if it is gone or another one."""
    import pyarrow.parquet as pq

    file = folder / one.copy
    if not file.is_file() or digest(file) != one.sha256:
        found = "has another digest than the manifest" if file.is_file() else "is gone"
        raise CorruptStateError(f"{file} {found}: the savepoint cannot be used; restore that file")
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(10_000):
            yield pa.Table.from_batches([batch])


def remove(folder: Path, part: SavedPart) -> None:
    """Remove the files of a savepoint, and the folder if nothing else is in it."""
    for name in (MANIFEST, f"{MANIFEST}.new", *(one.copy for one in part.tables)):
        (folder / name).unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def digest(file: Path) -> str:
    """Return the SHA-256 of a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
