"""`DeltaTableBolt`: the committer whose tuples become rows of a Delta table, by way of files and a SQL table.

Invariants. A row of the SQL table names one file, and is written in the commit of its batch; its key is the
txid, the task and the file's number in that task. The table is opaque whatever the spout is, so another
attempt undoes all rows of an earlier one: the files that these name are in no commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from txstream.api.bolts import OutputCollector, OutputFieldsDeclarer, StateCommitter, TopologyContext
from txstream.api.reducers import Put
from txstream.api.schema import format_type
from txstream.api.state import SqlTable
from txstream.api.tuples import Chunk, Tuple, one_row
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics
from txstream.core.transaction import TransactionAttempt
from txstream.plugins.delta.files import write_files
from txstream.plugins.delta.place import Place, require_deltalake

PATH, SIZE, ROWS, PARTITION = "path", "size", "row_count", "partition_values"
_PLACE = ("topic", "partition", "offset")
# Not decimals: deltalake reads what it has for -1.50 as "-1.-50" and fails.
_PARTITIONED = (
    pa.types.is_string,
    pa.types.is_integer,
    pa.types.is_boolean,
    pa.types.is_date,
    pa.types.is_timestamp,
)


class DeltaTableBolt(StateCommitter):
    """Appends each tuple to a Delta table: `DeltaTableBolt("s3://lake/orders", ["customer", "amount"])`.

    `fields` are the columns, by default all that every input has. Tasks write Parquet files into the table's
    folder; their names are stored in a table of the run's database, or of `url`, in the commit of their
    batch, and after that the leader appends them to the Delta table, each txid once, in the order of txids.
    The Delta table is made at the first start, with `partition_by`, and gets columns that the bolt has got
    since. It belongs to one bolt of one topology. `storage_options` are those of the package deltalake, such
    as keys; without them it takes what the environment has. `order_by` names fields by which a task sorts its
    rows, by default those of topic, partition and offset that the input has. The SQL table is named after
    the last part of `uri`, `orders_files`, unless `table` is given. Raises TopologyError.
    """

    state: SqlTable
    tells_rewinds = True

    def __init__(
        self,
        uri: str | Path,
        fields: Sequence[str] = (),
        *,
        partition_by: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        storage_options: Mapping[str, str] | None = None,
        table: str | None = None,
        url: str | None = None,
    ) -> None:
        require_deltalake()
        self.place = Place.of(uri, storage_options)
        self.writes_to = (str(self.place),)
        self.partition_by = _listed(partition_by)
        self._order = _listed(order_by)
        self._fields = _listed(fields)
        self.columns: pa.Schema = pa.schema([])
        self.state = SqlTable(
            table or re.sub(r"\W", "_", self.place.shown.rpartition("/")[2]) + "_files",
            f"{PATH} string, {SIZE} bigint, {ROWS} bigint, {PARTITION} string",
            key="batch bigint, task int, number bigint",
            url=url,
            semantics=Semantics.OPAQUE,
            index_txid=True,
            transient=True,
        )
        self.reducers = {name: Put() for name in self.state.value_names}

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        names = self._fields or declarer.inputs[0].names
        self.columns = pa.schema([(name, declarer.input_field(name).type) for name in names])
        if not self._order:
            self._order = tuple(name for name in _PLACE if all(name in one.names for one in declarer.inputs))
        for name in self._order:
            declarer.input_field(name)
        for name in self.partition_by:
            self._check_partition(declarer.component, name)
        if len(self.partition_by) == len(self.columns):
            raise TopologyError(
                f"component {declarer.component!r}: {self.place} needs a column beside its partition_by"
            )
        self._check_types(declarer.component)

    def _check_partition(self, component: str, name: str) -> None:
        if name not in self.columns.names:
            raise TopologyError(
                f"component {component!r}: {self.place} has partition_by {name!r}, which is none of its "
                f"columns {', '.join(map(repr, self.columns.names))}"
            )
        found = self.columns.field(name).type
        if not any(of_type(found) for of_type in _PARTITIONED):
            raise TopologyError(
                f"component {component!r}: {self.place} cannot be partitioned by {name!r} of type "
                f"{format_type(found)}; take text, whole numbers, booleans, dates or times"
            )

    def _check_types(self, component: str) -> None:
        from deltalake import Schema

        for column in self.columns:
            try:
                same = pa.schema(Schema.from_arrow(pa.schema([column]))).field(0).type
            except Exception as error:
                raise TopologyError(
                    f"component {component!r}: {self.place} has no type for column {column.name!r} "
                    f"({format_type(column.type)}): {error}"
                ) from error
            if not same.equals(column.type):
                raise TopologyError(
                    f"component {component!r}: column {column.name!r} of {self.place} would be "
                    f"{same}, and the field is {format_type(column.type)}"
                )

    def prepare(
        self, context: TopologyContext, collector: OutputCollector, batch_id: TransactionAttempt
    ) -> None:
        super().prepare(context, collector, batch_id)
        self._parts: list[pa.Table] = []

    def execute(self, tup: Tuple) -> None:
        self.execute_chunk(one_row(tup._chunk, tup._row))

    def execute_chunk(self, chunk: Chunk) -> None:
        batch = chunk.batch
        arrays = [batch.column(chunk.index[name]) for name in (*self.columns.names, *self._order)]
        names = [*self.columns.names, *(f"\0order {at}" for at in range(len(self._order)))]
        self._parts.append(pa.Table.from_arrays(arrays, names=names))

    def deltas(self) -> pa.Table:
        """Write this task's files. Return a row for each: txid, task and number, then what it is. Raises
        ServiceUnavailableError."""
        context = self.context
        written = []
        if self._parts:
            rows = pa.concat_tables(self._parts)
            if self._order:
                by = [(f"\0order {at}", "ascending") for at in range(len(self._order))]
                rows = rows.sort_by(by)
            rows = rows.select(self.columns.names).cast(self.columns)
            written = write_files(
                self.place, context.topology_id, self.state.table, context.attempt.txid, context.task_index,
                rows, self.partition_by,
            )  # fmt: skip
        schema = pa.schema([*self.state.key_schema, *self.state.value_schema])
        return pa.Table.from_pylist(
            [
                {
                    "batch": context.attempt.txid, "task": context.task_index, "number": number,
                    PATH: one.path, SIZE: one.size, ROWS: one.rows, PARTITION: json.dumps(one.partition),
                }
                for number, one in enumerate(written)
            ],
            schema=schema,
        )  # fmt: skip


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)
