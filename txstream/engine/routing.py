"""Which tuples of a batch go to which task of the next bolt.

The same batches in the same order always go the same way: a Spark task that runs twice under one attempt
must do the same both times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from txstream.api.errors import ShortBatchError, TupleError
from txstream.api.groupings import GroupingKind, task_of
from txstream.engine.plan import BoltSpec

Parts = Iterator[tuple[int, pa.RecordBatch]]


def route(batch: pa.RecordBatch, spec: BoltSpec, start: int) -> Parts:
    """The tuples for each task of `spec`, as its grouping says; an even spread begins at task `start`.

    Raises ShortBatchError when a tuple was left out or sent twice, TupleError for a value that cannot be
    grouped by.
    """
    kind = spec.grouping.kind
    if spec.tasks == 1 or kind is GroupingKind.GLOBAL:
        parts: Parts = iter([(0, batch)])
    elif kind is GroupingKind.FIELDS:
        parts = _by_fields(batch, spec)
    else:
        parts = _evenly(batch, range(spec.tasks), start)
    return _counted(parts, batch, spec)


def keep(batch: pa.RecordBatch, spec: BoltSpec, tasks: Sequence[int], start: int, *, together: bool) -> Parts:
    """The tuples for the tasks of `spec` that live in this Spark task: spread evenly, or `together` to one
    of them. Raises TupleError when none lives here."""
    if not tasks:
        raise TupleError(f"no task of {spec.id!r} lives in this Spark task")
    if together or len(tasks) == 1:
        return iter([(tasks[0], batch)])
    return _counted(_evenly(batch, tasks, start), batch, spec)


def _counted(parts: Parts, batch: pa.RecordBatch, spec: BoltSpec) -> Parts:
    routed = 0
    for task, part in parts:
        routed += part.num_rows
        yield task, part
    if routed != batch.num_rows:
        raise ShortBatchError(f"{routed} of {batch.num_rows} tuples were routed to the tasks of {spec.id!r}")


def _evenly(batch: pa.RecordBatch, tasks: Sequence[int], start: int) -> Parts:
    """Slices whose sizes differ by at most one, the larger ones first from `start` on."""
    share, extra = divmod(batch.num_rows, len(tasks))
    offset = 0
    for position in range(len(tasks)):
        size = share + (1 if position < extra else 0)
        if size:
            yield tasks[(start + position) % len(tasks)], batch.slice(offset, size)
        offset += size


def _by_fields(batch: pa.RecordBatch, spec: BoltSpec) -> Parts:
    """Hash each distinct key once, then take each task's rows in their order."""
    names = list(spec.grouping.fields)
    columns = [batch.column(batch.schema.get_field_index(name)) for name in names]
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    tasks = {key: task_of(key, spec.tasks) for key in set(keys)}
    rows: dict[int, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(tasks[key], []).append(row)
    for task in sorted(rows):
        yield task, batch.take(pa.array(rows[task], pa.int64()))
