"""Calling a user's reducer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from txstream.api.errors import StateValueError
from txstream.api.reducers import Custom


def reduced(reducer: Custom, values: Sequence[Any]) -> Any:
    """The values, none of them null, merged into one; the identity where there are none.

    Raises StateValueError, chained to what the function raised.
    """
    if reducer.start is not None:
        values = [reducer.start, *values]
    if not values:
        return None
    merged = values[0]
    for value in values[1:]:
        try:
            answer = reducer.fn(merged, value)
        except Exception as error:
            raise StateValueError(
                f"{reducer} raised {type(error).__name__}: {error}, for {merged!r:.100} and {value!r:.100}"
            ) from error
        if answer is None:
            raise StateValueError(f"{reducer} gave None for {merged!r:.100} and {value!r:.100}")
        merged = answer
    return merged
