"""Reducers: how the tuples of a key become a delta, and how deltas merge. All are associative.

A reducer is a declaration. Its partial result over the tuples of one task is merged with other partial
results in any order, and with the stored value inside the database, so that no value is read back; only
a `custom` one reads, modifies and writes. Nulls are skipped, as SQL's aggregates do.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from txstream.api.errors import SchemaError, StateValueError, TopologyError
from txstream.api.schema import parse_schema

BUILT_IN_MERGES = frozenset({"sum", "min", "max"})
"""Merges of two partial results that need nothing but the two."""


@dataclass(frozen=True, slots=True)
class Reducer(ABC):
    """`partial` names how tuples become a partial result, `merge` how two of them become one. Where Arrow has
    an aggregate function of the name, it is that one."""

    field: str | None

    partial: ClassVar[str]
    merge: ClassVar[str]

    @abstractmethod
    def accepts(self, data_type: pa.DataType) -> bool:
        """Can this reducer take a field of this type?"""

    @abstractmethod
    def result_type(self, data_type: pa.DataType | None) -> pa.DataType:
        """The type of the delta, from the type of the field."""

    @abstractmethod
    def combine(self, stored: Any, delta: Any) -> Any:
        """`stored` with `delta` merged in, neither of them null: in Python what a database does in SQL. A
        null on one side gives the other side."""

    @property
    def identity(self) -> Any:
        """What a key starts from when its tuples held only nulls; None when there is no such value."""
        return None

    @property
    def order_fields(self) -> tuple[str, ...]:
        """The fields besides `field` that its partial results carry along until they are merged."""
        return ()

    def for_column(self, name: str) -> Reducer:
        """This reducer as it fills the value column `name`."""
        return self

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

    `by` is a field or several, compared one after the other; for Kafka "offset" where a key stays in one
    partition, else ("timestamp", "partition", "offset"). Nulls of the field are skipped; a null in `by`
    comes before everything. Of tuples with equal `by` the greatest value wins, so the answer does not
    depend on the order in which tuples or partial results come. Of two batches the later one wins,
    whatever `by` says: batches are the log's order.
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
    """The new value, whatever was there before: how a `MapState` writes. Not for tuples."""

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
        """As every reducer. Raises StateValueError, chained, for what the function raises, and for None."""
        try:
            answer = self.fn(stored, delta)
        except BaseException as error:
            # A function without frames of its own, such as math.gcd, was called here.
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
        """The values merged into one, nulls skipped; the identity where there are none. Raises as
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
    """A reducer of your own: `custom(operator.or_, 0)`, `custom(math.gcd, 0, field="n", output="bigint")`.

    `fn` merges two values into one. It must be associative and commutative, since neither the order of
    tuples nor of partial results is promised, and pure: the same two values give the same one. It gets the
    field's values as Python has them, never a null, and must answer with a value of type `output` (DDL; by
    default the field's type). `identity` is what a key starts from: fn(identity, x) == x for every x. With
    None a key starts from its first value, and one whose tuples held only nulls has none.

    `fn` runs in every task over its tuples, and over the stored value and the batch's, in the transaction
    of the commit, once per key. It is shipped to executors by cloudpickle. What it raises, and an answer
    that does not fit the type, ends the run with StateValueError. `field` is by default the one that is
    called like the value column. Raises TopologyError when `fn` cannot be called or `output` is no type.
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
