"""Checks of reading: a planned range gives the same rows to every reader, at any time, however often.

They compare readings with each other, never with what the harness wrote. Rows that are wrong in every reading
are found by the checks in `every_row_once`.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Mapping
from itertools import islice, repeat
from typing import Any, NoReturn

import pyarrow as pa

from txstream.api.schema import format_schema
from txstream.api.spouts import PartitionEmitter
from txstream.plugins.proof.promises import NotApplicableError, Promises
from txstream.plugins.proof.spout_suite.harness import Row
from txstream.plugins.proof.spout_suite.process import pickled, read_elsewhere
from txstream.plugins.proof.spout_suite.trial import Batch, Reading, SpoutCheck, SpoutTrial, attempt

CHECKS = Promises(SpoutCheck)


def _planned(trial: SpoutTrial) -> tuple[Mapping[str, Any], Reading]:
    """Return the metas of a batch that takes everything, and its rows."""
    trial.fill()
    _, metas = trial.next_batch(trial.coordinator(), {}, whole=True)
    return metas.partitions, trial.read(trial.emitter(), metas.partitions)


def _in_pieces(trial: SpoutTrial) -> dict[str, list[Batch]]:
    """Return the batches that take from each partition, for partitions with at least two of them."""
    trial.fill()
    trial.fill()
    batches = trial.walk(limit=3)
    pieces: dict[str, list[Batch]] = {}
    for batch in batches:
        for partition in batch.metas.partitions:
            pieces.setdefault(partition, []).append(batch)
    found = {partition: taken for partition, taken in pieces.items() if len(taken) > 1}
    if not found:
        trial.fail("several batches that take from one partition", f"none in {len(batches)} batches")
    return found


def _require_again(
    trial: SpoutTrial, emitter: PartitionEmitter[Any], partition: str, batch: Batch, how: str
) -> None:
    """Fail unless the emitter returns the rows that were read of a batch before."""
    meta, rows = batch.metas.partitions[partition], batch.rows[partition]
    again = trial.read_one(emitter, partition, meta, batch.txid)
    trial.require_same({partition: rows}, {partition: again}, how, {partition: meta})


def _batches(emitter: PartitionEmitter[Any], partition: str, meta: Any) -> list[Any]:
    return list(emitter.emit(attempt(), partition, meta))


@CHECKS.promise(
    "rows-as-declared",
    "Every record batch has the columns and types that `output` declares.",
    "build the batches with the schema of `output`; `parse_schema` returns it",
)
def rows_as_declared(trial: SpoutTrial) -> None:
    trial.fill()
    schema = trial.schema()
    _, metas = trial.next_batch(trial.coordinator(), {}, whole=True)
    emitter = trial.emitter()
    for partition, meta in metas.partitions.items():
        for batch in trial.ask(f"{partition!r} is read", _batches, emitter, partition, meta):
            if not isinstance(batch, pa.RecordBatch):
                trial.fail("pyarrow.RecordBatch", f"{type(batch).__name__} from partition {partition!r}")
            if batch.schema.names != schema.names or batch.schema.types != schema.types:
                trial.fail(format_schema(schema), f"{format_schema(batch.schema)} in {partition!r}")


@CHECKS.promise(
    "same-rows-again",
    "An attempt that reads a planned range again gets the same rows in the same order.",
    "Spark runs a task again when it loses its result or speculates: the rows may depend only on the meta "
    "and the log",
)
def same_rows_again(trial: SpoutTrial) -> None:
    metas, first = _planned(trial)
    emitter = trial.emitter()
    for _ in range(2):
        for partition, meta in metas.items():
            for _ in range(2):
                again = trial.read_one(emitter, partition, meta)
                trial.require_same({partition: first[partition]}, {partition: again}, "read again", metas)


@CHECKS.promise(
    "same-rows-in-another-attempt",
    "A replay under another attempt id gets the same rows in the same order.",
    "derive nothing from the attempt id, neither a seed nor an order",
)
def same_rows_in_another_attempt(trial: SpoutTrial) -> None:
    metas, first = _planned(trial)
    for sequence in (2, 7, 2**31):
        again = trial.read(trial.emitter(), metas, sequence=sequence)
        trial.require_same(first, again, f"read by attempt 1.{sequence}", metas)


@CHECKS.promise(
    "same-rows-from-any-emitter",
    "Every emitter gets the same rows from a planned range, in the same order.",
    "the rows must not depend on what an emitter read before, or on how many emitters there are",
)
def same_rows_from_any_emitter(trial: SpoutTrial) -> None:
    metas, first = _planned(trial)
    source = trial.source()
    for number in range(3):
        again = trial.read(trial.emitter(source), metas)
        trial.require_same(first, again, f"read by emitter {number + 1} of one source", metas)
    trial.require_same(first, trial.read(trial.emitter(), metas), "read from a new source", metas)


@CHECKS.promise(
    "same-rows-after-append",
    "Rows that are written after a plan are not in the planned ranges.",
    "end a range at a place in the log, never at 'what is there now'",
)
def same_rows_after_append(trial: SpoutTrial) -> None:
    metas, first = _planned(trial)
    trial.fill()
    # Once these are planned, the log is sure to have grown.
    trial.next_batch(trial.coordinator(), metas, whole=not trial.harness.endless)
    trial.require_same(first, trial.read(trial.emitter(), metas), "read after more rows were written", metas)


@CHECKS.promise(
    "ships-to-workers",
    "A source can be pickled, even after it was opened, and reads the same rows once unpickled.",
    "keep only addresses and options in the source; connections, locks and threads belong in its "
    "coordinator and emitters",
)
def ships_to_workers(trial: SpoutTrial) -> None:
    trial.fill()
    source = trial.source()
    coordinator, emitter = trial.coordinator(source), trial.emitter(source)
    _, metas = trial.next_batch(coordinator, {}, whole=True)
    first = trial.read(emitter, metas.partitions)
    shipped = trial.ask("the source is pickled", pickled, source)
    unpickled = trial.ask("the source is unpickled", pickle.loads, shipped)
    again = trial.read(trial.emitter(unpickled), metas.partitions)
    trial.require_same(first, again, "read from the unpickled source", metas.partitions)


@CHECKS.promise(
    "same-rows-in-another-process",
    "A worker process gets the same rows from a planned range, in the same order.",
    "the rows must not depend on this process's memory, on hash() or on the order of a set; the other "
    "process must be able to import the source's class",
)
def same_rows_in_another_process(trial: SpoutTrial) -> None:
    if not trial.harness.create().other_process:
        raise NotApplicableError("another process cannot read the source (other_process is False)")
    metas, first = _planned(trial)
    shipped = trial.ask("the source is pickled", pickled, trial.source())
    again = trial.ask(
        "another process reads", read_elsewhere, shipped, trial.harness.context, attempt(), metas
    )
    trial.require_same(first, again, "read by another process", metas)


@CHECKS.promise(
    "seeks-back",
    "An emitter that has read a later range still reads an earlier one as planned.",
    "before every range, a reader that is kept between batches must seek and drop what it has prefetched",
)
def seeks_back(trial: SpoutTrial) -> None:
    for partition, batches in _in_pieces(trial).items():
        emitter = trial.emitter()
        for batch in (batches[-1], *batches, batches[0]):
            _require_again(trial, emitter, partition, batch, "read after another range")


@CHECKS.promise(
    "emitters-do-not-disturb-each-other",
    "Two emitters that read at the same time each get what was planned for them.",
    "keep positions and connections in the emitter, not in the class, the module or the source",
)
def emitters_do_not_disturb_each_other(trial: SpoutTrial) -> None:
    for partition, batches in _in_pieces(trial).items():
        pair = {trial.emitter(): batch for batch in (batches[0], batches[-1])}
        readings = trial.ask(f"{partition!r} is read", _in_turn, partition, pair)
        for batch, found in zip(pair.values(), readings, strict=True):
            trial.require_same(
                {partition: batch.rows[partition]},
                {partition: found},
                "read by two emitters in turn",
                batch.metas.partitions,
            )


@CHECKS.promise(
    "a-read-may-be-given-up",
    "A read that is abandoned halfway does not affect what the emitter reads next.",
    "a cancelled task closes the iterator: release what it holds in `finally`, and start every range afresh",
)
def a_read_may_be_given_up(trial: SpoutTrial) -> None:
    for partition, batches in _in_pieces(trial).items():
        emitter = trial.emitter()
        first, last = batches[0], batches[-1]
        for begun, batch in ((first, last), (first, first), (last, last)):
            trial.ask(f"{partition!r} is read in part", _give_up, emitter, partition, begun)
            _require_again(trial, emitter, partition, batch, "read after another read was abandoned")


def _in_turn(partition: str, pair: Mapping[PartitionEmitter[Any], Batch]) -> list[list[Row]]:
    """Return the rows that each emitter reads of its batch. They take turns, one record batch at a time."""
    readings: list[list[Row]] = [[] for _ in pair]
    turns = deque(
        (reading, iter(emitter.emit(attempt(batch.txid), partition, batch.metas.partitions[partition])))
        for reading, (emitter, batch) in zip(readings, pair.items(), strict=True)
    )
    while turns:
        reading, batches = turns.popleft()
        rows = next(batches, None)
        if rows is not None:
            reading.extend(rows.to_pylist())
            turns.append((reading, batches))
    return readings


def _give_up(emitter: PartitionEmitter[Any], partition: str, batch: Batch) -> None:
    """Read one record batch and close the iterator, as a cancelled task does."""
    rows = iter(emitter.emit(attempt(batch.txid), partition, batch.metas.partitions[partition]))
    next(rows, None)
    if isinstance(rows, Generator):
        rows.close()


@CHECKS.promise(
    "emit-many-equals-emit",
    "`emit_many`, `emit_joined` and `emit_fitting` give each partition the same rows as `emit`, in the same "
    "order, and give no rows of other partitions.",
    "partitions may take turns, but each one's rows keep their order and come under its name",
)
def emit_many_equals_emit(trial: SpoutTrial) -> None:
    metas, alone = _planned(trial)
    orders = [
        dict(metas),
        dict(reversed(list(metas.items()))),
        *({name: meta} for name, meta in metas.items()),
    ]
    for asked in orders:
        for read in (_together, _joined, _fitting):
            found = trial.ask(f"{sorted(asked)} are read together", read, trial.emitter(), asked)
            surplus = sorted(set(found) - set(asked))
            if surplus:
                trial.fail(f"only rows of {sorted(asked)}", f"rows of {surplus[0]!r}")
            expected = {name: alone[name] for name in asked}
            trial.require_same(expected, found, f"read together as {list(asked)}", asked)


def _together(emitter: Any, metas: Mapping[str, Any]) -> Reading:
    rows: Reading = {}
    for partition, batch in emitter.emit_many(attempt(), metas):
        rows.setdefault(partition, []).extend(batch.to_pylist())
    return rows


def _joined(emitter: Any, metas: Mapping[str, Any]) -> Reading:
    rows: Reading = {}
    for counts, batch in emitter.emit_joined(attempt(), metas):
        left = iter(batch.to_pylist())
        for partition, count in counts.items():
            rows.setdefault(partition, []).extend(islice(left, count))
    return rows


def _fitting(emitter: Any, metas: Mapping[str, Any]) -> Reading:
    rows: Reading = {}
    for counts, batch, offsets in emitter.emit_fitting(attempt(), metas, _refuse):
        of_rows = repeat(None, batch.num_rows) if offsets is None else offsets
        left = iter(zip(batch.to_pylist(), of_rows, strict=True))
        for partition, count in counts.items():
            rows.setdefault(partition, []).extend(row for row, _ in islice(left, count))
    return rows


def _refuse(_partition: str, _offset: int, error: Exception) -> NoReturn:
    raise error


@CHECKS.promise(
    "records-is-not-too-small",
    "A meta's `records` is a whole number, at least the number of its rows.",
    "count every place in the range, because the engine chooses the number of Spark tasks by it; there may "
    "be fewer rows than records, because a place may hold no row",
)
def records_is_not_too_small(trial: SpoutTrial) -> None:
    trial.fill()
    counted = 0
    for batch in trial.walk(limit=3):
        for partition, meta in batch.metas.partitions.items():
            records = getattr(meta, "records", None)
            if records is None:
                continue
            counted += 1
            rows = len(batch.rows[partition])
            if isinstance(records, bool) or not isinstance(records, int) or records < rows:
                trial.fail(
                    f"{rows} or more, because {partition!r}, planned as {meta!r:.200}, has {rows} rows",
                    f"records = {records!r}",
                )
    if not counted:
        raise NotApplicableError("the source's metas have no `records`")
