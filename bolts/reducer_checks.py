"""What bolts refuse of their reducers before a run."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.reducers import Custom, Reducer
from txstream.api.rows import UnfitValueError, to_column
from txstream.api.schema import format_type
from txstream.core.errors import TopologyError


def check_reducers(declarer: OutputFieldsDeclarer, reducers: Mapping[str, Reducer]) -> None:
    """Raise TopologyError if a reducer's field is missing or of a type that it cannot take."""
    for name, reducer in reducers.items():
        if not isinstance(reducer, Reducer):
            raise TopologyError(
                f"component {declarer.component!r}: {name}={reducer!r} is not a reducer; write for example "
                f"{name}=Sum({name!r})"
            )
        if reducer.field is None:
            continue
        data_type = declarer.input_field(reducer.field).type
        if not reducer.accepts(data_type):
            raise TopologyError(
                f"component {declarer.component!r}: {type(reducer).__name__} cannot take field "
                f"{reducer.field!r} of type {format_type(data_type)}"
            )
        for field in reducer.order_fields:
            order_type = declarer.input_field(field).type
            if not reducer.accepts(order_type):
                raise TopologyError(
                    f"component {declarer.component!r}: {reducer} cannot order by field {field!r} of type "
                    f"{format_type(order_type)}"
                )
        if isinstance(reducer, Custom):
            _check_identity(declarer, name, reducer, reducer.result_type(data_type))


def _check_identity(declarer: OutputFieldsDeclarer, name: str, reducer: Reducer, result: pa.DataType) -> None:
    try:
        to_column([reducer.identity], pa.field(name, result))
    except UnfitValueError as error:
        raise TopologyError(
            f"component {declarer.component!r}: {name}={reducer}: the identity {reducer.identity!r:.100} is "
            f"no value of type {format_type(result)}, which the reducer gives"
        ) from error
