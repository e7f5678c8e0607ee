"""Reducers of the user's own: read, modify, write, where others are part of the upsert's statement.

Invariant: it runs inside the transaction, behind the fence, after restore; each key is read and written by
this one writer. So what it reads is what no other attempt can change before it is written, and a share that
is written twice under one attempt reads the same values, or values that the upsert then leaves alone.
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
    """The value columns that are filled by a function."""
    return tuple(name for name in spec.state.value_names if isinstance(spec.reducers[name], Custom))


def called(
    spec: TableSpec, attempt: TransactionAttempt, deltas: pa.Table, places: pa.Array, stored: pa.Table
) -> pa.Table:
    """`deltas` with the custom columns' values as they are to be written, from the `stored` rows at these
    `places`, as they were before this batch. Raises StateValueError."""
    places = places.to_pylist()
    if TXID_COLUMN in stored.column_names:
        # Rows of this batch stay as they are, and those of a newer one refuse to be written. In an opaque
        # table, rows with this txid also hold what they were before it.
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
