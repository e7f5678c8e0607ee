"""`DeduplicateBolt`: of several messages with the same key, only the first passes."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txstream.api.bolts import OutputFieldsDeclarer, TopologyContext, WorkerContext
from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.schema import format_type
from txstream.api.state import SqlState
from txstream.api.tracked import RichBolt, RichCollector
from txstream.api.tuples import Tuple
from txstream.core.errors import ServiceUnavailableError, StateValueError, TopologyError, UsageError

if TYPE_CHECKING:
    from txstream.bolts.first_rows import FirstRows

log = logging.getLogger(__name__)

DEFAULT_WINDOW = 100_000
_EXPIRY_SECONDS = 60.0

Values = tuple[Any, ...]


class DeduplicateBolt(RichBolt):
    """Passes on the first tuple of each key and drops later tuples with that key:
    `DeduplicateBolt("order_id", message="entry_id")`.

    A message that failed comes again with the same key. It must pass then, or it would be lost, because the
    bolts below may not have seen it. So this bolt remembers which message was the first, and lets that one
    pass as often as it comes. It drops duplicates that a producer made, but not those that a replay makes:
    the bolts below must tolerate them, or this bolt's table must be the result.

    keys: the fields that identify what a tuple is about.
    message: the field or fields that identify a message, and that stay the same when a message comes again:
        Kafka's topic, partition and offset, say.
    window: how many keys are remembered; the oldest is forgotten first. They are in memory, in each worker
        process: a key is forgotten when its task runs in another process, and after a restart. Group the
        input by the key, so that each key has one task.
    state: a table instead of a window. Its key columns are the keys; its value columns (among them the fields
        of `message`) are filled from the fields of the same names. It holds the first row of each key,
        whatever is replayed, whoever else writes to it, and whichever process dies: each order is in it once.
        The bolt makes it if it does not exist. It belongs to no topology: `txstream state` does not list it.
    keep: with a state, how long its rows are kept; unset: for ever. It needs a column of type timestamp named
        `seen`, which the bolt fills with the time of the first tuple.

    What it emits has the fields of its input. While the database of the state is unreachable, tuples fail and
    come again. Raises TopologyError for impossible options.
    """

    def __init__(
        self,
        *keys: str,
        message: str | Sequence[str],
        window: int | None = None,
        state: SqlState | None = None,
        keep: timedelta | None = None,
        seen: str = "seen_at",
    ) -> None:
        self.message = (message,) if isinstance(message, str) else tuple(message)
        self.keys = keys if state is None or keys else state.key_names
        self.state = state
        self.keep = keep
        self.seen = seen if keep is not None else None
        self.window = DEFAULT_WINDOW if window is None else window
        if not self.keys or not self.message:
            raise TopologyError(
                "DeduplicateBolt needs a key and what identifies a message, as in "
                "DeduplicateBolt('order_id', message='entry_id')"
            )
        if self.window < 1:
            raise TopologyError(f"window is {window}; it must be at least 1")
        if state is None:
            if keep is not None:
                raise TopologyError("keep is for the rows of a state; in memory, window bounds the keys")
            return
        if window is not None:
            raise TopologyError("DeduplicateBolt remembers in a window or in a state; give one of them")
        if set(self.keys) != set(state.key_names) or not set(self.message) <= set(state.value_names):
            raise TopologyError(
                f"state table {state.table!r} has the key {', '.join(state.key_names)} and the values "
                f"{', '.join(state.value_names)}; DeduplicateBolt needs the key {', '.join(self.keys)}, and "
                f"{', '.join(self.message)} among the values"
            )
        times = [column.name for column in state.value_schema if pa.types.is_timestamp(column.type)]
        if self.seen is not None and self.seen not in times:
            raise TopologyError(
                f"keep needs a value column {self.seen!r} of type timestamp in state table {state.table!r}"
            )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        for name in (*self.keys, *self.message):
            declarer.input_field(name)
        for column in self._columns():
            found = declarer.input_field(column.name).type
            if not found.equals(column.type):
                raise TopologyError(
                    f"component {declarer.component!r}: column {column.name!r} of the table is "
                    f"{format_type(column.type)}, the field is {format_type(found)}"
                )
        declarer.declare(declarer.inputs[0])

    def prepare_worker(self, context: WorkerContext) -> _Window | _TableOfFirst:
        if self.state is None:
            return _Window(self.window)
        from txstream.bolts.first_rows import FirstRows

        url = self.state.url or context.addresses.get("database")
        if not url:
            raise UsageError(
                f"component {context.component!r}: no database for table {self.state.table!r}; give "
                f"SqlState(..., url=...)"
            )
        return _TableOfFirst(self, FirstRows(self.state, url))

    def close_worker(self, resource: _Window | _TableOfFirst) -> None:
        resource.close()

    def prepare(self, context: TopologyContext, collector: RichCollector) -> None:
        super().prepare(context, collector)
        self._tuples: list[Tuple] = []

    def execute(self, tup: Tuple) -> None:
        self._tuples.append(tup)

    def cleanup(self) -> None:
        """Handle all tuples of the micro-batch at once, in one transaction."""
        if not self._tuples:
            return
        keys = [tuple(tup[name] for name in self.keys) for tup in self._tuples]
        messages = [tuple(tup[name] for name in self.message) for tup in self._tuples]
        try:
            first = self.context.resource.first(keys, messages, self._tuples)
        except ServiceUnavailableError as error:
            log.warning("%s: %s; the tuples come again", self.context.component, error)
            for tup in self._tuples:
                self.collector.fail(tup, str(error))
            return
        for tup, key, message in zip(self._tuples, keys, messages, strict=True):
            if first[key] == message:
                self.collector.emit(tup, tup.values)
            self.collector.ack(tup)

    def _columns(self) -> list[pa.Field]:
        """Return the columns of the table that are filled from fields."""
        if self.state is None:
            return []
        columns = [*self.state.key_schema, *self.state.value_schema]
        return [column for column in columns if column.name != self.seen]


class _Window:
    """The first message of each of the latest keys, in this process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._messages: OrderedDict[Values, Values] = OrderedDict()

    def first(
        self, keys: Sequence[Values], messages: Sequence[Values], tuples: Sequence[Tuple]
    ) -> dict[Values, Values]:
        found = {}
        for key, message in zip(keys, messages, strict=True):
            found[key] = self._messages.setdefault(key, message)
            if len(self._messages) > self._size:
                self._messages.popitem(last=False)
        return found

    def close(self) -> None:
        """Do nothing: nothing is open."""


class _TableOfFirst:
    """The first message of each key, kept in a table."""

    def __init__(self, bolt: DeduplicateBolt, rows: FirstRows) -> None:
        self._bolt = bolt
        self._rows = rows
        self._expire_at = time.monotonic()

    def first(
        self, keys: Sequence[Values], messages: Sequence[Values], tuples: Sequence[Tuple]
    ) -> dict[Values, Values]:
        bolt = self._bolt
        distinct = dict(zip(reversed(keys), reversed(tuples), strict=True))
        columns = bolt._columns()
        values = [[tup[column.name] for column in columns] for tup in distinct.values()]
        try:
            rows = pa.Table.from_batches([to_record_batch(values, pa.schema(columns))])
        except UnfitValueError as error:
            what = f"column {error.field.name!r} of the table got {error.value!r:.200}"
            raise StateValueError(f"{what}; filter such tuples out before") from error
        if bolt.seen is not None and bolt.keep is not None and bolt.state is not None:
            field, now = bolt.state.value_schema.field(bolt.seen), datetime.now(UTC)
            rows = rows.append_column(field, [_times(now, field.type, len(values))])
            if time.monotonic() >= self._expire_at:
                self._rows.forget(bolt.seen, _times(now - bolt.keep, field.type, 1)[0].as_py())
                self._expire_at = time.monotonic() + _EXPIRY_SECONDS
        kept = self._rows.keep(rows)
        stored_keys = zip(*(kept.column(name).to_pylist() for name in bolt.keys), strict=True)
        stored = zip(*(kept.column(name).to_pylist() for name in bolt.message), strict=True)
        return dict(zip(stored_keys, stored, strict=True))

    def close(self) -> None:
        self._rows.close()


def _times(moment: datetime, data_type: pa.DataType, count: int) -> pa.Array:
    """Return `count` times a moment as a timestamp column holds it: in UTC if the type has no time zone."""
    shown = moment if data_type.tz is not None else moment.replace(tzinfo=None)
    return pa.array([shown] * count, data_type)
