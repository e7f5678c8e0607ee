"""The column "timestamp": a record's time, or null if it has none.

A producer may write anything: seconds, microseconds, nanoseconds. What no date can show is refused here,
where the record's place is known; Arrow and Python would refuse it later, in a bolt, without it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from txstream.core.errors import DecodeError
from txstream.spouts.kafka.protocol import Partition
from txstream.spouts.kafka.record_blocks import RecordColumns

_NO_TIME: Final = -1
_FIRST, _LAST = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 and 9999, as Python has them."""
_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def record_times(
    data_type: pa.DataType, partition: Partition, columns: RecordColumns, *, takes_any: bool
) -> pa.Array:
    """Return the times of records. Raises DecodeError for what is no date; with `takes_any` that is null."""
    found = columns.timestamps
    none = found == _NO_TIME
    bad = (found < _FIRST) | (found > _LAST)
    if bad.any():
        if not takes_any:
            row = int(bad.argmax())
            raise DecodeError(
                f"the timestamp of the record at offset {columns.offsets[row]} of topic {partition.topic!r}, "
                f"partition {partition.number}, is {found[row]}: as milliseconds since 1970 that is no date "
                f"from year 1 to 9999; correct its producer, which may write microseconds or nanoseconds, or "
                f"leave 'timestamp' out of kafka_columns"
            )
        none |= bad
    return pa.array(np.where(none, 0, found), mask=none).view(_MILLISECONDS).cast(data_type)
