"""A topology compiled once into stages: what runs together in one Spark task, and where tuples change task.

An edge is one of three. PASS: the tuples stay in their Spark task (local_or_shuffle, or a bolt whose rows
are merged further down anyway). EXCHANGE: they go to the task that the grouping says, across Spark tasks.
When a batch is worth a single Spark task, all bolt tasks live in it and exchanges are list appends.

Invariant: a plan holds everything an executor needs, as bytes: bolts are unpickled from it afresh for each
task of each attempt.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from txstream.api.bolts import Bolt, MergeableBolt, StateCommitter
from txstream.api.errors import TopologyError
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.reducers import Reducer
from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.api.topology import Component, Topology
from txstream.metas import MetaCodec


class Edge(Enum):
    """How tuples get from a component to the next."""

    PASS = "pass"  # noqa: S105 - a word, not a password
    EXCHANGE = "exchange"


@dataclass(frozen=True)
class BoltSpec:
    """One bolt as an executor needs it."""

    id: str
    pickled: bytes
    tasks: int
    slots: int
    grouping: Grouping
    edge: Edge
    streams: Mapping[str, pa.Schema]
    # A state's deltas are folded where its tuples are, in every Spark task, and merged on the driver.
    folds_anywhere: bool = False

    def hosted(self, spark_task: int, width: int) -> Sequence[int]:
        """The tasks of this bolt that live in one of `width` Spark tasks."""
        if self.folds_anywhere:
            return [spark_task % self.tasks]
        return range(spark_task, self.tasks, width)

    def create(self) -> Bolt:
        """A fresh instance."""
        bolt = pickle.loads(self.pickled)  # noqa: S301 - pickled by the driver of this very run
        if not isinstance(bolt, Bolt):
            raise TopologyError(f"component {self.id!r} came back from pickle as {type(bolt).__name__}")
        return bolt


@dataclass(frozen=True)
class ExecutionPlan:
    """What is shipped to executors, once per run. `run_id` tells the caches of worker processes apart."""

    run_id: str
    topology_id: str
    spout_id: str
    spout_slots: int
    source: bytes
    spout_schema: pa.Schema
    context: SpoutContext
    bolts: tuple[BoltSpec, ...]
    settings: Mapping[str, Any]

    def create_source(self) -> PartitionedSpout[Any]:
        source = pickle.loads(self.source)  # noqa: S301 - pickled by the driver of this very run
        if not isinstance(source, PartitionedSpout):
            raise TopologyError(f"the source came back from pickle as {type(source).__name__}")
        return source

    def codec(self) -> MetaCodec[Any]:
        return MetaCodec(self.create_source().meta_type)

    def stages(self, width: int) -> list[Stage]:
        """The stages of a batch that is worth `width` Spark tasks; one stage when that is 1."""
        groups: list[list[BoltSpec]] = [[]]
        for bolt in self.bolts:
            if bolt.edge is Edge.EXCHANGE and width > 1:
                groups.append([])
            groups[-1].append(bolt)
        stages: list[Stage] = []
        for position, group in enumerate(groups):
            slots = [bolt.slots for bolt in group if not bolt.folds_anywhere]
            if position == 0:
                slots.append(self.spout_slots)
            stages.append(Stage(position, tuple(group), min(width, *slots) if slots else width))
        return stages

    @property
    def max_width(self) -> int:
        return max([self.spout_slots, *(bolt.slots for bolt in self.bolts)])


@dataclass(frozen=True)
class Stage:
    """Bolts that run in the same Spark tasks; `width` is how many Spark tasks."""

    position: int
    bolts: tuple[BoltSpec, ...]
    width: int


def compile_topology(topology: Topology, context: SpoutContext, run_id: str) -> ExecutionPlan:
    """The plan of a topology. Raises TopologyError when a bolt or the source cannot be pickled."""
    bolts = []
    for position, component in enumerate(topology.bolts):
        if component.grouping is None:
            raise TopologyError(f"component {component.id!r} has no input")
        bolts.append(
            BoltSpec(
                id=component.id,
                pickled=_pickle(component.id, component.instance),
                tasks=component.tasks,
                slots=component.parallelism,
                grouping=component.grouping,
                edge=_edge(topology.bolts, position),
                streams=component.streams,
                folds_anywhere=isinstance(component.instance, StateCommitter),
            )
        )
    spout = topology.components[0]
    return ExecutionPlan(
        run_id=run_id,
        topology_id=topology.id,
        spout_id=spout.id,
        spout_slots=spout.parallelism,
        source=_pickle(spout.id, topology.spout.source),
        spout_schema=topology.spout.output,
        context=context,
        bolts=tuple(bolts),
        settings={},
    )


def batch_width(records: int | None, partitions: int, max_width: int) -> int:
    """How many Spark tasks a batch is worth: a task costs more than 1,000 records (measured, 2 cores)."""
    if partitions <= 1 or records is None:
        wanted = 1 if partitions <= 1 else max_width
    elif records <= _ONE_TASK_RECORDS:
        wanted = 1
    elif records <= _TWO_TASK_RECORDS:
        wanted = 2
    else:
        wanted = max_width
    return max(1, min(wanted, partitions, max_width))


_ONE_TASK_RECORDS = 4_000
_TWO_TASK_RECORDS = 40_000


def _edge(bolts: tuple[Component, ...], position: int) -> Edge:
    component = bolts[position]
    grouping = component.grouping
    if grouping is not None and grouping.kind is GroupingKind.LOCAL_OR_SHUFFLE:
        return Edge.PASS
    bolt = component.instance
    if isinstance(bolt, StateCommitter):
        return Edge.PASS  # its deltas are merged on the driver, before the one write per key
    if isinstance(bolt, MergeableBolt) and _is_merged_below(bolt, bolts[position + 1 :]):
        return Edge.PASS
    return Edge.EXCHANGE


def _is_merged_below(bolt: MergeableBolt, below: tuple[Component, ...]) -> bool:
    """Does this bolt feed only a state that merges its rows as it would have merged them itself?"""
    if len(below) != 1 or not isinstance(below[0].instance, StateCommitter):
        return False
    committer = below[0].instance
    if tuple(committer.state.key_names) != tuple(bolt.keys):
        return False
    return all(_merges_alike(reducer, bolt) for reducer in committer.reducers.values())


def _merges_alike(reducer: Reducer, bolt: MergeableBolt) -> bool:
    above = bolt.reducers.get(reducer.field or "")
    return above is not None and reducer.partial == reducer.merge == above.merge


def _pickle(component: str, instance: Any) -> bytes:
    try:
        return bytes(cloudpickle.dumps(instance))  # type: ignore[no-untyped-call]  # pyspark's copy
    except Exception as error:
        raise TopologyError(
            f"component {component!r} cannot be shipped to executors: {error}; keep connections, "
            f"locks and open files out of its constructor and open them in prepare()"
        ) from error
