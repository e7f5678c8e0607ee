"""What a bolt task emits: checked against the declared streams and turned into Arrow.

Invariants. What leaves a collector has exactly the schema of its stream, and no value was changed to fit.
After `close` it takes nothing any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from txstream.api.errors import TupleError, TxstreamError, UsageError
from txstream.api.rows import UnfitValueError, to_record_batch
from txstream.api.schema import format_schema, format_type
from txstream.api.tuples import DEFAULT_STREAM
from txstream.engine.batch.plan import BoltSpec

_FLUSH_ROWS = 50_000

# Takes the emitting task, the tuples, their stream, and the task that the emitter has chosen, if any.
Send = Callable[[int, pa.RecordBatch, str, int | None], None]


class Collector:
    """Buffers what a task emits, checks it against the declared streams, and passes it on as Arrow."""

    def __init__(self, spec: BoltSpec, task: int, send: Send) -> None:
        self._spec = spec
        self._task = task
        self._send = send
        self._rows: dict[str, list[Sequence[Any]]] = {stream: [] for stream in spec.streams}
        self._direct: dict[tuple[str, int], list[Sequence[Any]]] = {}
        self._arity = {stream: len(schema) for stream, schema in spec.streams.items()}
        self._is_open = True

    def emit(self, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        rows = self._rows.get(stream)
        if rows is None:
            raise self._unknown_stream(stream)
        rows.append(self._checked(values, stream))
        if len(rows) >= _FLUSH_ROWS:
            self._flush(stream)

    def emit_direct(self, task: int, values: Sequence[Any], stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        if stream not in self._rows:
            raise self._unknown_stream(stream)
        if stream not in self._spec.direct_streams:
            raise TupleError(
                f"component {self._spec.id!r} emitted directly to stream {stream!r}, which is not declared "
                f"with direct=True"
            )
        if not isinstance(task, int) or isinstance(task, bool):
            raise TupleError(
                f"component {self._spec.id!r} emitted to stream {stream!r} for task {task!r}; a task is a "
                f"number from 0 on"
            )
        self._direct.setdefault((stream, task), []).append(self._checked(values, stream))

    def emit_batch(self, batch: pa.RecordBatch, stream: str = DEFAULT_STREAM) -> None:
        """See `OutputCollector`."""
        if stream not in self._rows:
            raise self._unknown_stream(stream)
        declared = self._spec.streams[stream]
        if not batch.schema.equals(declared):
            raise TupleError(
                f"component {self._spec.id!r} emitted a batch of {format_schema(batch.schema)} to stream "
                f"{stream!r}, which is declared as {format_schema(declared)}"
            )
        self._flush(stream)
        if batch.num_rows:
            self._send(self._task, batch, stream, None)

    def flush(self) -> None:
        for stream in self._rows:
            self._flush(stream)
        direct, self._direct = self._direct, {}
        for (stream, task), rows in direct.items():
            self._send(self._task, self._to_arrow(rows, stream), stream, task)

    def close(self) -> None:
        """The bolt has had its time. What a later attempt emits here would go nowhere."""
        self._rows = {}  # every way to emit looks here first
        self._is_open = False

    def _checked(self, values: Sequence[Any], stream: str) -> Sequence[Any]:
        if type(values) is not tuple:
            if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping, Set)):
                raise self._wrong_arity(values, stream)
            values = tuple(values)  # a list may be changed by the bolt before it is sent
        if len(values) != self._arity[stream]:
            raise self._wrong_arity(values, stream)
        return values

    def _flush(self, stream: str) -> None:
        rows = self._rows[stream]
        if not rows:
            return
        self._rows[stream] = []
        self._send(self._task, self._to_arrow(rows, stream), stream, None)

    def _to_arrow(self, rows: list[Sequence[Any]], stream: str) -> pa.RecordBatch:
        try:
            return to_record_batch(rows, self._spec.streams[stream])
        except UnfitValueError as error:
            found, field = error.value, error.field
            raise TupleError(
                f"component {self._spec.id!r} emitted {found!r:.200} ({type(found).__name__}) in field "
                f"{field.name!r} of stream {stream!r}, which is declared as {format_type(field.type)}"
            ) from None

    def _wrong_arity(self, values: object, stream: str) -> TupleError:
        return TupleError(
            f"component {self._spec.id!r} emitted {values!r:.200} to stream {stream!r}, which takes a tuple "
            f"of {self._arity[stream]} field(s): {format_schema(self._spec.streams[stream])}"
        )

    def _unknown_stream(self, stream: str) -> TxstreamError:
        if not self._is_open:
            return UsageError(
                f"component {self._spec.id!r} used a collector outside of its attempt; take the one that "
                f"prepare or execute gets, and use it up to the end of finish_batch"
            )
        return TupleError(
            f"component {self._spec.id!r} emitted to stream {stream!r}, but declares "
            f"{', '.join(map(repr, self._spec.streams)) or 'no output'}"
        )
