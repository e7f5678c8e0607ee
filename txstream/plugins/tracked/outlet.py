"""Where the spouts' tuples gather until a micro-batch is cut, routed to tasks, with an id for each copy."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.collector import HIDDEN
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan
from txstream.engine.batch.layout import lay_out, max_width
from txstream.engine.batch.messages import DRIVER, Parcel, WorkOrder, address_messages
from txstream.engine.batch.routing import Router, open_router
from txstream.engine.batch.sizing import batch_width
from txstream.plugins.tracked.anchors import AckLog

_ROW = f"{HIDDEN}row"


class _Address(NamedTuple):
    component: str
    task: int
    source: str
    stream: str
    source_task: int


@dataclass(eq=False)
class Emission:
    """Tuples of one stream that a spout task handed on together. `sent` has, for each subscriber, the ids of
    the tasks that got tuples and the rows that each of them got."""

    rows: int = 0
    sent: list[list[tuple[int, NDArray[np.int32]]]] | None = None

    def tasks_of(self, row: int) -> list[int]:
        """Return the ids of the tasks that got one tuple."""
        return [task for parts in self.sent or () for task, rows in parts if row in rows]


class SentTo(Sequence[int]):
    """The tasks that get a tuple. They are worked out only when a spout looks at them: most do not."""

    __slots__ = ("_emission", "_flush", "_row")

    def __init__(self, emission: Emission, row: int, flush: object) -> None:
        self._emission = emission
        self._row = row
        self._flush = flush

    def _tasks(self) -> list[int]:
        if self._emission.sent is None:
            self._flush()  # type: ignore[operator]  # a method, in a slot
        return self._emission.tasks_of(self._row)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._tasks()[index]

    def __len__(self) -> int:
        return len(self._tasks())

    def __eq__(self, other: object) -> bool:
        return self._tasks() == (list(other) if isinstance(other, Sequence) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(self._tasks())


@dataclass
class Outlet:
    """The tuples of all spout tasks; hold `lock` to add or take some. `log` gives tracked tuples their ids.
    `width` is how many Spark tasks each micro-batch gets, as far as there are slots; with None, its size
    decides."""

    plan: ExecutionPlan
    log: AckLog | None
    width: int | None = None
    tuples: int = 0
    lock: threading.RLock = field(default_factory=threading.RLock)
    _batches: dict[_Address, list[pa.RecordBatch]] = field(default_factory=dict)
    _routers: dict[tuple[str, str], list[tuple[BoltSpec, Router]]] = field(default_factory=dict)

    def subscribers(self, source: str, stream: str) -> list[tuple[BoltSpec, Router]]:
        """Return who gets the tuples of a stream. The tuples come from outside any Spark task, so a local
        grouping spreads them evenly."""
        found = self._routers.get((source, stream))
        if found is None:
            found = self._routers[source, stream] = [
                (bolt, open_router(given.grouping, bolt.tasks, bolt.id, 0, bolt.first_task))
                for bolt in self.plan.bolts
                for given in bolt.inputs
                if (given.source, given.stream) == (source, stream)
            ]
        return found

    def push(
        self,
        source: str,
        stream: str,
        task: int,
        batch: pa.RecordBatch,
        direct: int | None,
        emission: Emission,
    ) -> None:
        """Add tuples, which have their roots if they are tracked, and route them to tasks."""
        numbered = batch.append_column(_ROW, pa.array(np.arange(batch.num_rows, dtype=np.int32)))
        emission.sent = []
        subscribers = self.subscribers(source, stream)
        if direct is not None:  # the one that has the id, or the first, which raises
            subscribers = [one for one in subscribers if direct in one[0].task_ids] or subscribers[:1]
        for bolt, router in subscribers:
            parts = []
            for target, part in router.route(numbered, direct):
                parts.append((bolt.first_task + target, part.column(_ROW).to_numpy()))
                sent = part.select(list(range(part.num_columns - 1)))
                if self.log is not None:
                    sent = self.log.mark(sent)
                self._batches.setdefault(_Address(bolt.id, target, source, stream, task), []).append(sent)
            emission.sent.append(parts)
        self.tuples += batch.num_rows

    def cut(self, attempt: TransactionAttempt, slots: Mapping[str, int]) -> tuple[WorkOrder, list[bytes]]:
        """Take all that is there as a micro-batch, with a message for each Spark task of its first stage.
        `slots` are those that were changed."""
        widest = max_width(self.plan, slots)
        width = batch_width(self.tuples, widest, widest) if self.width is None else min(self.width, widest)
        layout = lay_out(self.plan, width, slots)
        parcels = {}
        for address, batches in self._batches.items():
            bolt, home = self.plan.bolt(address.component), layout.home[address.component]
            parcel = Parcel(home.position, home.spark_task_of(bolt, address.task), *address)
            parcels[parcel] = pa.Table.from_batches(batches)
        self._batches, self.tuples = {}, 0
        messages = address_messages(DRIVER, 0, layout.stages[0].width, parcels)
        return WorkOrder(attempt, width, [], dict(slots)), [message for _, message in messages]
