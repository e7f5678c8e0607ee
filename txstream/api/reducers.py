"""Reducers: how the tuples of a key become a delta, and how deltas merge. All are associative.

A reducer is a declaration. Its partial result over the tuples of one task is merged with other partial
results in any order, and with the stored value inside the database, so that no value is read back.
Nulls are skipped, as SQL's aggregates do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Reducer(ABC):
    """`partial` and `merge` are the names of Arrow's aggregate functions for the two steps."""

    field: str | None

    partial: ClassVar[str]
    merge: ClassVar[str]

    @abstractmethod
    def accepts(self, data_type: pa.DataType) -> bool:
        """Can this reducer take a field of this type?"""

    @abstractmethod
    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        """The type of the delta, from the type of the field."""

    @property
    def identity(self) -> int | None:
        """What a key starts from when its tuples held only nulls; None when there is no such value."""
        return None

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.field or ''})"


@dataclass(frozen=True, slots=True)
class Count(Reducer):
    """How many tuples; with a field, how many where it is not null."""

    field: str | None = None

    partial: ClassVar[str] = "count"
    merge: ClassVar[str] = "sum"

    def accepts(self, data_type: pa.DataType) -> bool:
        return True

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    @property
    def identity(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Sum(Reducer):
    """The sum of a numeric field."""

    field: str

    partial: ClassVar[str] = "sum"
    merge: ClassVar[str] = "sum"

    def accepts(self, data_type: pa.DataType) -> bool:
        return bool(
            pa.types.is_integer(data_type)
            or pa.types.is_floating(data_type)
            or pa.types.is_decimal(data_type)
        )

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        if data_type is None or pa.types.is_integer(data_type):
            return pa.int64()
        return pa.float64() if pa.types.is_floating(data_type) else data_type

    @property
    def identity(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class _Extreme(Reducer):
    """One of the values themselves, chosen by their order."""

    field: str

    def accepts(self, data_type: pa.DataType) -> bool:
        return _has_order(data_type)

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return data_type


@dataclass(frozen=True, slots=True)
class Min(_Extreme):
    """The least value of a field that has an order."""

    partial: ClassVar[str] = "min"
    merge: ClassVar[str] = "min"


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value of a field that has an order."""

    partial: ClassVar[str] = "max"
    merge: ClassVar[str] = "max"


@dataclass(frozen=True, slots=True)
class Put(Reducer):
    """The new value, whatever was there before: how a `MapState` writes. Not for tuples."""

    field: str | None = None

    partial: ClassVar[str] = "put"
    merge: ClassVar[str] = "put"

    def accepts(self, data_type: pa.DataType) -> bool:
        return False

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return data_type


def _has_order(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_temporal(data_type)
    )
