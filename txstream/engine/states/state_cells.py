"""The keys and values that a bolt gives to a state table: checked, and converted as the table would.

Invariant: `fit` returns what a read of the row would return. So a bolt sees no difference between a value
that was just written and one that was read, and two spellings of one key are the same key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from txstream.api.rows import to_array
from txstream.api.schema import format_schema, format_type

Fit = Callable[[Any], Any]

_REFUSALS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)
_INTEGER_BITS: Final = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class UnfitCellError(ValueError):
    """A key or value that the table cannot hold; the text says why."""


class Cells:
    """The key columns of a table, or its value columns: a scalar for one column, a tuple for several."""

    def __init__(self, schema: pa.Schema, *, are_keys: bool) -> None:
        self.schema = schema
        self._fits = [_fit(field, are_keys=are_keys) for field in schema]
        self._only = self._fits[0] if len(self._fits) == 1 else None

    def fit(self, given: Any) -> Any:
        """Return the scalar or tuple as the table would return it. Raises UnfitCellError."""
        if self._only is not None:
            return self._only(given)
        if not isinstance(given, tuple) or len(given) != len(self._fits):
            raise UnfitCellError(
                f"expected a tuple of {len(self._fits)} ({format_schema(self.schema)}), found {given!r:.200}"
            )
        return tuple([fit(part) for fit, part in zip(self._fits, given, strict=True)])

    def columns(self, cells: Sequence[Any]) -> list[pa.Array]:
        """Cells that fit, as Arrow columns."""
        if self._only is not None:
            return [pa.array(cells, self.schema.field(0).type)]
        parts = zip(*cells, strict=True) if cells else [()] * len(self._fits)
        return [pa.array(part, field.type) for part, field in zip(parts, self.schema, strict=True)]

    def table(self, cells: Sequence[Any]) -> pa.Table:
        """Cells that fit, as a table."""
        return pa.Table.from_arrays(self.columns(cells), schema=self.schema.remove_metadata())

    def read(self, table: pa.Table) -> list[Any]:
        """The cells of a table that has these columns among others."""
        columns = [table.column(name).to_pylist() for name in self.schema.names]
        return columns[0] if self._only is not None else list(zip(*columns, strict=True))

    def parts(self, cell: Any, names: Sequence[str]) -> list[Any]:
        """Some of a cell's columns."""
        whole = (cell,) if self._only is not None else cell
        return [whole[self.schema.get_field_index(name)] for name in names]

    def show(self, cell: Any) -> str:
        """A cell as text, such as word='spark'. A cell that does not fit is shown as it is."""
        whole = (cell,) if self._only is not None else cell
        if not isinstance(whole, tuple) or len(whole) != len(self.schema):
            return f"{cell!r:.200}"
        return ", ".join(f"{name}={part!r:.200}" for name, part in zip(self.schema.names, whole, strict=True))


def _fit(field: pa.Field, *, are_keys: bool) -> Fit:
    """The check of one column. Its shortcuts spare common values the detour through Arrow."""
    data_type = field.type

    def unfit(value: Any, why: object) -> UnfitCellError:
        return UnfitCellError(
            f"{'key' if are_keys else 'value'} column {field.name!r} ({format_type(data_type)}) cannot hold "
            f"{value!r:.200}: {why}"
        )

    def through_arrow(value: Any) -> Any:
        if value is None:
            raise unfit(value, "a null cannot be found again" if are_keys else "there is no null in a state")
        if isinstance(value, bool) and not pa.types.is_boolean(data_type):
            raise unfit(value, "a truth value is no number")
        try:
            found = to_array([value], data_type)[0].as_py()
            hash(found)
        except _REFUSALS as error:
            raise unfit(value, error) from error
        if isinstance(found, str) and "\0" in found:
            raise unfit(value, "databases do not keep the character NUL in text")
        if isinstance(found, float):
            if math.isnan(found):
                raise unfit(value, "NaN is not equal to itself" if are_keys else "NaN is no number")
            return found + 0.0 if are_keys else found  # -0.0 and 0.0 are one key
        return found

    if pa.types.is_string(data_type):
        return lambda value: (
            value if type(value) is str and value.isascii() and "\0" not in value else through_arrow(value)
        )
    if pa.types.is_boolean(data_type):
        return lambda value: value if type(value) is bool else through_arrow(value)
    if pa.types.is_binary(data_type):
        return lambda value: value if type(value) is bytes else through_arrow(value)
    if data_type in _INTEGER_BITS:
        end = 2 ** (_INTEGER_BITS[data_type] - 1)
        return lambda value: value if type(value) is int and -end <= value < end else through_arrow(value)
    return through_arrow
