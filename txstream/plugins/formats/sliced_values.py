"""Decoding of values into columns, a slice at a time: what Avro and Protobuf share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from txstream.plugins.formats.schema_registry import UnresolvableError
from txstream.spouts.formats.json_columns import MisfitError
from txstream.spouts.formats.json_values import BadValueError

_SLICE_ROWS = 4096  # as for JSON


class SlicedDecoder(ABC):
    """Reads values of bytes into one column of type `_type`, in slices that fit a processor's cache."""

    _type: pa.DataType

    @abstractmethod
    def decode(self, values: Sequence[bytes], skip: int, found: list[Any]) -> Exception | None:
        """Append to `found` what could be decoded. Return why the next value cannot be, if one cannot: a
        BadValueError or an UnresolvableError whose row is its place in `values`."""

    @abstractmethod
    def column(self, found: Sequence[Any]) -> pa.Array:
        """Return decoded values as a column. Raises MisfitError."""

    def read(self, values: Sequence[bytes], skip: int = 0) -> pa.Array:
        """Return the values as one column, without their first `skip` bytes. Raises BadValueError for the
        first that cannot be read, UnresolvableError if that is its schema's fault."""
        if not values:
            return pa.nulls(0, self._type)
        slices = []
        for first in range(0, len(values), _SLICE_ROWS):
            try:
                slices.append(self._slice(values[first : first + _SLICE_ROWS], skip))
            except BadValueError as bad:
                raise BadValueError(first + bad.row, bad.reason) from None
            except UnresolvableError as error:
                raise UnresolvableError(str(error), first + error.row) from None
        return slices[0] if len(slices) == 1 else pa.concat_arrays(slices)

    def _slice(self, values: Sequence[bytes], skip: int) -> pa.Array:
        found: list[Any] = []
        refused = self.decode(values, skip, found)
        try:
            column = self.column(found)
        except MisfitError:
            for row, value in enumerate(found):
                try:
                    self.column([value])
                except MisfitError as misfit:
                    path = misfit.path.removeprefix(".")
                    where = f"field {path!r}: " if path else ""
                    raise BadValueError(row, f"{where}{misfit.reason}") from None
            raise
        if refused is not None:
            raise refused
        return column
