"""What crosses between driver and executors: work orders down, results and failures up.

Work orders are JSON (they travel as a Spark local property, which is text). Results are one byte string
per Spark task: the length of a JSON header, the header, then Arrow IPC streams in the order it names. Each
stream begins at a multiple of 8 bytes: Arrow reads them in place, and columns that are not aligned cost
time and a warning.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any

import pyarrow as pa

from txstream.transaction import AttemptId, TransactionAttempt, Txid

_LENGTH = struct.Struct(">I")
_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """One attempt of one batch: `assignments[i]` are the partitions of Spark task i, as JSON metas.

    `slots` are those that an operator has changed since the topology was started: with them in the order,
    every Spark task of an attempt, recomputed ones too, sees the same layout. `committed` is the attempt that
    was committed last, where that is known: only in the commit phase.
    """

    attempt: TransactionAttempt
    width: int
    assignments: Sequence[Mapping[str, Any]]
    slots: Mapping[str, int] = field(default_factory=dict)
    committed: TransactionAttempt | None = None

    def to_json(self) -> str:
        return json.dumps(
            {
                "txid": self.attempt.txid,
                "attempt": self.attempt.attempt,
                "width": self.width,
                "assignments": self.assignments,
                "slots": dict(self.slots),
                "committed": None if self.committed is None else list(astuple(self.committed)),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> WorkOrder:
        document = json.loads(text)
        attempt = TransactionAttempt(Txid(document["txid"]), AttemptId(document["attempt"]))
        committed = document["committed"]
        return cls(
            attempt,
            document["width"],
            document["assignments"],
            document["slots"],
            None if committed is None else TransactionAttempt(*committed),
        )


def pack(header: Mapping[str, Any], tables: Mapping[str, pa.Table] | None = None) -> bytes:
    """A message: JSON header and named Arrow tables."""
    blobs: list[bytes] = []
    layout: list[tuple[str, int]] = []
    for name, table in (tables or {}).items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        blob = sink.getvalue().to_pybytes()
        blobs.append(blob + bytes(-len(blob) % _ALIGNMENT_BYTES))
        layout.append((name, len(blobs[-1])))
    head = json.dumps({**header, "tables": layout}).encode()
    head += b" " * (-(_LENGTH.size + len(head)) % _ALIGNMENT_BYTES)
    return b"".join((_LENGTH.pack(len(head)), head, *blobs))


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """The inverse of `pack`, without copying the tables."""
    view = memoryview(message)
    (length,) = _LENGTH.unpack_from(view)
    position = _LENGTH.size + length
    header: dict[str, Any] = json.loads(bytes(view[_LENGTH.size : position]))
    tables: dict[str, pa.Table] = {}
    for name, size in header.pop("tables"):
        tables[name] = pa.ipc.open_stream(pa.py_buffer(view[position : position + size])).read_all()
        position += size
    return header, tables
