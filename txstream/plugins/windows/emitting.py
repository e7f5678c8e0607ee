"""`ClosedBolt`: the stream `closed` of the topology that closes the windows.

Invariants. A batch emits what the commit of the batch before it has closed: the closed rows whose window ends
after the watermark before that batch's and not after its own. Both are in the metas of the batch that emits,
and such a row changes no more, since every record for it is late. So every attempt emits the same rows, and
of all batches one emits a row; after a rewind, it follows from the metas that were gone back to.
"""

from __future__ import annotations

import pyarrow as pa

from txstream.api.bolts import OutputFieldsDeclarer, TableReader
from txstream.api.tuples import Chunk, Tuple
from txstream.core.errors import TopologyError, UsageError
from txstream.core.semantics import Semantics
from txstream.plugins.windows.closed import order
from txstream.plugins.windows.state import CLOSED, END, WindowState
from txstream.plugins.windows.times import moment

STREAM = "closed"


class ClosedBolt(TableReader):
    """Emits each closed window once, on the stream `closed`: `ClosedBolt(state)`, or
    `ClosedBolt("count")`, where `count` is the component of its `WindowBolt`.

    The fields are those of the table without `closed`. What the commit of a batch has closed is emitted in
    the batch that follows it, as part of that batch, by one task, by end and key. Its input only says that
    there is a batch: any grouping will do. The topology runs one batch at a time. Raises TopologyError.
    """

    def __init__(self, table: str | WindowState) -> None:
        self.of_state = table if isinstance(table, WindowState) else None
        self.reads = table.table if isinstance(table, WindowState) else table

    def check_table(self, semantics: Semantics, *, sets_aside: bool) -> None:
        state, why = self.table.state, ""
        if not isinstance(state, WindowState):
            why = "it has no windows"
        elif state.late != "dead-letter":
            why = "its closed rows may change (late='amend'); another topology reads them (ClosedWindows)"
        elif semantics is Semantics.NON_TRANSACTIONAL:
            why = "a batch that runs again counts again"
        if why:
            raise TopologyError(f"table {state.table!r} has no stream of closed windows: {why}")

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        state = self.table.state
        values = [field for field in state.value_schema if field.name != CLOSED]
        self._schema = pa.schema([*state.key_schema, *values])
        declarer.declare(self._schema, stream=STREAM)

    def execute(self, tup: Tuple) -> None:
        """Nothing: the table says what is closed."""

    def execute_chunk(self, chunk: Chunk) -> None:
        """Nothing, as `execute`."""

    def finish_batch(self) -> None:
        state = self.table.state
        horizon = self.context.horizons.get(state.table) or {}
        after, until = horizon.get("since"), horizon.get("late")
        if self.context.task_index or until is None or after == until:
            return
        if self.context.open_table is None:
            raise UsageError(f"table {state.table!r} can be read in a run only")
        first = None if after is None else moment(after)
        with self.context.open_table()[0].read_state(self.context.topology_id) as reading:
            rows = sorted(reading.marked(state.table, CLOSED, END, first, moment(until)), key=order)
        if rows:
            shown = [{**row.key, **row.value} for row in rows]
            self.collector.emit_batch(pa.RecordBatch.from_pylist(shown, self._schema), stream=STREAM)
