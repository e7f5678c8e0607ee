"""What `removed_by` says: which tuples remove the row of their key, instead of writing one."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.schema import format_type
from txstream.api.state import REMOVED, SqlTable
from txstream.core.errors import TopologyError

_CONDITION = re.compile(
    r"\s*(?P<field>\w+)\s*(?:=\s*(?:'(?P<text>(?:[^']|'')*)'|(?P<number>-?\d+))|\s(?P<null>is\s+null))?\s*",
    re.IGNORECASE,
)


class Removal:
    """The condition of a table: `field = 'text'`, `field = 3`, `field is null`, or a boolean field alone.
    Where it is null, the tuple removes nothing. Raises TopologyError for any other."""

    def __init__(self, table: SqlTable) -> None:
        self._table = table
        said = table.removed_by
        found = _CONDITION.fullmatch(said) if isinstance(said, str) else None
        if found is None:
            raise TopologyError(
                f'table {table.table!r}: removed_by is {said!r}; it must be like "op = \'d\'", "op = 3" or '
                f'"value is null", or name a boolean field'
            )
        self.field = found["field"]
        self.is_null = found["null"] is not None
        self.value: Any = True
        if found["text"] is not None:
            self.value = found["text"].replace("''", "'")
        elif found["number"] is not None:
            self.value = int(found["number"])

    def check(self, declarer: OutputFieldsDeclarer) -> None:
        """Raise TopologyError unless every input has the field, in a type that the condition is about."""
        told = f"component {declarer.component!r}: removed_by of table {self._table.table!r} is about field"
        if any(self.field not in schema.names for schema in declarer.inputs):
            raise TopologyError(f"{told} {self.field!r}, which its input does not have")
        found = declarer.input_field(self.field).type
        wanted = {str: pa.types.is_string, int: pa.types.is_integer, bool: pa.types.is_boolean}
        if not (self.is_null or wanted[type(self.value)](found)):
            raise TopologyError(f"{told} {self.field!r}, whose type is {format_type(found)}")

    def marks(self, value: Any) -> bool:
        """Tell whether a tuple with this value in the field removes a row."""
        return value is None if self.is_null else value == self.value

    def marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the column `REMOVED`. Where it is true, the other values are null, except the
        one that is the sequence: they say nothing any more."""
        column = batch.column(batch.schema.get_field_index(self.field))
        if self.is_null:
            gone = column.is_null()
        else:
            gone = pc.fill_null(pc.equal(column, pa.scalar(self.value, column.type)), fill_value=False)
        columns, table = list(batch.columns), self._table
        if gone.true_count:
            for place, name in enumerate(batch.schema.names):
                if name in table.shown_names and name != table.sequence_by:
                    columns[place] = pc.if_else(gone, pa.scalar(None, columns[place].type), columns[place])
        fields = [*(field.with_nullable(True) for field in batch.schema), pa.field(REMOVED, pa.bool_())]
        return pa.RecordBatch.from_arrays([*columns, gone], schema=pa.schema(fields))
