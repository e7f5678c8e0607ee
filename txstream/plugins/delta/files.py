"""A task's tuples of one batch become Parquet files.

Invariants. A file's name is a function of topology, table, txid, task and what is in it. So a task that is
computed again with the same tuples writes the same file, and one that gets others never changes a file that a
commit may have named. A file is there as a whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txstream.core.transaction import Txid
from txstream.plugins.delta.place import Place, folder_of

COMPRESSION = "snappy"


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file of the table's folder. `partition` has the value of each partition column, as text."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]


def write_files(
    place: Place,
    topology: str,
    table: str,
    txid: Txid,
    task: int,
    rows: pa.Table,
    partition_by: Sequence[str],
) -> list[WrittenFile]:
    """Write these rows, a file for each partition. Raises ServiceUnavailableError."""
    if not rows.num_rows:
        return []
    files, folder, written = place.files(), folder_of(topology, table, txid), []
    for partition, part in _partitions(rows, partition_by):
        data = pa.BufferOutputStream()
        pq.write_table(part, data, compression=COMPRESSION)
        content = data.getvalue().to_pybytes()
        digest = hashlib.blake2b(content, digest_size=12)
        digest.update(json.dumps(partition).encode())
        path = f"{folder}/{task:05d}-{digest.hexdigest()}.parquet"
        with place.reaching():
            # Not by the stream that Arrow would wrap around it: Arrow hands over its own buffers, and this
            # takes only bytes.
            stream: Any = files._handler.open_output_stream(path)
            stream.write(content)
            stream.close()
        written.append(WrittenFile(path, len(content), part.num_rows, partition))
    return written


def _partitions(
    rows: pa.Table, partition_by: Sequence[str]
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the values of each partition, and its rows without these columns, in their order."""
    if not partition_by:
        yield {}, rows.combine_chunks()
        return
    numbered = rows.append_column("\0row", pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(list(partition_by)).aggregate([("\0row", "list")])
    found = []
    for group in groups.to_pylist():
        values = {name: as_partition(group[name]) for name in partition_by}
        found.append((values, sorted(group["\0row_list"])))
    for values, places in sorted(found, key=lambda one: one[1][0]):
        yield (
            values,
            rows.drop_columns(list(partition_by)).take(pa.array(places, pa.int64())).combine_chunks(),
        )


def as_partition(value: Any) -> str | None:
    """Return a value as the log has it (Delta protocol, "Partition Value Serialization")."""
    if value is None or value == "":
        return None  # there is no empty text among partitions
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ", "microseconds") + ("Z" if value.tzinfo else "")
    if isinstance(value, (str, int, date)):
        return str(value)
    raise TypeError(f"no partition has the value {value!r}")
