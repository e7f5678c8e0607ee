"""Types that a column may have: the values of the conformance suite, and ways to draw others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from txstream.api.schema import parse_schema
from txstream.plugins.proof.state_suite import column_types
from txstream.plugins.proof.state_suite.column_types import scaled


@dataclass(frozen=True)
class Kind:
    """A type, the values most likely to go wrong, and a way to draw any value."""

    ddl: str
    edges: Sequence[Any]
    any: st.SearchStrategy[Any]

    @property
    def arrow(self) -> pa.DataType:
        return parse_schema(f"x {self.ddl}").field(0).type

    def __str__(self) -> str:
        return self.ddl


_ANY: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(
        st.one_of(
            st.sampled_from("\"\\{},' NULLnull%:?\t\r\n\x01\x7f\u2028\ufeff\U0010ffff"),
            st.characters(exclude_characters="\0", exclude_categories=["Cs"]),
        ),
        max_size=12,
    ),
    "binary": st.binary(max_size=12),
    "boolean": st.booleans(),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
}


def _any(ddl: str) -> st.SearchStrategy[Any]:
    if ddl in _ANY:
        return _ANY[ddl]
    data_type = parse_schema(f"x {ddl}").field(0).type
    if pa.types.is_integer(data_type):
        low = -(1 << (data_type.bit_width - 1))
        return st.integers(low, -low - 1)
    largest = 10**data_type.precision - 1
    return st.integers(-largest, largest).map(partial(scaled, scale=data_type.scale))


KINDS = tuple(Kind(ddl, edges, _any(ddl)) for ddl, edges in column_types.KINDS.items())
