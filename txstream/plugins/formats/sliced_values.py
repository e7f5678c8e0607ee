"""Decoding of values into columns, a slice at a time: what Avro and Protobuf share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.plugins.formats.schema_registry import UnresolvableError
from txstream.spouts.formats.unfit_values import BadValueError, converted, in_rows, refuse_first

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
        """As `read_fit`. Raises BadValueError for the first that cannot be read."""
        column, unfit = self.read_fit(values, skip)
        refuse_first(unfit)
        return column

    def read_fit(self, values: Sequence[bytes], skip: int = 0) -> tuple[pa.Array, Mapping[int, str]]:
        """Return the values as one column, without their first `skip` bytes. Those that cannot be read are
        null; why they cannot comes with them, by row. Raises UnresolvableError, which blames their schema."""
        if not values:
            return pa.nulls(0, self._type), {}
        slices = []
        unfit: dict[int, str] = {}
        for first in range(0, len(values), _SLICE_ROWS):
            found: dict[int, str] = {}
            try:
                slices.append(self._slice(values[first : first + _SLICE_ROWS], skip, found))
            except UnresolvableError as error:
                refuse_first({**unfit, **_behind(found, first)})
                raise UnresolvableError(str(error), first + error.row) from None
            unfit.update(_behind(found, first))
        return (slices[0] if len(slices) == 1 else pa.concat_arrays(slices)), unfit

    def _slice(self, values: Sequence[bytes], skip: int, unfit: dict[int, str]) -> pa.Array:
        found: list[Any] = []
        unresolvable: UnresolvableError | None = None
        while len(found) < len(values) and unresolvable is None:
            at, some = len(found), list[Any]()
            refused = self.decode(values[at:] if at else values, skip, some)
            found += some
            if isinstance(refused, UnresolvableError):
                unresolvable = UnresolvableError(str(refused), at + refused.row)
            elif isinstance(refused, BadValueError):
                unfit[at + refused.row] = refused.reason
                found.append(None)
        column = converted(found, self.column, unfit)
        if unresolvable is not None:
            raise unresolvable
        return in_rows([column], unfit, len(found))[0]


def _behind(unfit: Mapping[int, str], first: int) -> dict[int, str]:
    return {first + row: reason for row, reason in unfit.items()}
