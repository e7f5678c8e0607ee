"""`ClosedWindows`: the closed rows of a table of windows as a source, each once and in order.

Invariants. Positions are txids of the topology that fills the table. Only batches are read that will not run
again: those before the last one in its ledger. A row that is closed carries the txid that closed it, or that
changed it since, so a batch that is read again has the same rows; where closed rows are amended, it may have
fewer, and a later batch has these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.schema import parse_schema
from txstream.api.spouts import PartitionCoordinator, PartitionedSpout, PartitionEmitter, SpoutContext
from txstream.core.errors import DataLostError, TopologyError
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.windows.state import CLOSED, END, WindowState
from txstream.spouts.ranges import Span
from txstream.state import open_database
from txstream.state.reading import StateReading, StoredRow

PARTITION = "closed"
_CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class ClosedRange(Span):
    """What batches `[start, end)` of the other topology have closed or amended."""


class ClosedWindows(PartitionedSpout[ClosedRange]):
    """The closed windows of another topology's table, as they close.

    state: the table, declared as there; with `index_txid=True` a batch is found without reading all of it.
    topology: the id of the topology that fills it.
    url: its database, by default that of the state or else the run's.
    max_txids: how many batches of the other topology are read in one at most.

    The fields are those of the table without `closed`, and `amended`: the row was closed before, has changed,
    and has been emitted before. The last batch of the other topology is read once another one follows it.
    With `late="amend"` the table must be opaque, and so must the spout: a replay may find that a row has been
    amended since. Such a row comes again as amended, unchanged, if the batch that amended it was undone.
    """

    meta_type: ClassVar[type[ClosedRange]] = ClosedRange

    def __init__(
        self, state: WindowState, topology: str, *, url: str | None = None, max_txids: int = 1_000
    ) -> None:
        if not isinstance(state, WindowState):
            raise TopologyError(f"ClosedWindows takes a WindowState, not {type(state).__name__}")
        if max_txids < 1:
            raise TopologyError(f"max_txids is {max_txids}; it must be at least 1")
        values = [field for field in state.value_schema if field.name != CLOSED]
        self.state, self.topology, self.max_txids = state, topology, max_txids
        self._url = url
        self.output: pa.Schema = pa.schema([*state.key_schema, *values, pa.field("amended", pa.bool_())])

    def __repr__(self) -> str:
        return f"ClosedWindows({self.state.table!r} of {self.topology!r})"

    def identity(self) -> Mapping[str, Any]:
        return {"topology": self.topology, "table": self.state.table}

    def url(self, context: SpoutContext) -> str:
        """Return where the table is."""
        return self._url or self.state.url or context.addresses["database"]

    def coordinator(self, context: SpoutContext) -> _Coordinator:
        if self.state.late == "amend" and context.is_transactional:
            raise TopologyError(
                f"{self!r}: its closed rows may still change, so a transactional batch could not be read "
                f"again as it was; take an OpaqueSpout"
            )
        return _Coordinator(self, context)

    def emitter(self, context: SpoutContext) -> _Emitter:
        return _Emitter(self, context)


class _Reader:
    def __init__(self, source: ClosedWindows, context: SpoutContext) -> None:
        self._source = source
        self._database = open_database(
            source.url(context), connect_timeout_seconds=context.connect_timeout_seconds
        )

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        with self._database.read_state(self._source.topology) as state:
            yield state

    def close(self) -> None:
        self._database.close()


class _Coordinator(_Reader, PartitionCoordinator[ClosedRange]):
    def plan(self, last: Mapping[str, ClosedRange], limit: int) -> Mapping[str, ClosedRange]:
        start = last[PARTITION].end if PARTITION in last else 0
        end = min(self.targets()[PARTITION], start + self._source.max_txids)
        if end < start:
            raise DataLostError(
                f"{self._source!r} was read up to txid {start}, and its ledger ends at {end}: that topology "
                f"was deleted, or its database restored from an older copy; run this one under another id"
            )
        self.untaken_records = None
        return {PARTITION: ClosedRange(start, end)}

    def targets(self) -> Mapping[str, int]:
        """The last txid in the ledger: a batch that was committed may run again until another one begins."""
        with self.reading() as state:
            return {PARTITION: 0 if state.last is None else state.last.txid}

    def reached(self, last: Mapping[str, ClosedRange], targets: Mapping[str, Any]) -> bool:
        return bool(targets[PARTITION] <= (last[PARTITION].end if PARTITION in last else 0))


class _Emitter(_Reader, PartitionEmitter[ClosedRange]):
    def emit(
        self, attempt: TransactionAttempt, partition: str, meta: ClosedRange
    ) -> Iterator[pa.RecordBatch]:
        source, table = self._source, self._source.state.table
        schema: pa.Schema = parse_schema(source.output)
        with self.reading() as state:
            stored = next((one for one in state.tables() if one.name == table), None)
            if stored is None or (source.state.late == "amend" and not stored.has_prev):
                why = "has no such table" if stored is None else "does not keep what closed rows were before"
                raise TopologyError(f"{source!r}: that topology {why}; an opaque table does")
            rows = self._rows(state, meta)
            while some := list(islice(rows, _CHUNK_ROWS)):
                columns = [pa.array([row[f.name] for row in some], f.type) for f in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _rows(self, state: StateReading, meta: ClosedRange) -> Iterator[dict[str, Any]]:
        """Yield the closed rows of these batches in the order of their txids, and in each by time and key."""
        found = state.written_since(self._source.state.table, meta.start)
        for txid, rows in groupby(found, lambda row: row.txid or 0):
            if txid >= meta.end:
                return
            closed = [row for row in rows if row.value[CLOSED]]
            yield from (_shown(row) for row in sorted(closed, key=order))


def order(row: StoredRow) -> tuple[Any, ...]:
    """By end, then by key."""
    return row.value[END], repr(tuple(row.key.values()))


def _shown(row: StoredRow) -> dict[str, Any]:
    return {**row.key, **row.value, "amended": bool(row.prev and row.prev[CLOSED])}
