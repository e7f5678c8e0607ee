"""Reducers: how the tuples of a key become a delta, and how deltas merge. All are associative.

A reducer is a declaration. Partial results over the tuples of one task are merged with each other in any
order, and with the stored value inside the database, so no value is read back. Only a `custom` reducer reads,
modifies and writes. Nulls are skipped, as in SQL's aggregates.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.schema import parse_schema
from txstream.core.errors import SchemaError, StateValueError, TopologyError

BUILT_IN_MERGES = frozenset({"sum", "min", "max"})
"""Merges that need nothing but the two partial results."""


@dataclass(frozen=True, slots=True)
class Reducer(ABC):
    """How the tuples of a key become one delta. `partial` names how tuples become a partial result, `merge`
    how two partial results become one. If Arrow has an aggregate function of that name, that one is used."""

    field: str | None

    partial: ClassVar[str]
    merge: ClassVar[str]

    @abstractmethod
    def accepts(self, data_type: pa.DataType) -> bool:
        """Return whether this reducer can take a field of this type."""

    @abstractmethod
    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        """Return the type of the delta, from the type of the field."""

    @abstractmethod
    def combine(self, stored: Any, delta: Any) -> Any:
        """Return `stored` with `delta` merged in, neither of them null: in Python what a database does in
        SQL. If one side is null, the result is the other side, without a call."""

    @property
    def identity(self) -> Any:
        """The value of a key whose tuples held only nulls, or None if there is no such value."""
        return None

    @property
    def order_fields(self) -> tuple[str, ...]:
        """The fields besides `field` that its partial results carry along until they are merged."""
        return ()

    def for_column(self, name: str) -> Reducer:
        """Return this reducer as it fills the value column `name`."""
        return self

    def __str__(self) -> str:
        return f"{type(self).__name__}({self.field or ''})"


@dataclass(frozen=True, slots=True)
class Count(Reducer):
    """The number of tuples; with a field, the number of those where it is not null."""

    field: str | None = None

    partial: ClassVar[str] = "count"
    merge: ClassVar[str] = "sum"

    def accepts(self, data_type: pa.DataType) -> bool:
        return True

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return pa.int64()

    def combine(self, stored: Any, delta: Any) -> Any:
        return stored + delta

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

    def combine(self, stored: Any, delta: Any) -> Any:
        return stored + delta

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

    def combine(self, stored: Any, delta: Any) -> Any:
        return min(stored, delta)


@dataclass(frozen=True, slots=True)
class Max(_Extreme):
    """The greatest value of a field that has an order."""

    partial: ClassVar[str] = "max"
    merge: ClassVar[str] = "max"

    def combine(self, stored: Any, delta: Any) -> Any:
        return max(stored, delta)


@dataclass(frozen=True, slots=True)
class Last(Reducer):
    """The field's value in the last tuple, by event order: `Last("price", by="offset")`.

    `by` is a field or several, compared one after the other. For Kafka take "offset" if a key stays in one
    partition, otherwise ("timestamp", "partition", "offset"). Nulls of the field are skipped; a null in `by`
    comes before everything. Of tuples with equal `by` the greatest value wins, so the answer does not depend
    on the order in which tuples or partial results come. Of two batches the later one wins, whatever `by`
    says: batches follow the order of the log.
    """

    field: str
    by: str | tuple[str, ...]

    partial: ClassVar[str] = "last"
    merge: ClassVar[str] = "last"

    def __post_init__(self) -> None:
        names = (self.by,) if isinstance(self.by, str) else self.by
        if not isinstance(names, tuple) or not names or not all(n and isinstance(n, str) for n in names):
            raise TopologyError(f"Last({self.field!r}, by={self.by!r}): by is a field or a tuple of fields")

    def accepts(self, data_type: pa.DataType) -> bool:
        return _has_order(data_type)

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return data_type

    def combine(self, stored: Any, delta: Any) -> Any:
        return delta

    @property
    def order_fields(self) -> tuple[str, ...]:
        return (self.by,) if isinstance(self.by, str) else self.by

    def __str__(self) -> str:
        return f"Last({self.field} by {', '.join(self.order_fields)})"


@dataclass(frozen=True, slots=True)
class Put(Reducer):
    """The new value replaces the old one: this is how a `MapState` writes. Not for tuples."""

    field: str | None = None

    partial: ClassVar[str] = "put"
    merge: ClassVar[str] = "put"

    def accepts(self, data_type: pa.DataType) -> bool:
        return False

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return data_type

    def combine(self, stored: Any, delta: Any) -> Any:
        return delta


@dataclass(frozen=True, slots=True)
class Custom(Reducer):
    """A Python function as a reducer; made by `custom`."""

    fn: Callable[[Any, Any], Any]
    start: Any
    output: pa.DataType | None = None

    partial: ClassVar[str] = "custom"
    merge: ClassVar[str] = "custom"

    def accepts(self, data_type: pa.DataType) -> bool:
        return True

    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        return self.output if self.output is not None else data_type

    def combine(self, stored: Any, delta: Any) -> Any:
        """As in every reducer. Raises StateValueError, chained, if the function raises or returns None."""
        try:
            answer = self.fn(stored, delta)
        except BaseException as error:
            # A function without Python frames, such as math.gcd, leaves this file as the last frame.
            place = traceback.extract_tb(error.__traceback__)[-1]
            name = Path(place.filename).name
            where = "" if place.filename == __file__ else f" (in {name}, line {place.lineno})"
            given = f"{stored!r:.100} and {delta!r:.100}"
            raise StateValueError(
                f"{self} raised {type(error).__name__}: {error}{where}, for {given}"
            ) from error
        if answer is None:
            raise StateValueError(f"{self} gave None for {stored!r:.100} and {delta!r:.100}")
        return answer

    def reduced(self, values: Iterable[Any]) -> Any:
        """Return the values merged into one, nulls skipped; the identity if there are none. Raises as
        `combine`."""
        given = (value for value in values if value is not None)
        merged = self.start if self.start is not None else next(given, None)
        for value in given:
            merged = self.combine(merged, value)
        return merged

    @property
    def identity(self) -> Any:
        return self.start

    def for_column(self, name: str) -> Reducer:
        return self if self.field is not None else replace(self, field=name)

    def __str__(self) -> str:
        return f"custom({getattr(self.fn, '__name__', repr(self.fn))}, {self.field or ''})"


def custom(
    fn: Callable[[Any, Any], Any],
    identity: Any,
    *,
    field: str | None = None,
    output: str | pa.DataType | None = None,
) -> Reducer:
    """Make a reducer of a function: `custom(operator.or_, 0)`,
    `custom(math.gcd, 0, field="n", output="bigint")`.

    `fn` merges two values into one. It must be associative and commutative, since neither tuples nor partial
    results come in a promised order. It must be pure: the same two values always give the same result. It
    gets the field's values as Python values, never a null, and must return a value of type `output` (DDL; by
    default the field's type). `identity` is what a key starts from: fn(identity, x) == x for every x. With
    None a key starts from its first value, and a key whose tuples held only nulls has no value.

    `fn` runs in every task over its tuples, and once per key in the transaction of the commit, over the
    stored value and the batch's. It is shipped to executors by cloudpickle. An exception in it, or a result
    that does not fit the type, ends the run with StateValueError. `field` is by default the field with the
    name of the value column. Raises TopologyError if `fn` cannot be called or `output` is no type.
    """
    if not callable(fn):
        raise TopologyError(f"custom(fn, identity) takes a function of two values, not {fn!r:.100}")
    if isinstance(output, str):
        try:
            schema = parse_schema(f"x {output}")
        except SchemaError as error:
            raise TopologyError(f"custom(..., output={output!r}): {error}") from error
        if len(schema) != 1:
            raise TopologyError(f"custom(..., output={output!r}) is not one type; write for example 'bigint'")
        output = schema.field(0).type
    return Custom(field, fn, identity, output)


def _has_order(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(data_type)
        or pa.types.is_floating(data_type)
        or pa.types.is_decimal(data_type)
        or pa.types.is_temporal(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
    )
