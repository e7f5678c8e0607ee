"""Shares: a batch's deltas cut into pieces that Spark tasks write, each in a transaction of its own.

Invariant: no key is in two shares of an attempt. So shares may be written in any order, and twice, even by
two tasks at once: by the value rules, a key's second write under one attempt changes nothing.
"""

from __future__ import annotations

import pickle
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle

from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.executor_failures import Failure, describe
from txstream.engine.batch.messages import pack, unpack
from txstream.engine.batch.worker_process import WorkerProcess
from txstream.engine.states.worker_databases import StorePlace

if TYPE_CHECKING:
    from txstream.state import TableSpec, TopologyLife

_LARGEST_SHARE_BYTES = 900_000
"""Spark warns of tasks above 1,000 KiB. More shares than slots cost little: each is worth its transaction."""

Message = tuple[bytes, bytes]
"""A share on its way to a task: a pickled head (whose it is, how it is written) and its deltas as Arrow."""


@dataclass(frozen=True)
class TableDeltas:
    """The deltas of one state table, every key once. `component` fills it."""

    component: str
    spec: TableSpec
    deltas: pa.Table


@dataclass(frozen=True)
class StateWrite:
    """What tasks write into one database in one attempt, after the driver has begun the commit there."""

    place: StorePlace
    life: TopologyLife
    attempt: TransactionAttempt
    tables: Sequence[TableDeltas]

    @property
    def rows(self) -> int:
        return sum(table.deltas.num_rows for table in self.tables)


def cut(write: StateWrite, slots: Mapping[str, int]) -> list[StateWrite]:
    """Return the shares of a write: one for each slot of its widest component, or more to keep them small.

    Deltas are sorted by key first. Each share is a range of keys, so the rows that a task locks lie together.
    """
    sizes = [table.deltas.nbytes for table in write.tables]
    pieces = max([1, *(slots.get(table.component, 1) for table in write.tables)])
    pieces = max(pieces, -(-sum(sizes) // _LARGEST_SHARE_BYTES))
    parts: list[list[TableDeltas]] = [[] for _ in range(pieces)]
    for table in write.tables:
        # By position, where key columns come first: Arrow takes a name that begins with a dot for a path.
        keys: list[Any] = [(place, "ascending") for place in range(len(table.spec.state.key_names))]
        deltas = table.deltas.take(pc.sort_indices(table.deltas, sort_keys=keys))
        for piece, part in enumerate(parts):
            start, end = (deltas.num_rows * at // pieces for at in (piece, piece + 1))
            if end > start:
                part.append(TableDeltas(table.component, table.spec, deltas.slice(start, end - start)))
    return [StateWrite(write.place, write.life, write.attempt, part) for part in parts if part]


def to_message(share: StateWrite) -> Message:
    """Return a share as bytes. Its head has the database's URL: it may go into a task, but not into a log."""
    components = " or ".join(dict.fromkeys(table.component for table in share.tables))
    # Pickled apart: an executor without a database library cannot unpickle it, but must be able to say so.
    bound = _pickle((share.life, [table.spec for table in share.tables]))
    head = (share.place, share.life.topology, share.attempt, components, bound)
    body = pack({}, {str(at): table.deltas for at, table in enumerate(share.tables)})
    return _pickle(head), body


def write_share(message: Message, process: WorkerProcess) -> bytes:
    """Write one share, on an executor. A failure comes back as an answer, like a bolt's."""
    started = time.perf_counter()
    head, body = message
    place, topology, attempt, components, bound = pickle.loads(head)  # noqa: S301 - pickled by the driver
    try:
        store = process.stores.get(place, topology)
        _, tables = unpack(body)
        life, specs = pickle.loads(bound)  # noqa: S301 - pickled by the driver
        writes = [(spec, tables[str(at)]) for at, spec in enumerate(specs)]
        rows = store.of(life.topology, life.uuid, life.semantics).write(attempt, writes)
    except Exception as error:  # noqa: BLE001 - reported to the driver, which raises it again
        if isinstance(error, ServiceUnavailableError):
            error = ServiceUnavailableError(f"host {socket.gethostname()}: {error}")
        return pack({"failure": describe(error, components, None).to_document()})
    return pack({"rows": rows, "seconds": time.perf_counter() - started})


def rows_written(attempt: TransactionAttempt, answers: Sequence[bytes]) -> list[int]:
    """Return how many rows of each share were written. Raises the error of the first that failed."""
    rows: list[int] = []
    for answer in answers:
        document, _ = unpack(answer)
        if "failure" in document:
            raise Failure(**document["failure"]).to_error(attempt)
        rows.append(document["rows"])
    return rows


def cut_all(writes: Sequence[StateWrite], slots: Mapping[str, int]) -> tuple[list[Message], list[int]]:
    """Return all shares as messages, and for each the position of the write that it belongs to."""
    shares = [(at, share) for at, write in enumerate(writes) for share in cut(write, slots)]
    return [to_message(share) for _, share in shares], [at for at, _ in shares]


def rows_by_write(writes: Sequence[StateWrite], positions: Sequence[int], rows: Sequence[int]) -> list[int]:
    """Add up the rows of the shares by the write that they belong to."""
    totals = [0] * len(writes)
    for at, count in zip(positions, rows, strict=True):
        totals[at] += count
    return totals


def _pickle(value: Any) -> bytes:
    return bytes(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]  # pyspark's copy
