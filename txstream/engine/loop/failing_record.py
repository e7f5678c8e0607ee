"""Names the record at which a batch fails, once the batch's error has ended the run.

Its ranges are processed again in halves, as long as one half fails in the same way, down to a single record.
What only the database refuses, such as a sum that no longer fits, does not fail then: a half is taken if it
has the row's key. Nothing of this is committed, and a batch that does not end the run costs nothing.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from txstream.api.errors import BoltError, StateValueError, TupleError, TxstreamError
from txstream.batch_metas import BatchMetas, halves
from txstream.engine.loop.retry_policy import reason_of
from txstream.wording import counted, in_order

log = logging.getLogger(__name__)

SECONDS = 20.0
"""No further part is processed after this time: the run is over, and somebody waits for its end."""

Written = Sequence[tuple[str, pa.Table]]
"""The keys that the commit of a part would write, with the names of their tables."""

_MOST_RANGES = 4
_NAMES = re.compile(r"(?:component|table|column) '[^']*'")
_VALUES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+")


def name_record(
    error: BaseException,
    metas: BatchMetas[Any],
    process: Callable[[BatchMetas[Any]], Written],
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Add to the error where its record is, or, if that cannot be found, what its batch held. `process` does
    to a part of the batch what was done to all of it, up to the commit, and raises how it fails or returns
    what would be written."""
    if not isinstance(error, (BoltError, StateValueError, TupleError)) or error.record is not None:
        return
    found = dict(metas.partitions)
    if not found:
        return
    deadline = now() + SECONDS
    log.info("looking for the record at which the batch fails")
    while now() < deadline:
        parts = reversed([*halves(found, exact=True)])
        smaller = next((part for part in parts if _is_about(error, metas.part(part), process)), None)
        if smaller is None:
            break
        found = smaller
    error.record = _told(found, of_key=isinstance(error, StateValueError) and error.row is not None)
    error.args = (f"{error}; {error.record}", *error.args[1:])


def _is_about(
    error: TxstreamError, part: BatchMetas[Any], process: Callable[[BatchMetas[Any]], Written]
) -> bool:
    """Return whether the part fails in the same way, or would write the row that the store refused."""
    try:
        written = process(part)
    except Exception as other:  # noqa: BLE001 - the run ends with its own error, whatever happens here
        return type(other) is type(error) and _shape(other) == _shape(error)
    if not isinstance(error, StateValueError) or error.row is None:
        return False
    refused, key = error.row
    keys = (row for table, rows in written if table == refused for row in rows.to_pylist())
    return any(", ".join(f"{name}={value!r}" for name, value in row.items()) == key for row in keys)


def _shape(error: TxstreamError) -> str:
    """What is said of an error whichever record made it: its message without values, but with its component,
    or with its table and column."""
    if error.without_data is not None:
        return error.without_data
    named = _NAMES.findall(reason_of(error))
    return " ".join([*named, _VALUES.sub("", reason_of(error))])


def _told(found: Mapping[str, Any], *, of_key: bool) -> str:
    names = sorted(found, key=in_order)
    ranges = [_range(name, found[name]) for name in islice(names, _MOST_RANGES)]
    if len(names) > _MOST_RANGES:
        ranges.append(counted(len(names) - _MOST_RANGES, "more partition"))
    is_one = len(names) == 1 and getattr(found[names[0]], "records", None) == 1
    if is_one:
        return f"{'a record with this key' if of_key else 'the record'} is {ranges[0]}"
    return f"the records were {', '.join(ranges)}"


def _range(name: str, meta: Any) -> str:
    start, end = getattr(meta, "start", None), getattr(meta, "end", None)
    if start is None or end is None:
        return f"in partition {name}"
    return f"at offset {start}{f' to {end - 1}' if end > start + 1 else ''} of partition {name}"
