"""User-written reducers: read, modify, write. The built-in ones are part of the upsert statement instead.

Invariant: they run inside the transaction, after the fence and the restore, and each key is read and written
by this one writer. So no other attempt can change what was read before it is written. A share that is written
twice under one attempt reads the same values, or values that the upsert then leaves alone.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from txstream.api.errors import StateValueError
from txstream.api.reducers import Custom
from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import format_type
from txstream.api.state import TXID_COLUMN
from txstream.state.records import TableSpec
from txstream.state.values import shown_key
from txstream.transaction import TransactionAttempt


def custom_columns(spec: TableSpec) -> tuple[str, ...]:
    """Return the value columns whose reducer is a user's function."""
    return tuple(name for name in spec.state.value_names if isinstance(spec.reducers[name], Custom))


def called(
    spec: TableSpec, attempt: TransactionAttempt, deltas: pa.Table, places: pa.Array, stored: pa.Table
) -> pa.Table:
    """Return `deltas` with the custom columns' deltas replaced by the values to write.

    `stored` has the existing rows as they were before this batch, and `places` the row of `deltas` that each
    belongs to. Raises StateValueError for a value that its column cannot hold, or from the function.
    """
    places = places.to_pylist()
    if TXID_COLUMN in stored.column_names:
        # The upsert leaves rows of this batch as they are and refuses rows of a newer one, so neither needs a
        # value. In an opaque table rows of this batch are written again, from their values before it.
        txids = stored.column(TXID_COLUMN).to_pylist()
    else:
        txids = [0] * len(places)
    opaque = spec.semantics is spec.semantics.OPAQUE
    due = [
        (at, place)
        for at, (place, txid) in enumerate(zip(places, txids, strict=True))
        if txid < attempt.txid or (opaque and txid == attempt.txid)
    ]
    for name in custom_columns(spec):
        reducer, field = spec.reducers[name], spec.state.value_schema.field(name)
        before, values = stored.column(name).to_pylist(), deltas.column(name).to_pylist()
        for at, place in due:
            values[place] = _merged(spec, attempt, deltas, name, before[at], values[place], place)
        try:
            column = to_column(values, field.with_nullable(True))
        except UnfitValueError as error:
            raise StateValueError(
                f"table {spec.state.table!r}, key {shown_key(spec, deltas, error.row)}: column {name!r} "
                f"({format_type(field.type)}) cannot hold {error.value!r:.100}, which {reducer} gave in "
                f"{attempt}"
            ) from error
        deltas = deltas.set_column(deltas.column_names.index(name), field, [column])
    return deltas


def _merged(
    spec: TableSpec,
    attempt: TransactionAttempt,
    deltas: pa.Table,
    name: str,
    stored: Any,
    delta: Any,
    row: int,
) -> Any:
    if stored is None or delta is None:
        return delta if stored is None else stored
    try:
        return spec.reducers[name].combine(stored, delta)
    except StateValueError as error:
        raise StateValueError(
            f"table {spec.state.table!r}, key {shown_key(spec, deltas, row)}: column {name!r}: {error}, in "
            f"{attempt}"
        ) from error.__cause__
