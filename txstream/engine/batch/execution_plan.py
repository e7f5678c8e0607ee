"""A topology compiled once: every bolt as bytes, and for every subscription whether its tuples stay or move.

There are two kinds of edge. PASS: the tuples stay in their Spark task (local_or_shuffle, or a bolt whose rows
are merged further down anyway). EXCHANGE: they go to the task that the grouping chooses, in whichever Spark
task it lives. The edges decide, batch by batch, which components share a Spark task: see `layout`.

Invariant: a plan holds everything that an executor needs. Bolts are bytes in it, and every task of every
attempt unpickles its own.
"""

from __future__ import annotations

import functools
import itertools
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from txstream.api.bolt_checks import SHIPPING_REMEDY
from txstream.api.bolts import Bolt, DataFrameBolt, MergeableBolt, StateCommitter
from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.reducers import BUILT_IN_MERGES, Reducer
from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.api.topology import BATCHES, Component, Topology
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import TopologyError
from txstream.core.semantics import Semantics
from txstream.engine.states.bindings import Bindings


class Edge(Enum):
    """How tuples get from one component to the next."""

    PASS = "pass"  # noqa: S105 - a word, not a password
    EXCHANGE = "exchange"


@dataclass(frozen=True)
class Input:
    """One subscription of a bolt."""

    grouping: Grouping
    edge: Edge

    @functools.cached_property
    def source(self) -> str:
        return self.grouping.component

    @functools.cached_property
    def stream(self) -> str:
        return self.grouping.stream


@dataclass(frozen=True)
class BoltSpec:
    """One bolt as an executor needs it."""

    id: str
    pickled: bytes
    tasks: int
    slots: int
    inputs: tuple[Input, ...]
    streams: Mapping[str, pa.Schema]
    direct_streams: frozenset[str] = frozenset()
    # A user-written committer, or a bolt below a committer: it runs when the batch commits.
    in_commit: bool = False
    # A state's deltas are folded in every Spark task, where its tuples are, and merged on the driver.
    folds_anywhere: bool = False
    # Several tasks may make rows of one key, so all tuples of a Spark task go to one task.
    merges: bool = False
    is_dataframe: bool = False
    # With tracked tuples, task ids are numbered across the topology, as in Storm; else within each bolt.
    first_task: int = 0

    @functools.cached_property
    def task_ids(self) -> range:
        """The id of each task, as `emit_direct` takes it."""
        return range(self.first_task, self.first_task + self.tasks)

    def create(self) -> Bolt:
        """A fresh instance."""
        bolt = pickle.loads(self.pickled)  # noqa: S301 - pickled by the driver of this very run
        if not isinstance(bolt, Bolt):
            raise TopologyError(f"component {self.id!r} came back from pickle as {type(bolt).__name__}")
        return bolt


@dataclass(frozen=True)
class ExecutionPlan:
    """What is shipped to executors, once per run. `run_id` tells runs apart in worker processes' caches.

    With `capture`, everything that components emit comes back with the batch's result, for tests. `bindings`
    are the states that bolts read and write themselves. The plan of a topology with such bolts can be
    inspected without them, but not run.

    `fed` are the spouts of tracked tuples. They live on the driver, which sends what they emit to the first
    stage. `tracks` says whether those tuples are tracked at all, `tier` which tier's tasks they run in.
    """

    run_id: str
    topology_id: str
    spout_id: str
    spout_slots: int
    source: bytes
    spout_schema: pa.Schema
    context: SpoutContext
    bolts: tuple[BoltSpec, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    capture: bool = False
    bindings: Bindings = field(default_factory=dict)
    fed: tuple[BoltSpec, ...] = ()
    tracks: bool = False
    tier: str = BATCHES
    is_transactional: bool = False
    # Those of `lay_out`, by what they depend on besides the plan.
    layouts: dict[Any, Any] = field(init=False, default_factory=dict, compare=False, repr=False)

    def create_source(self) -> PartitionedSpout[Any]:
        source = pickle.loads(self.source)  # noqa: S301 - pickled by the driver of this very run
        if not isinstance(source, PartitionedSpout):
            raise TopologyError(f"the source came back from pickle as {type(source).__name__}")
        return source

    @functools.cached_property
    def codec(self) -> MetaCodec[Any]:
        return MetaCodec(self.create_source().meta_type)

    def bolt(self, component: str) -> BoltSpec:
        return next(bolt for bolt in self.bolts if bolt.id == component)

    def slots(self, changed: Mapping[str, int]) -> dict[str, int]:
        """The slots of each component: those in `changed`, otherwise as declared."""
        declared = self._declared_slots
        if not changed:
            return declared
        return {component: changed.get(component, slots) for component, slots in declared.items()}

    @functools.cached_property
    def _declared_slots(self) -> dict[str, int]:
        declared = {bolt.id: bolt.slots for bolt in self.bolts}
        return declared if self.fed else {**declared, self.spout_id: self.spout_slots}

    @functools.cached_property
    def task_counts(self) -> Mapping[str, int]:
        return {bolt.id: bolt.tasks for bolt in self.bolts}

    @functools.cached_property
    def task_ids(self) -> Mapping[str, range]:
        return {one.id: one.task_ids for one in (*self.fed, *self.bolts)}


def compile_topology(
    topology: Topology,
    context: SpoutContext,
    run_id: str,
    *,
    capture: bool = False,
    bindings: Bindings | None = None,
) -> ExecutionPlan:
    """The plan of a topology. Raises TopologyError when a bolt, the source or a setting cannot be pickled."""
    spout = topology.components[0]
    fed = tuple(_compile_bolt(topology, one) for one in topology.fed)
    bolts = tuple(_compile_bolt(topology, component) for component in topology.bolts)
    if fed:
        first = itertools.accumulate((spec.tasks for spec in (*fed, *bolts)), initial=0)
        fed, bolts = (tuple(replace(spec, first_task=next(first)) for spec in some) for some in (fed, bolts))
    if topology.settings:
        _pickle("settings", dict(topology.settings), "pass plain values")
    return ExecutionPlan(
        run_id=run_id,
        topology_id=topology.id,
        spout_id=spout.id,
        spout_slots=spout.parallelism,
        source=b"" if fed else _pickle(f"component {spout.id!r}", topology.spout.source),
        spout_schema=next(iter(spout.streams.values())),
        context=context,
        bolts=bolts,
        settings=dict(topology.settings),
        capture=capture,
        bindings=bindings or {},
        fed=fed,
        tracks=topology.tracks,
        tier=topology.tier,
        is_transactional=topology.semantics is Semantics.TRANSACTIONAL,
    )


def _compile_bolt(topology: Topology, component: Component) -> BoltSpec:
    bolt = component.instance
    is_state = isinstance(bolt, StateCommitter)
    return BoltSpec(
        id=component.id,
        pickled=_pickle(f"component {component.id!r}", bolt),
        tasks=component.tasks,
        slots=component.parallelism,
        inputs=tuple(Input(grouping, _edge(topology, component, grouping)) for grouping in component.inputs),
        streams=component.streams,
        direct_streams=component.direct_streams,
        in_commit=component.runs_in_commit,
        folds_anywhere=is_state,
        merges=isinstance(bolt, (StateCommitter, MergeableBolt)),
        is_dataframe=isinstance(bolt, DataFrameBolt),
    )


def _edge(topology: Topology, component: Component, grouping: Grouping) -> Edge:
    if grouping.kind is GroupingKind.LOCAL_OR_SHUFFLE:
        return Edge.PASS
    bolt = component.instance
    if isinstance(bolt, StateCommitter):
        return Edge.PASS  # its deltas are merged on the driver, before the one write per key
    # With `all`, every task must get each tuple; with `direct`, only the task that it was sent to.
    if grouping.kind in (GroupingKind.ALL, GroupingKind.DIRECT):
        return Edge.EXCHANGE
    if isinstance(bolt, MergeableBolt) and _is_merged_below(topology, component, bolt):
        return Edge.PASS
    return Edge.EXCHANGE


def _is_merged_below(topology: Topology, component: Component, bolt: MergeableBolt) -> bool:
    """Does this bolt feed only states that merge its rows as it would have merged them itself?"""
    readers = [reader for stream in component.streams for reader in topology.readers(component.id, stream)]
    return bool(readers) and all(_merges_rows(reader, bolt) for reader in readers)


def _merges_rows(reader: Component, bolt: MergeableBolt) -> bool:
    committer = reader.instance
    if not isinstance(committer, StateCommitter) or tuple(committer.state.key_names) != tuple(bolt.keys):
        return False
    return all(_merges_alike(reducer, bolt) for reducer in committer.reducers.values())


def _merges_alike(reducer: Reducer, bolt: MergeableBolt) -> bool:
    above = bolt.reducers.get(reducer.field or "")
    if above is None or reducer.merge not in BUILT_IN_MERGES:
        return False  # for example, rows may lack the fields that decide which of several is the last
    return reducer.partial == reducer.merge == above.merge


def _pickle(what: str, instance: Any, remedy: str | None = None) -> bytes:
    try:
        return bytes(cloudpickle.dumps(instance))  # type: ignore[no-untyped-call]  # pyspark's copy
    except Exception as error:
        remedy = remedy or SHIPPING_REMEDY
        raise TopologyError(f"{what} cannot be shipped to executors: {error}; {remedy}") from error
