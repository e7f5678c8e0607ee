"""`SqlAppendBolt`: the committer that writes tuples as rows of a SQL table, each exactly once."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from txstream.api.bolts import OutputFieldsDeclarer, StateCommitter
from txstream.api.reducers import Put
from txstream.api.retention import refuse_late
from txstream.api.schema import format_type
from txstream.api.state import REMOVED, SqlTable
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.bolts.removals import Removal
from txstream.bolts.sql import holds, refuse_nulls, refuse_unfit, refuse_unfit_keys
from txstream.core.errors import TopologyError
from txstream.state.row_fold import RowFold

_PLACE = ("topic", "partition", "offset")


class SqlAppendBolt(StateCommitter):
    """Writes each tuple as a row: `SqlAppendBolt(SqlTable("orders", "customer string, amount double"))`.

    Columns are filled from the input's fields of the same names, in any grouping. With "ignore" or "replace",
    several rows of one key in one batch become one: the first, or the last, in the order of the fields
    `order_by`, by default those of topic, partition and offset that the input has. Across batches the order
    is that of the batches. A tuple with a null in its key, or with a value that no database keeps (NaN, NUL
    in text, a year beyond 9999), ends the run with StateValueError or becomes a dead letter; so does a second
    row of one key where `on_conflict` is "fail". A tuple that the table's `removed_by` marks removes the row
    of its key; what else it has does not matter. With `sequence_by`, that column orders the rows of a batch
    before all others, and may not be null.
    """

    state: SqlTable

    def __init__(self, table: SqlTable, *, order_by: str | Sequence[str] = ()) -> None:
        if not isinstance(table, SqlTable):
            raise TopologyError(f"SqlAppendBolt takes a SqlTable, not {type(table).__name__}")
        self.state = table
        self.reducers = {name: Put() for name in table.value_names}
        self.removal = None if table.removed_by is None else Removal(table)
        self.order_by = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        self._asked_order = self.order_by
        if self.order_by and table.on_conflict == "fail":
            raise TopologyError(
                f"table {table.table!r}: order_by chooses between rows of one key, which on_conflict='fail' "
                f"refuses; leave it out"
            )

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        table = self.state
        if self.removal is not None:
            self.removal.check(declarer)
        for column in (*table.key_schema, *table.value_schema):
            if column.name == REMOVED:
                continue
            if any(column.name not in schema.names for schema in declarer.inputs):
                raise TopologyError(
                    f"component {declarer.component!r}: its input has no field {column.name!r} for that "
                    f"column of table {table.table!r}{_remedy(column.name)}"
                )
            found = declarer.input_field(column.name).type
            is_key = column.name in table.key_names
            if not (found.equals(column.type) or (not is_key and holds(column.type, found))):
                raise TopologyError(
                    f"component {declarer.component!r}: column {column.name!r} of table {table.table!r} is "
                    f"{format_type(column.type)}, the field is {format_type(found)}"
                )
        if table.on_conflict != "fail":
            self._check_order(declarer)
        self.fold = RowFold(table, self.order_by)

    def _check_order(self, declarer: OutputFieldsDeclarer) -> None:
        if not self._asked_order:
            self.order_by = tuple(
                name for name in _PLACE if all(name in schema.names for schema in declarer.inputs)
            )
        if not self.order_by:
            raise TopologyError(
                f"component {declarer.component!r}: say by order_by= which fields order the rows of one key "
                f"in a batch; the input has no topic, partition or offset"
            )
        sequence = self.state.sequence_by
        if sequence is not None and sequence not in self.order_by[:1]:
            self.order_by = (sequence, *self.order_by)
        for name in self.order_by:
            declarer.input_field(name)

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        refuse_unfit_keys(self.state, chunk)
        if self.state.sequence_by is not None:
            refuse_nulls(
                self.state, chunk, f"the sequence, column {self.state.sequence_by!r}", self.state.sequence_by
            )
        for column in self.state.value_schema:
            if column.name != REMOVED:
                refuse_unfit(self.state, chunk, f"column {column.name!r}", column.name, column.type)
        refuse_late(self.state, self.horizon, chunk)
        self.fold.add(chunk.batch if self.removal is None else self.removal.marked(chunk.batch))

    def deltas(self) -> pa.Table:
        """Return this task's rows as `RowFold.partial` does: keys, then values, then what orders them."""
        return self.fold.partial()


def _remedy(name: str) -> str:
    if name not in _PLACE:
        return ""
    return (
        "; let the source emit it (KafkaSource(..., kafka_columns=('topic', 'partition', 'offset'))) and "
        "every bolt in between pass it on, or give the table a key of its own (key=)"
    )
