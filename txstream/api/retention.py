"""`keep`: how long a table keeps rows, by a column of time. What is before its horizon is late, or removed.

Invariants. The horizon of a table is part of a batch's metas, in whole seconds since 1970, and never lies
before that of the batch before. So whether a record is late depends on the plan of its batch alone, and a
replay decides as the first attempt did. A commit removes only what lies before the horizon of the batch
before it, which every later attempt of any batch knows: no attempt can have written such a row meanwhile, and
none will write one again. So a removal need not be undone, and may be repeated, or left to a later commit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.schema import format_type
from txstream.core.errors import LateRecordError, TopologyError
from txstream.core.ledger_retention import seconds_of

if TYPE_CHECKING:
    from txstream.api.state import SqlState
    from txstream.api.tuples import Chunk

_PLACE = ("topic", "partition", "offset")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = int((datetime(1, 1, 2, tzinfo=UTC) - _EPOCH).total_seconds())
"""Databases and drivers disagree about years before the first."""

Horizons = Mapping[str, Any]
"""By table. For `keep` in seconds since 1970: what is older is late. A state that decides itself has JSON
values of its own there."""


class HorizonKeeper(ABC):
    """Decides what a state's table has among the horizons of each batch, on the driver; see
    `SqlState.horizon_keeper`. What tasks find out about the records of a batch comes back to it: the metadata
    of the schema of their deltas. Each leader makes a new one. A batch may be planned, and planned again,
    while earlier ones are open, so `next` and the two other methods are called from different threads."""

    @abstractmethod
    def next(self, before: Any, taken: Collection[str], waiting: Collection[str], now: float) -> Any:
        """Return the horizon of a batch that is planned `now` (seconds since 1970), as JSON values: an
        object. `before` is that of the batch before; None if it has none. `taken` are the partitions of which
        the batch has records, `waiting` those of which it has none although there were some, or may be."""

    @abstractmethod
    def learned(self, horizon: Any, told: Sequence[Mapping[bytes, bytes]]) -> Any:
        """Return what the ledger is to keep beside a batch with this horizon, as JSON values, from what its
        tasks have told. Changes nothing: its commit may still fail. Called in the order of txids."""

    @abstractmethod
    def committed(self, txid: int, learned: Any) -> None:
        """Learn what the ledger has of a committed batch: of the last one, when a leader begins, then of each
        one that is committed."""


def keep_seconds(table: str, keep: str) -> int:
    """Return a `keep` such as "90d" in seconds. Raises TopologyError for anything else."""
    seconds = seconds_of(keep) if isinstance(keep, str) else None
    if not seconds or seconds >= timedelta.max.total_seconds():
        raise TopologyError(
            f"state table {table!r}: keep is {keep!r}; write how long rows are kept, such as '90d', '12h' or "
            f"'30m' (units: s, m, h, d)"
        )
    return int(seconds)


def is_time(data_type: pa.DataType) -> bool:
    """Whether values of this type are points of time."""
    return bool(pa.types.is_date32(data_type) or pa.types.is_timestamp(data_type))


def time_column(table: str, keep_on: str | None, allowed: pa.Schema, why: str) -> str:
    """Return the column whose time decides: `keep_on`, or the only column of time among those that are
    allowed. `why` says why others are not. Raises TopologyError."""
    times: list[str] = [field.name for field in allowed if is_time(field.type)]
    if keep_on is None and len(times) == 1:
        return times[0]
    if keep_on in times and keep_on is not None:
        return keep_on
    there = f"it may be {' or '.join(map(repr, times))}" if times else "there is none"
    found = "" if keep_on is None else f", which is {keep_on!r}"
    if keep_on in allowed.names:
        found += f" ({format_type(allowed.field(keep_on).type)})"
    raise TopologyError(
        f"state table {table!r}: keep needs a date or timestamp column, named by keep_on{found}; {there}. "
        f"{why}"
    )


def next_horizons(before: Horizons, keeps: Mapping[str, int], now: float) -> Horizons:
    """Return the horizons of a batch that is planned `now` (seconds since 1970), after a batch with those
    `before`. `keeps` has the seconds by table. A clock that goes back, or a longer `keep`, moves no horizon
    back: what was removed since would begin anew."""
    return {
        table: max(math.floor(now) - seconds, before.get(table, _FIRST), _FIRST)
        for table, seconds in keeps.items()
    }


def limit_of(data_type: pa.DataType, horizon: int) -> date | datetime:
    """Return the first value of a column that is not expired. A date is kept until its day, in UTC, is over
    for as long as rows are kept; a timestamp without a zone is taken for UTC."""
    moment = _EPOCH + timedelta(seconds=horizon)
    if pa.types.is_date32(data_type):
        return moment.date()
    return moment if data_type.tz else moment.replace(tzinfo=None)


def late_rows(column: pa.Array | pa.ChunkedArray, horizon: int) -> pa.Array | None:
    """Return which rows lie before a horizon, or None if none does. A null is not late."""
    import pyarrow.compute as pc  # short commands load what declares tables, and do without it

    limit = pa.scalar(limit_of(column.type, horizon), column.type)
    late = pc.fill_null(pc.less(column, limit), fill_value=False)
    return late if pc.any(late).as_py() else None


def late_words(table: str, column: str, data_type: pa.DataType, horizon: int) -> str:
    """Return why a row is late. The words are the same for all of them, and hold no data."""
    return f"table {table!r} keeps no row whose {column!r} is before {limit_of(data_type, horizon)} any more"


def refuse_late(state: SqlState, horizon: Any, chunk: Chunk) -> None:
    """Raise LateRecordError for tuples of a time before the horizon of the state's table."""
    first = state.keeps_from(horizon)
    if first is None or state.keep_on is None:
        return
    column = chunk.batch.column(chunk.index[state.keep_on])
    late = late_rows(column, first)
    if late is not None:
        raise late_error(chunk, late, late_words(state.table, state.keep_on, column.type, first))


def late_error(chunk: Chunk, late: pa.Array, words: str) -> LateRecordError:
    """Return the error about those tuples of a chunk that are late. Its words hold no data, and are the same
    for all."""
    rows = chunk.batch.filter(late)
    error = LateRecordError(words)
    error.places = _places(rows, chunk)
    if rows.num_rows == chunk.batch.num_rows:
        error.only_late_from = chunk.source_component
    return error


def _places(rows: pa.RecordBatch, chunk: Chunk) -> Sequence[tuple[str, int]]:
    """Return where the records of rows are, if they have kept Kafka's columns. What fields of these names
    mean is for the search to find out."""
    if not {*_PLACE} <= chunk.index.keys():
        return ()
    topics, partitions, offsets = (rows.column(chunk.index[name]).to_pylist() for name in _PLACE)
    return sorted(
        {
            (f"{topic}/{partition}", offset)
            for topic, partition, offset in zip(topics, partitions, offsets, strict=True)
            if isinstance(offset, int)
        }
    )
