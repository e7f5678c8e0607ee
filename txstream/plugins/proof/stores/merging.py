"""Writing one state table row by row: the value rules of `txstream.core.semantics` over several columns.

Invariants. A row is `(values, prev, txid)` and is never changed, only replaced. `values` have the Python
types of the declared Arrow types, `prev` is as in OpaqueValue (None in other semantics), and `txid` is None
in a non-transactional table. Where a row of a `SqlTable` has a `prev`, its last value is the txid before.
What the rules refuse leaves no row behind.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txstream.api.reducers import Custom, Reducer
from txstream.api.rows import to_array
from txstream.api.schema import format_type
from txstream.api.state import PREV_PREFIX, PREV_TXID_COLUMN
from txstream.core.errors import StateValueError, TxidRegressionError
from txstream.core.semantics import OpaqueValue, Semantics, TransactionalValue
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.state.reading import StoredRow
from txstream.state.records import TableSpec
from txstream.state.values import check_column

Key = tuple[Any, ...]
"""A key, in the Python types of the declared Arrow types."""

Values = tuple[Any, ...]
"""Values in the declared order. In an opaque table no stored value is None."""

RowValues = tuple[Values, Values | None, int | None]

Merge = Callable[[Any, Any], Any]

# Python's default of 28 digits would round a decimal(38,n).
_EXACT = decimal.Context(prec=100, traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow])


class RowRules:
    """The value rules of one table."""

    def __init__(self, spec: TableSpec) -> None:
        self.spec = spec
        fields = list(spec.state.value_schema)
        self._columns = [(field, spec.reducers[field.name]) for field in fields]
        self._merges = [merge_of(reducer) for _, reducer in self._columns]

    def written(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        """Return the row with a delta of this attempt's batch merged in, or written as `on_conflict` says.

        Raises TxidRegressionError for a row that is newer, StateValueError for a value that its column
        cannot hold and for a key that may not be written again.
        """
        if self.spec.appends:
            return self._appended(stored, delta, attempt, key)
        return self._added(stored, delta, attempt, key)

    def _appended(
        self, stored: RowValues | None, row: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        spec, replaces = self.spec, self.spec.state.on_conflict == "replace"
        is_older = stored is not None and self._is_older(row, stored[0])
        if spec.semantics is Semantics.NON_TRANSACTIONAL:
            return (row if stored is None or (replaces and not is_older) else stored[0]), None, None
        if stored is None:
            return row, None, attempt.txid
        before = _txid(stored)
        if before > attempt.txid:
            raise self._regression(before, attempt, key)
        if before == attempt.txid or is_older or spec.state.on_conflict == "ignore":
            return stored
        if replaces:
            return self._replaced(stored, row), self._prev_of(stored, before), attempt.txid
        shown = ", ".join(
            f"{name}={one!r:.60}" for name, one in zip(spec.state.value_names, row, strict=True)
        )
        raise StateValueError(
            f"table {spec.state.table!r}: key {self.shown(key)} is there since txid {before}, and {attempt} "
            f"has another row of this key: ({shown}); give each row a key of its own, or choose "
            f"on_conflict='ignore' or 'replace'"
        )

    def _prev_of(self, stored: RowValues, before: Txid) -> Values | None:
        return (*stored[0][: len(self._columns)], before) if self.spec.keeps_prev else None

    def _replaced(self, stored: RowValues, row: Values) -> Values:
        """Return what a row becomes. A removed one has at its end the `prev` of the row that was there."""
        gone = self.is_gone((row, None, None)) and not self.is_gone(stored)
        return (*row, self.was_there(stored[1])) if gone and self.spec.keeps_prev else row

    def was_there(self, prev: Values | None) -> Values | None:
        """Return the values before, unless that row was a removed one."""
        return None if prev is None or self.is_gone((prev, None, None)) else prev

    def _is_older(self, row: Values, stored: Values) -> bool:
        sequence = self.spec.state.sequence_by
        if sequence is None:
            return False
        place = self.spec.state.value_names.index(sequence)
        return bool(row[place] < stored[place])

    def is_gone(self, stored: RowValues) -> bool:
        """Whether the row is a removed one."""
        return self.spec.state.removed_by is not None and stored[0][len(self._columns) - 1] is not False

    def forgotten(self, stored: RowValues, txid: Txid) -> RowValues | None:
        """Return what is left of a row that a batch before `txid` has removed; another row stays as it is."""
        values, _prev, written = stored
        if not self.is_gone(stored) or (written is not None and written >= txid):
            return stored
        left = (*values[: len(self._columns) - 1], None)
        return None if self.spec.state.sequence_by is None else (left, None, written)

    def _added(
        self, stored: RowValues | None, delta: Values, attempt: TransactionAttempt, key: Key
    ) -> RowValues:
        txid = attempt.txid

        def combine(base: Values, more: Values) -> Values:
            return tuple(
                self._merged(place, old, new, attempt, key)
                for place, (old, new) in enumerate(zip(base, more, strict=True))
            )

        try:
            match self.spec.semantics:
                case Semantics.OPAQUE:
                    opaque = (
                        OpaqueValue.create(delta, txid)
                        if stored is None
                        else _opaque(stored).update(delta, txid, combine)
                    )
                    self._refuse_null(opaque.value, attempt, key)
                    if stored is not None and stored[2] == txid and self.spec.state.marks is not None:
                        # A share that a task writes again comes behind the marks.
                        flag = self.spec.state.value_names.index(self.spec.state.marks[0])
                        value = list(opaque.value)
                        value[flag] = stored[0][flag] or delta[flag]
                        return tuple(value), opaque.prev, opaque.txid
                    return opaque.value, opaque.prev, opaque.txid
                case Semantics.TRANSACTIONAL:
                    transactional = (
                        TransactionalValue.create(delta, txid)
                        if stored is None
                        else TransactionalValue(stored[0], _txid(stored)).update(delta, txid, combine)
                    )
                    return transactional.value, None, transactional.txid
                case Semantics.NON_TRANSACTIONAL:
                    return (delta if stored is None else combine(stored[0], delta)), None, None
        except TxidRegressionError as error:
            assert stored is not None
            raise self._regression(_txid(stored), attempt, key) from error

    def _regression(self, stored: Txid, attempt: TransactionAttempt, key: Key) -> TxidRegressionError:
        return TxidRegressionError(
            f"table {self.spec.state.table!r}, key {self.shown(key)}: the row carries txid {stored}, newer "
            f"than {attempt}, which was about to be written; the table holds results of another run of this "
            f"topology"
        )

    def marked(self, stored: RowValues, flag: int, txid: Txid) -> RowValues:
        """Return the row as batch `txid` leaves it with a boolean set, at this place among the values."""
        values, prev, written = stored
        new = (*values[:flag], True, *values[flag + 1 :])
        if self.spec.semantics is Semantics.OPAQUE:
            return new, prev if written == txid else values, txid
        return new, None, None if written is None else txid

    def restored(self, stored: RowValues, txid: Txid) -> RowValues | None:
        """Return what is left of an opaque row when batch `txid` is undone; None when `txid` created it."""
        if self.spec.appends:
            values, prev, written = stored
            if written != txid:
                return stored
            if prev is None:
                return None
            before = values[-1] if len(values) > len(self._columns) else prev
            return prev[:-1], before, prev[-1]
        left = _opaque(stored).restore(txid)
        return None if left is None else (left.value, left.prev, left.txid)

    def before(self, stored: RowValues, txid: Txid) -> Values | None:
        """Return the values before batch `txid` (opaque; None for no row), else the present ones."""
        is_of_batch = self.spec.semantics is Semantics.OPAQUE and stored[2] == txid
        values = stored[1] if is_of_batch else stored[0]
        return None if values is None else values[: len(self._columns)]

    def columns(self, key: Key, stored: RowValues) -> dict[str, Any]:
        """Return a row as a SQL table of this declaration would show it, by column."""
        state, (values, prev, txid) = self.spec.state, stored
        prev = self.was_there(prev)
        row = dict(zip(state.key_names, key, strict=True))
        for place, name in enumerate(state.shown_names):
            row[name] = values[place]
            if self.spec.keeps_prev:
                row[f"{PREV_PREFIX}{name}"] = None if prev is None else prev[place]
        if self.spec.appends and self.spec.keeps_prev:
            row[PREV_TXID_COLUMN] = None if prev is None else prev[-1]
        if txid is not None:
            row["txid"] = txid
        return row

    def shown_row(self, key: Key, stored: RowValues, *, unfinished: bool) -> StoredRow:
        """Return a row as `StateReading` returns it."""
        state, (values, prev, txid) = self.spec.state, stored
        knows_before = not self.spec.appends or prev is None or prev[-1] != txid
        return StoredRow(
            dict(zip(state.key_names, key, strict=True)),
            self._shown(values),
            None if not knows_before or (before := self.was_there(prev)) is None else self._shown(before),
            None if txid is None else Txid(txid),
            unfinished,
            self.is_gone(stored),
            knows_before,
        )

    def _shown(self, values: Values) -> dict[str, Any]:
        return dict(zip(self.spec.state.shown_names, values, strict=False))

    def shown(self, key: Key) -> str:
        """Return a key as text for messages: word='spark'."""
        named = zip(self.spec.state.key_names, key, strict=True)
        return ", ".join(f"{name}={value!r}" for name, value in named)

    # --- inside -------------------------------------------------------------------------------------

    def _merged(self, place: int, old: Any, new: Any, attempt: TransactionAttempt, key: Key) -> Any:
        field, reducer = self._columns[place]
        if new is None and self.spec.semantics is Semantics.OPAQUE:
            return old  # a null delta adds nothing, and the column is NOT NULL
        try:
            merged = self._merges[place](old, new)
        except StateValueError as error:  # from a user's reducer
            raise StateValueError(
                f"table {self.spec.state.table!r}, key {self.shown(key)}: column {field.name!r}: {error}, in "
                f"{attempt}"
            ).of_row(self.spec.state.table, self.shown(key)) from error.__cause__
        if isinstance(merged, str) and isinstance(reducer, Custom):
            check_column(self.spec.state.table, field.name, pa.chunked_array([[merged]]), reducer)
        if merged is None or (type(merged) is int and fits(merged, field.type)):
            return merged
        try:
            if not fits(merged, field.type) or (reducer.merge == "sum" and math.isinf(merged)):
                raise OverflowError
            # As the column would return it: a float32 is no Python float, and a timestamp has its unit.
            return to_array([merged], field.type)[0].as_py()
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
            how = f"{old} + {new}" if reducer.merge == "sum" else f"{reducer} of {old!r} and {new!r}"
            wider = "declare a wider type" if reducer.merge == "sum" else "it must give a value of that type"
            what = f"column {field.name!r} ({format_type(field.type)}) cannot hold {how} = {merged}"
            raise StateValueError(
                f"table {self.spec.state.table!r}, key {self.shown(key)}: {what}, found in {attempt}; {wider}"
            ).of_row(self.spec.state.table, self.shown(key)) from error

    def _refuse_null(self, values: Values, attempt: TransactionAttempt, key: Key) -> None:
        if None in values:
            name = self.spec.state.value_names[values.index(None)]
            raise StateValueError(
                f"table {self.spec.state.table!r}, key {self.shown(key)}: column {name!r} is NOT NULL and "
                f"got only nulls in {attempt}; filter them out before the state"
            ).of_row(self.spec.state.table, self.shown(key))


def grower(before: TableSpec, now: TableSpec) -> Callable[[RowValues], RowValues]:
    """Return a function that adds the new value columns of a table, with their defaults, to a row."""
    fields = now.state.value_schema
    defaults = {
        name: None if value is None else pa.scalar(value, fields.field(name).type).as_py()
        for name, value in now.state.defaults.items()
        if name in fields.names
    }

    def with_defaults(values: Values) -> Values:
        width = len(before.state.value_names)
        known = dict(zip(before.state.value_names, values[:width], strict=True))
        found = (known[name] if name in known else defaults[name] for name in now.state.value_names)
        return (*found, *values[width:])  # the `prev` of a `SqlTable` ends with the txid before

    def grow(row: RowValues) -> RowValues:
        values, prev, txid = row
        return with_defaults(values), None if prev is None else with_defaults(prev), txid

    return grow


def merge_of(reducer: Reducer) -> Merge:
    """Return how a delta is merged into a stored value. Null yields the other side, except with Put."""
    if reducer.merge == "put":
        return _second
    both = _plus if reducer.merge == "sum" else reducer.combine

    def or_other(old: Any, new: Any) -> Any:
        if old is None:
            return new
        return old if new is None else both(old, new)

    return or_other


def fits(total: Any, data_type: pa.DataType) -> bool:
    """Can a column of this type hold the number? Arrow checks whether it is a number of that kind."""
    if pa.types.is_floating(data_type) and isinstance(total, float):
        return math.isinf(total) or math.isfinite(pa.scalar(total, data_type).as_py())
    if pa.types.is_decimal(data_type) and isinstance(total, decimal.Decimal):
        return bool(_EXACT.abs(total) < 10 ** (data_type.precision - data_type.scale))
    if pa.types.is_integer(data_type) and isinstance(total, int):
        bits = data_type.bit_width - 1
        return bool(-(2**bits) <= total < 2**bits)
    return True


@functools.lru_cache(maxsize=1024)
def can_keep(data_type: pa.DataType) -> bool:
    """Whether Python keeps values of this type exactly."""
    return bool(
        pa.types.is_string(data_type)
        or pa.types.is_large_string(data_type)
        or pa.types.is_binary(data_type)
        or pa.types.is_large_binary(data_type)
        or pa.types.is_boolean(data_type)
        or pa.types.is_signed_integer(data_type)
        or pa.types.is_float32(data_type)
        or pa.types.is_float64(data_type)
        or pa.types.is_decimal128(data_type)
        or pa.types.is_date32(data_type)
        or (pa.types.is_timestamp(data_type) and data_type.unit in ("s", "ms", "us"))
    )


def rows_of(spec: TableSpec, deltas: pa.Table) -> Iterator[tuple[Key, Values]]:
    """Yield prepared deltas as (key, values)."""
    return zip(keys_of(spec, deltas), _tuples(deltas, spec.state.value_names), strict=True)


def keys_of(spec: TableSpec, table: pa.Table) -> Iterator[Key]:
    """Yield the keys of a table that has the key columns."""
    return _tuples(table, spec.state.key_names)


def read_key(spec: TableSpec, key: Sequence[Any]) -> Key:
    """Convert a key, one Python value per column, to the values that its declared types return."""
    fields = zip(spec.state.key_schema, key, strict=True)
    return tuple(pa.scalar(value, field.type).as_py() for field, value in fields)


def to_table(spec: TableSpec, rows: Mapping[Key, Values]) -> pa.Table:
    """Return the key and value columns of these rows, with the declared types."""
    state = spec.state
    schema = pa.schema([*state.key_schema, *state.value_schema])
    columns = (
        zip(*((*key, *values) for key, values in rows.items()), strict=True) if rows else [()] * len(schema)
    )
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for field, column in zip(schema, columns, strict=True)], schema=schema
    )


def _tuples(table: pa.Table, names: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _opaque(stored: RowValues) -> OpaqueValue[Values]:
    return OpaqueValue(stored[0], stored[1], _txid(stored))


def _txid(stored: RowValues) -> Txid:
    assert stored[2] is not None
    return Txid(stored[2])


def _plus(old: Any, new: Any) -> Any:
    return _EXACT.add(old, new) if isinstance(old, decimal.Decimal) else old + new


def _second(_old: Any, new: Any) -> Any:
    return new
