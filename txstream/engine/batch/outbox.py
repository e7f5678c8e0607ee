"""What leaves the components of one Spark task: routed to tasks in place, or packed into parcels.

Invariant: a stream's tuples are routed to each subscription once, in the order in which they were emitted, so
that the same emissions always make the same parcels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from txstream.api.tuples import Chunk
from txstream.engine.batch.layout import Layout, Stage
from txstream.engine.batch.messages import EdgeCount, EdgeName, Parcel
from txstream.engine.batch.plan import BoltSpec, Edge, ExecutionPlan, Input
from txstream.engine.batch.routing import Router, open_local_router, open_router

# Takes the bolt, the task, and its tuples, for a task that lives in this Spark task.
Give = Callable[[BoltSpec, int, Chunk], None]


@dataclass(frozen=True)
class _Subscription:
    """Who reads a stream, and where it lives. `router` is None where Spark itself spreads the tuples."""

    bolt: BoltSpec
    home: Stage
    router: Router | None


@dataclass
class Outbox:
    """`parcels` are the tuples for later stages; `emitted` is all that was emitted, when it is captured."""

    plan: ExecutionPlan
    layout: Layout
    stage: Stage
    spark_task: int
    give: Give
    parcels: dict[Parcel, list[pa.RecordBatch]] = field(default_factory=dict)
    emitted: dict[tuple[str, str, int], list[pa.RecordBatch]] = field(default_factory=dict)
    sent: EdgeCount = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._subscriptions: dict[tuple[str, str], list[_Subscription]] = {}

    def push(
        self,
        source: str,
        stream: str,
        source_task: int,
        batch: pa.RecordBatch,
        direct_task: int | None = None,
    ) -> None:
        """Send what a component has emitted to all that subscribe to it."""
        if self.plan.capture:
            self.emitted.setdefault((source, stream, source_task), []).append(batch)
        for subscription in self._subscribers(source, stream):
            bolt, home, router = subscription.bolt, subscription.home, subscription.router
            if router is None:
                self._post(
                    Parcel(home.position, self.spark_task, bolt.id, 0, source, stream, source_task), batch
                )
                continue
            for task, part in router.route(batch, direct_task):
                self.sent[EdgeName(bolt.id, source, stream)] += part.num_rows
                if home is self.stage:
                    self.give(bolt, task, Chunk(part, source, stream, source_task))
                else:
                    target = self._spark_task_of(bolt, home, task)
                    self._post(
                        Parcel(home.position, target, bolt.id, task, source, stream, source_task), part
                    )

    def carry(self, parcel: Parcel, table: pa.Table) -> None:
        """Hand on what is for a later stage."""
        self.parcels.setdefault(parcel, []).extend(table.to_batches())

    def tables(self) -> dict[Parcel, pa.Table]:
        """The parcels, packed."""
        return {parcel: pa.Table.from_batches(batches) for parcel, batches in self.parcels.items() if batches}

    def captured(self) -> dict[tuple[str, str, int], pa.Table]:
        return {name: pa.Table.from_batches(batches) for name, batches in self.emitted.items()}

    def _post(self, parcel: Parcel, batch: pa.RecordBatch) -> None:
        self.parcels.setdefault(parcel, []).append(batch)

    def _subscribers(self, source: str, stream: str) -> list[_Subscription]:
        found = self._subscriptions.get((source, stream))
        if found is None:
            found = self._subscriptions[source, stream] = [
                self._subscribe(bolt, given)
                for bolt in self.plan.bolts
                for given in bolt.inputs
                if (given.source, given.stream) == (source, stream)
            ]
        return found

    def _subscribe(self, bolt: BoltSpec, given: Input) -> _Subscription:
        home = self.layout.home(bolt.id)
        if bolt.is_dataframe:
            return _Subscription(bolt, home, None)
        # Each Spark task begins its even spread elsewhere, or small batches would all go to one task.
        start = self.spark_task
        if given.edge is Edge.EXCHANGE:
            return _Subscription(bolt, home, open_router(given.grouping, bolt.tasks, bolt.id, start))
        if home is self.stage:
            tasks = home.hosted(bolt, self.spark_task)
        else:
            tasks = home.local_tasks(bolt, self.spark_task)
        return _Subscription(bolt, home, open_local_router(tasks, bolt.id, start, together=bolt.merges))

    def _spark_task_of(self, bolt: BoltSpec, home: Stage, task: int) -> int:
        return self.spark_task % home.width if bolt.folds_anywhere else home.spark_task_of(bolt, task)
