"""`Tuple`: one row of a stream as a bolt sees it; `Chunk`: the Arrow batch behind it.

A chunk turns a column into Python objects when the column is first asked for, all rows at once. So columns
that no bolt reads never leave Arrow, and reading a value costs a list index.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from txstream.core.errors import TupleError

DEFAULT_STREAM = "default"


class Chunk:
    """Rows of one stream of one component; `source_task` is the task that emitted them."""

    __slots__ = (
        "batch",
        "index",
        "marks",
        "names",
        "ready",
        "source_component",
        "source_stream",
        "source_task",
    )

    def __init__(
        self,
        batch: pa.RecordBatch,
        source_component: str,
        source_stream: str = DEFAULT_STREAM,
        source_task: int = 0,
    ) -> None:
        self.batch = batch
        self.names: list[str] = batch.schema.names
        self.index = {name: position for position, name in enumerate(self.names)}
        self.ready: dict[str | int, list[Any]] = {}  # by the name or position that was asked for
        self.source_component = source_component
        self.source_stream = source_stream
        self.source_task = source_task
        # For the engine: the trees that the tuples belong to, where they are tracked, or the numbers of rows.
        self.marks: Any = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def column(self, field: str | int) -> list[Any]:
        """Return one column as Python values, one per row. Raises TupleError for an unknown field."""
        values = self.ready.get(field)
        if values is None:
            try:
                position = self.index[field] if isinstance(field, str) else range(len(self.names))[field]
            except LookupError:
                raise self.unknown(field) from None
            values = self.ready.get(position)
            if values is None:
                values = self.ready[position] = self.batch.column(position).to_pylist()
            self.ready[field] = values
        return values

    def tuples(self) -> Iterator[Tuple]:
        return map(Tuple, repeat(self), range(self.batch.num_rows))

    def unknown(self, field: str | int) -> TupleError:
        return TupleError(
            f"no field {field!r} in stream {self.source_stream!r} of {self.source_component!r}; "
            f"it has {', '.join(self.names)}"
        )


class Tuple:
    """One tuple. `tup["word"]` and `tup[0]` give a value, `tup.fields` the names."""

    __slots__ = ("_chunk", "_row")

    def __init__(self, chunk: Chunk, row: int) -> None:
        self._chunk = chunk
        self._row = row

    def __getitem__(self, field: str | int) -> Any:
        try:  # the fast path: this runs for each tuple and field that a bolt reads
            return self._chunk.ready[field][self._row]
        except KeyError:
            return self._chunk.column(field)[self._row]

    def __len__(self) -> int:
        return len(self._chunk.names)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self.fields, self.values, strict=True))
        return f"Tuple({values})"

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self._chunk.names)

    @property
    def values(self) -> tuple[Any, ...]:
        return tuple(self._chunk.column(i)[self._row] for i in range(len(self._chunk.names)))

    @property
    def source_component(self) -> str:
        """The id of the component that emitted this tuple."""
        return self._chunk.source_component

    @property
    def source_stream(self) -> str:
        return self._chunk.source_stream

    @property
    def source_task(self) -> int:
        """The index of the task that emitted this tuple, within the source component."""
        return self._chunk.source_task


def one_row(chunk: Chunk, row: int) -> Chunk:
    """Return the chunk of this tuple alone, so that no other becomes a Python object."""
    return Chunk(chunk.batch.slice(row, 1), chunk.source_component, chunk.source_stream, chunk.source_task)
