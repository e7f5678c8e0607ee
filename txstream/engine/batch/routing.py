"""Which tuples of a batch go to which task of the next bolt.

A router belongs to one subscription and one emitting Spark task, for one attempt: an even spread and a
partial key grouping remember what they sent before. Invariants:

- The same batches in the same order always go the same way: a Spark task that runs twice under one attempt
  must do the same both times. Nothing here is random or differs between processes.
- As many rows are given out as came in; with an all grouping, as many to each task. They are counted before
  the first is given out, so if the count is wrong, nothing is sent.
- A task's rows keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.stable_hash import task_of, tasks_of_partial_key
from txstream.core.errors import ShortBatchError, TupleError

Part = tuple[int, pa.RecordBatch]
Parts = Iterator[Part]
Choice = TypeVar("Choice")


class Router(Protocol):
    """Chooses the tasks for one subscription's tuples. Kept for all batches that one Spark task emits."""

    def route(self, batch: pa.RecordBatch, direct_task: int | None = None) -> Parts:
        """Return the rows of `batch` for each task that gets any; nothing for a batch without rows.

        `direct_task` is the task that the emitter named; only a direct grouping looks at it. Raises
        TupleError for a value that cannot be grouped by and for a direct task that is missing or does not
        exist, and ShortBatchError when a row would be left out or sent twice.
        """


def open_router(grouping: Grouping, tasks: int, consumer: str, start: int, first_id: int = 0) -> Router:
    """Return a router to tasks 0 to `tasks` - 1 of component `consumer`, whose ids for direct tuples begin
    with `first_id`.

    An even spread begins at task `start` % `tasks`. Give each emitting Spark task another start, or all of
    their first tuples go to the same task. Raises TupleError when there is no task.
    """
    if tasks < 1:
        raise TupleError(f"component {consumer!r} has {tasks} tasks; {grouping} needs at least one")
    kind = grouping.kind
    if kind is GroupingKind.DIRECT:
        return _Counted(_Direct(grouping, range(first_id, first_id + tasks), consumer), consumer)
    if kind is GroupingKind.ALL:
        return _Counted(_All(tasks), consumer, copies=tasks)
    if kind is GroupingKind.GLOBAL or tasks == 1:
        return _Counted(_One(0), consumer)
    if kind is GroupingKind.FIELDS:
        return _Counted(_ByFields(grouping.fields, tasks, consumer), consumer)
    if kind is GroupingKind.PARTIAL_KEY:
        return _Counted(_ByPartialKey(grouping.fields, tasks, consumer), consumer)
    if kind is GroupingKind.SHUFFLE or kind is GroupingKind.LOCAL_OR_SHUFFLE or kind is GroupingKind.NONE:
        return _Counted(_Evenly(range(tasks), start), consumer)
    assert_never(kind)


def open_local_router(tasks: Sequence[int], consumer: str, start: int, *, together: bool) -> Router:
    """Return a router to the `tasks` of component `consumer` that live in this Spark task.

    An even spread over them begins at `tasks[start % len(tasks)]`; `together` sends everything to the first.
    Raises TupleError when no task lives here.
    """
    if not tasks:
        raise TupleError(f"no task of {consumer!r} lives in this Spark task")
    if together or len(tasks) == 1:
        return _Counted(_One(tasks[0]), consumer)
    return _Counted(_Evenly(tasks, start), consumer)


class _Splitter(Protocol):
    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        """Return the parts of a batch, which has at least one row."""


class _Counted:
    """Gives out the parts that a splitter made of a batch, if they hold its rows `copies` times."""

    def __init__(self, splitter: _Splitter, consumer: str, copies: int = 1) -> None:
        self._splitter = splitter
        self._consumer = consumer
        self._copies = copies

    def route(self, batch: pa.RecordBatch, direct_task: int | None = None) -> Parts:
        if not batch.num_rows:
            return iter(())
        parts = self._splitter.split(batch, direct_task)
        routed = sum(part.num_rows for _, part in parts)
        expected = batch.num_rows * self._copies
        if routed != expected:
            raise ShortBatchError(
                f"{routed} of {expected} tuples were routed to the tasks of {self._consumer!r}"
            )
        return iter(parts)


class _One:
    """Everything to one task."""

    def __init__(self, task: int) -> None:
        self._task = task

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        return [(self._task, batch)]


class _All:
    """The whole batch to every task. A batch never changes, so they share it."""

    def __init__(self, tasks: int) -> None:
        self._tasks = tasks

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        return [(task, batch) for task in range(self._tasks)]


class _Direct:
    """To the task that the emitter named."""

    def __init__(self, grouping: Grouping, task_ids: range, consumer: str) -> None:
        self._emitter = f"component {grouping.component!r} emits to the direct stream {grouping.stream!r}"
        self._ids = task_ids
        self._consumer = consumer

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        if direct_task is None:
            raise TupleError(f"{self._emitter} with emit(); use emit_direct()")
        if direct_task not in self._ids:
            raise TupleError(
                f"{self._emitter} for task {direct_task} of {self._consumer!r}, "
                f"whose {len(self._ids)} tasks are {self._ids[0]} to {self._ids[-1]}"
            )
        return [(self._ids.index(direct_task), batch)]


class _Evenly:
    """Slices to the tasks in turn, so that their numbers of rows never differ by more than one.

    Each batch goes on where the last one ended: the tasks from `_place` on have the fewest rows.
    """

    def __init__(self, tasks: Sequence[int], start: int) -> None:
        self._tasks = tuple(tasks)
        self._place = start % len(tasks)

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        tasks = self._tasks
        share, extra = divmod(batch.num_rows, len(tasks))
        parts = []
        offset = 0
        for position in range(len(tasks) if share else extra):
            size = share + (1 if position < extra else 0)
            parts.append((tasks[(self._place + position) % len(tasks)], batch.slice(offset, size)))
            offset += size
        self._place = (self._place + extra) % len(tasks)
        return parts


class _ByFields:
    """Rows with the same key to one task."""

    def __init__(self, fields: Sequence[str], tasks: int, consumer: str) -> None:
        self._fields = fields
        self._tasks = tasks
        self._consumer = consumer

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        codes, tasks = _of_each_key(
            batch, self._fields, self._consumer, lambda key: task_of(key, self._tasks)
        )
        return _apart(batch, pa.array(tasks, pa.int32()).take(codes), self._consumer)


class _ByPartialKey:
    """Each row to whichever of its key's two tasks has had fewer rows from here; on a tie, the first."""

    def __init__(self, fields: Sequence[str], tasks: int, consumer: str) -> None:
        self._fields = fields
        self._loads = [0] * tasks
        self._consumer = consumer

    def split(self, batch: pa.RecordBatch, direct_task: int | None) -> list[Part]:
        loads = self._loads
        codes, choices = _of_each_key(
            batch, self._fields, self._consumer, lambda key: tasks_of_partial_key(key, len(loads))
        )
        chosen = []
        for code in codes.to_pylist():
            first, second = choices[code]
            task = second if loads[second] < loads[first] else first
            loads[task] += 1
            chosen.append(task)
        return _apart(batch, pa.array(chosen, pa.int32()), self._consumer)


def _of_each_key(
    batch: pa.RecordBatch, fields: Sequence[str], consumer: str, choose: Callable[[Sequence[Any]], Choice]
) -> tuple[pa.Array, list[Choice]]:
    """Call `choose` once for each distinct key. Returns the index of each row's answer, and the answers."""
    try:
        codes, keys = _distinct_keys(batch, fields)
        return codes, [choose(key) for key in keys]
    except (TupleError, ValueError, OverflowError) as error:  # the last two: a time that Python cannot hold
        raise TupleError(
            f"tuples for {consumer!r} cannot be grouped by {', '.join(fields)}: {error}"
        ) from error


def _distinct_keys(batch: pa.RecordBatch, fields: Sequence[str]) -> tuple[pa.Array, list[tuple[Any, ...]]]:
    """Return the index of each row's key, and the distinct keys of the batch.

    Arrow tells keys apart, not Python. When a clock is set back it shows some times twice; the two are equal
    to Python, but their stable hashes differ. Keys that only Arrow tells apart (0.0 and -0.0) do no harm.
    """
    codes = None
    keys: list[tuple[Any, ...]] = [()]
    for name in fields:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise TupleError(f"they have no field {name!r}, only {', '.join(batch.schema.names)}")
        places, values = _distinct_values(batch.column(position))
        if codes is None:
            codes, keys = places, [(value,) for value in values]
            continue
        # A pair of indexes as one number. It stays small, because pairs are renumbered after each field.
        # (An Arrow scalar: converting a Python number inside `multiply` costs eight times the product.)
        pairs = pc.add(pc.multiply(codes, pa.scalar(len(values), pa.int64())), places)
        encoded = pairs.dictionary_encode()
        codes = encoded.indices
        split = (divmod(pair, len(values)) for pair in encoded.dictionary.to_pylist())
        keys = [(*keys[left], values[right]) for left, right in split]
    return codes, keys


def _distinct_values(column: pa.Array) -> tuple[pa.Array, list[Any]]:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()  # its dictionary may be far longer than this batch
    try:
        encoded = column.dictionary_encode(null_encoding="encode")
    except pa.ArrowNotImplementedError:  # small decimals, extension types, lists: a key per row
        return pa.array(range(len(column)), pa.int32()), column.to_pylist()
    return encoded.indices, encoded.dictionary.to_pylist()


def _apart(batch: pa.RecordBatch, tasks: pa.Array, consumer: str) -> list[Part]:
    """Split a batch by task and keep the order of rows. `tasks` has the task of each row."""
    counts = sorted((count["values"], count["counts"]) for count in tasks.value_counts().to_pylist())
    if len(counts) == 1:
        return [(counts[0][0], batch)]
    try:
        ordered = batch.take(pc.array_sort_indices(tasks))  # a stable sort
    except pa.ArrowNotImplementedError as error:
        raise TupleError(
            f"tuples for {consumer!r} have a field of a type that Arrow cannot split by rows: {error}"
        ) from error
    parts = []
    offset = 0
    for task, count in counts:
        parts.append((task, ordered.slice(offset, count)))
        offset += count
    return parts
