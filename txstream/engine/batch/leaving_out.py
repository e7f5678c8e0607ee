"""What a Spark task leaves out of a batch while it reads it, so that the batch commits in its first attempt.

A record that cannot be decoded is known where it is read. So is one at which a bolt raises that is the only
one to take the spout's tuples, one by one; if they cross an exchange, the places of their records go with
them. It is tried once more by itself, at once, by a fresh instance of the bolt. If it fails again, nothing of
it is handed on, and the task goes on.

Invariants.
- What a record that is left out has emitted has not left its bolt, and the bolt is as it was before.
- Whatever may be an outage, is not certain, or is more than the batch may leave out, fails the attempt; the
  next one searches (`record_search`).
- What was left out goes to the driver with the very tuples of the rest. Two executions of a Spark task may
  leave out different records, if a bolt is not deterministic. So messages say by their `lineage` what was
  left out of what they hold, and an attempt fails in which parts of two executions meet.
- In the commit phase the set is known. A Spark task that is computed again leaves out these records, at the
  same points, and no others.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark import cloudpickle

from txstream.api.bolts import BasicBolt, Bolt, overrides
from txstream.api.groupings import GroupingKind
from txstream.api.spouts import Offsets
from txstream.api.topology import Phase
from txstream.api.tuples import Chunk
from txstream.core.batch_metas import is_numbered
from txstream.core.errors import DecodeError, LateRecordError, ShortBatchError, TxstreamError
from txstream.core.wording import counted
from txstream.engine.batch.collector import HIDDEN, visible
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan
from txstream.engine.batch.executor_failures import OF_A_RECORD, Failure, describe, lacks_time_zones
from txstream.engine.batch.layout import Stage
from txstream.engine.batch.messages import LeftOut, WorkOrder

if TYPE_CHECKING:
    from txstream.core.transaction import TransactionAttempt

Integers = npt.NDArray[np.int64]

_PARTITION, _OFFSET = f"{HIDDEN}partition", f"{HIDDEN}offset"
_UNKNOWN = -1

_NO_RECORD = (OSError, MemoryError, ModuleNotFoundError)

Place = tuple[str, int, str]
"""Partition, offset and component."""


@dataclass
class _Range:
    """A range that is read. Without offsets, a row's is counted, if positions are records."""

    number: int
    start: int | None
    records: int | None
    rows: int = 0
    is_counted: bool = False

    def offsets(self, rows: int) -> Integers:
        """Return the offsets of the next rows, as far as they can be counted."""
        self.is_counted = True
        if self.start is None:
            return np.full(rows, _UNKNOWN)
        return np.arange(self.start + self.rows, self.start + self.rows + rows)


class LeavingOut:
    """The records that one Spark task leaves out. `found` are those of this execution; `knows_all`: which
    ones are to be left out is known."""

    def __init__(self, plan: ExecutionPlan, order: WorkOrder) -> None:
        self.attempt = order.attempt
        self._spout = plan.spout_id
        self._spare = order.spare
        self._known = frozenset(order.left_out)
        self.knows_all = bool(self._known)
        self._has_taker = taker_of(plan) is not None
        self._names = sorted({partition for some in order.assignments for partition in some})
        self._places: set[Place] = set()
        self.found: list[LeftOut] = []
        # What the reader keeps: the ranges, and the places of rows that are not pushed yet.
        self._ranges: list[_Range] = []
        self._of_round: dict[str, _Range] = {}
        self._unpushed: list[tuple[Integers, Integers]] = []

    # --- the first stage reads ------------------------------------------------------------------------

    def begin_round(self, metas: Mapping[str, Any]) -> None:
        """Begin to read these ranges; those before were read to their ends."""
        self._of_round = {}
        for name, meta in metas.items():
            known = (meta.start, meta.records) if is_numbered(meta) else (None, None)
            self._of_round[name] = _Range(self._names.index(name), *known)
        self._ranges += self._of_round.values()

    def unfit(self, partition: str, offset: int, error: DecodeError) -> None:
        """Leave out a record that cannot be decoded, or raise."""
        if not self._take((partition, offset, self._spout), lambda: describe(error, self._spout, None)):
            raise error

    def add(self, counts: Mapping[str, int], offsets: Offsets | None) -> None:
        """Note of which records the next rows are."""
        if not self._has_taker:
            return
        numbers, found, behind = [], [], 0
        for partition, rows in counts.items():
            read = self._of_round[partition]
            theirs = None if offsets is None else np.asarray(offsets[behind : behind + rows], np.int64)
            found.append(read.offsets(rows) if theirs is None else theirs)
            numbers.append(np.full(rows, read.number, np.int32))
            read.rows += rows
            behind += rows
        if behind:
            self._unpushed.append((np.concatenate(numbers), np.concatenate(found)))

    def placed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows that were read, with their places if a bolt may leave out some of them."""
        if not self._has_taker:
            return batch
        taken, rows = [], 0
        while rows < batch.num_rows:
            taken.append(self._unpushed.pop(0))
            rows += len(taken[-1][0])
        for name, some in zip((_PARTITION, _OFFSET), zip(*taken, strict=True), strict=True):
            batch = batch.append_column(name, pa.array(np.concatenate(some)))
        return batch

    @property
    def gaps(self) -> list[str]:
        """The partitions in which counted offsets are wrong, because some positions were no rows."""
        wrong = {read.number for read in self._ranges if read.is_counted and read.rows != read.records}
        return [self._names[number] for number in sorted(wrong)]

    def require_unfit(self, partitions: Collection[str]) -> None:
        """Raise unless all values of these partitions that are known to be left out were."""
        known = {one for one in self._known if one[0] in partitions and one[2] == self._spout}
        missing = known - self._places
        if missing:
            partition, offset, _ = min(missing)
            raise ShortBatchError(
                f"{self.attempt} leaves out {counted(len(missing), 'value')} that, computed again, can be "
                f"decoded; the first is at offset {offset} of partition {partition!r}"
            )

    # --- a bolt takes ---------------------------------------------------------------------------------

    def is_known(self, chunk: Chunk, row: int, component: str) -> bool:
        """Whether this tuple is known to be left out at this component; it is then."""
        place = self._place(chunk, row, component)
        return place is not None and self._take(place, None)

    def take(self, chunk: Chunk, row: int, failure: Failure) -> bool:
        """Leave out the record of a tuple. Returns False if that may not be."""
        place = self._place(chunk, row, failure.component)
        return place is not None and self._take(place, lambda: failure)

    def _place(self, chunk: Chunk, row: int, component: str) -> Place | None:
        partitions, offsets = chunk.marks
        offset = int(offsets[row])
        return None if offset == _UNKNOWN else (self._names[partitions[row]], offset, component)

    def _take(self, place: Place, failure: Callable[[], Failure] | None) -> bool:
        if self._known:
            if place not in self._known:
                return False
        elif failure is None or len(self.found) >= self._spare:
            return False
        else:
            self.found.append(LeftOut(*place[:2], failure()))
        self._places.add(place)
        return True

    @property
    def places(self) -> list[Place]:
        """What was left out, in order."""
        return sorted(self._places)


def open_chunk(part: pa.RecordBatch, source: str, stream: str, task: int) -> Chunk:
    """Return a chunk of tuples; its `marks` are their places, if they have some."""
    if part.schema.names[-1:] != [_OFFSET]:
        return Chunk(part, source, stream, task)
    chunk = Chunk(visible(part), source, stream, task)
    chunk.marks = part.column(_PARTITION).to_numpy(), part.column(_OFFSET).to_numpy()
    return chunk


def without_rows(chunk: Chunk, rows: Sequence[int]) -> Chunk:
    """Return a chunk with places without some of its tuples."""
    kept = np.delete(np.arange(len(chunk)), rows)
    left = Chunk(chunk.batch.take(kept), chunk.source_component, chunk.source_stream, chunk.source_task)
    left.marks = tuple(places[kept] for places in chunk.marks)
    return left


def lineage_of(leaving: LeavingOut | None, heard: Mapping[str, str]) -> str:
    """Return what messages say of what was left out of them: here, and before, as was heard."""
    told = [[] if leaving is None else leaving.places, sorted(heard.items())]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:20] if any(told) else ""


def require_heard(attempt: TransactionAttempt, heard: Mapping[str, str], expected: Mapping[str, str]) -> None:
    """Raise ShortBatchError if messages are of another execution of their Spark tasks than the answers."""
    if heard != expected:
        others = sorted(name for name in {*heard, *expected} if heard.get(name) != expected.get(name))
        raise ShortBatchError(
            f"{attempt}: {counted(len(others), 'Spark task')} left out other records when computed again: "
            f"{', '.join(others)}"
        )


def leaving_out(plan: ExecutionPlan, stage: Stage, order: WorkOrder) -> LeavingOut | None:
    """Return what a Spark task leaves out, None if nothing may be."""
    if not (order.spare or order.left_out) or stage.phase is Phase.COMMIT:
        return None
    return LeavingOut(plan, order) if stage.position == 0 or taker_of(plan) in stage.bolts else None


def taker_of(plan: ExecutionPlan) -> BoltSpec | None:
    """Return the bolt that takes each of the spout's tuples once, as the only one, before the commit: nothing
    but what it makes of a tuple is an effect of the record."""
    readers = [(bolt, given) for bolt in plan.bolts for given in bolt.inputs if given.source == plan.spout_id]
    if len(readers) != 1:
        return None
    ((bolt, given),) = readers
    is_other = bolt.in_commit or bolt.merges != bolt.folds_anywhere or bolt.is_dataframe
    return None if is_other or given.grouping.kind is GroupingKind.ALL else bolt


def may_retry(bolt: Bolt) -> bool:
    """Whether a bolt is called for each tuple, and opens nothing that may be away."""
    return (
        isinstance(bolt, BasicBolt)
        and not overrides(bolt, BasicBolt.execute_batch)
        and type(bolt).prepare_worker is Bolt.prepare_worker
    )


def may_be_a_record(error: BaseException) -> bool:
    """Whether a record can be to blame, and no service: what a network or a disk raises may go away."""
    cause: BaseException | None = error
    while cause is not None:
        if not isinstance(cause, Exception) or isinstance(cause, _NO_RECORD) or lacks_time_zones(cause):
            return False
        cause = cause.__cause__ or cause.__context__
    is_ours = isinstance(error, TxstreamError)
    return isinstance(error, OF_A_RECORD) and not isinstance(error, LateRecordError) if is_ours else True


def _is_recorder(value: object) -> bool:
    """Whether this is a method that a caller of user code has put on an instance, as those for tests do."""
    return bool(getattr(value, "__globals__", {}).get("__tracebackhide__"))


def kept_by(bolt: Bolt, context: object) -> bytes | None:
    """Return what an instance keeps beside its context; None if that cannot be told."""
    try:
        kept = {
            name: value
            for name, value in vars(bolt).items()
            if value is not context and not _is_recorder(value)
        }
        try:
            return pickle.dumps(kept)
        except Exception:  # noqa: BLE001 - of functions that have no name, for example
            return bytes(cloudpickle.dumps(kept))  # type: ignore[no-untyped-call]  # pyspark's copy
    except Exception:  # noqa: BLE001 - whatever it keeps, it is not known to be unchanged
        return None
