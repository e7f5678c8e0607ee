"""Writes every type that a state's columns may have in one batch, and reads it in the next."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

from support.state_bench import Bench
from txstream.api.state import SqlState

COLUMNS = (
    *("s string", "y binary", "b boolean", "i tinyint", "n bigint"),
    *("d date", "t timestamp", "u timestamp_ntz", "m decimal(9,3)"),
)
TYPES = SqlState(
    "types",
    key=", ".join(COLUMNS),
    value=", ".join([*(f"v_{column}" for column in COLUMNS), "v_f float", "v_g double"]),
)

NOON = dt.datetime(2026, 11, 21, 12, 30, 15, 123456)
UTC_NOON = NOON.replace(tzinfo=dt.UTC)
THERE = dt.timezone(dt.timedelta(hours=-5))

Row = tuple[Any, ...]

WRITTEN: dict[Row, Row] = {
    ("größe 🙂", b"\x00\xff", True, -128, 2**63 - 1, NOON.date(), UTC_NOON, NOON, Decimal("1.5")): (
        *("größe", b"", False, 127, -(2**63), dt.date(1, 1, 1), UTC_NOON, NOON, Decimal("-2")),
        *(0.1, 0.1),
    ),
    (" ", b" ", False, 0, 0, dt.date(9999, 12, 31), UTC_NOON.astimezone(THERE), NOON, 7): (
        *("", b"\x00", True, 0, 0, NOON.date(), UTC_NOON.astimezone(THERE), NOON, 7),
        *(-3, 1e300),
    ),
}


def check_types(url: str) -> None:
    """Write each row; find it in the next batch, by the key as written and by the key that a read gives."""
    bench = Bench(url, state=TYPES, tasks=1)
    first = bench.begin(1)
    states = bench.open(first, 0)
    state = states.states["balances"]
    state.multi_put(list(WRITTEN), list(WRITTEN.values()))
    at_once = state.multi_get(list(WRITTEN))
    keys = sorted(state.written, reverse=True)  # as in WRITTEN, since it is a set
    states.flush()
    bench.end(first)

    second = bench.open(bench.begin(2), 0).states["balances"]
    for asked in (list(WRITTEN), keys):
        read = second.multi_get(asked)
        assert read == at_once, "a value is not what it was when it was put"
        assert [list(map(type, row)) for row in read] == [list(map(type, row)) for row in at_once]
    assert read == [(*value[:-2], *map(_single, value[-2:-1]), value[-1]) for value in WRITTEN.values()]
    assert second.written == {}
    bench.close()


def _single(number: float) -> float:
    """Return the number as a column of type float holds it."""
    (found,) = struct.unpack("<f", struct.pack("<f", number))
    return float(found)
