"""The column "timestamp": a record's time, or null if it has none.

A producer may write anything: seconds, microseconds, nanoseconds. What no date can show is refused here,
where the record's place is known; Arrow and Python would refuse it later, in a bolt, without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from txstream.core.errors import DecodeError
from txstream.spouts.kafka.record_blocks import RecordColumns

_NO_TIME: Final = -1
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 and 9999, as Python has them."""
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def record_times(
    data_type: pa.DataType, columns: RecordColumns, *, takes_any: bool
) -> tuple[pa.Array, Mapping[int, Callable[[str], DecodeError]]]:
    """Return the times of records; what is no date is null. Unless any is taken, what makes the error of such
    a record at a place comes with it, by row."""
    found = columns.timestamps
    bad = (found < _FIRST) | (found > _LAST)
    none = (found == _NO_TIME) | bad
    times = pa.array(np.where(none, 0, found), mask=none).view(_MILLISECONDS).cast(data_type)
    refused = () if takes_any or not bad.any() else np.flatnonzero(bad)
    return times, {int(row): partial(_no_date, int(found[row])) for row in refused}


def _no_date(milliseconds: int, place: str) -> DecodeError:
    return DecodeError(
        f"the timestamp of the record at {place}, is {milliseconds}: as milliseconds since 1970 that is no "
        f"date from year 1 to 9999; correct its producer, which may write microseconds or nanoseconds, or "
        f"leave 'timestamp' out of kafka_columns"
    )
