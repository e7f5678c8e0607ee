"""Which components of a plan run in the same Spark tasks, for a batch that gets a given number of them.

A layout is a sequence of stages: first those of processing, then those of the commit. Tuples move only to a
later stage. If an edge skips stages, the stages between hand its tuples on. A batch of one Spark task has one
stage for each phase, plus those of DataFrame bolts, however many exchanges its topology has: within a Spark
task an exchange is a list append.

Invariants. A component is in exactly one stage and is computed once per attempt, however many bolts read it.
Components that pass tuples to each other in place are spread over the same number of Spark tasks, so that
every Spark task that has tuples has a task to take them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txstream.api.topology import Phase
from txstream.engine.batch.execution_plan import BoltSpec, Edge, ExecutionPlan


@dataclass(frozen=True)
class Stage:
    """Bolts that run in the same Spark tasks. `width` is the number of those Spark tasks.

    `hosts` has, for each component, the number of Spark tasks over which its tasks are spread. `dataframes`
    are the bolts that Spark computes from what the stage before hands on. `relays` says that tuples for later
    stages pass through this one.
    """

    position: int
    phase: Phase
    bolts: tuple[BoltSpec, ...]
    dataframes: tuple[BoltSpec, ...]
    width: int
    hosts: Mapping[str, int]
    relays: bool

    def hosted(self, bolt: BoltSpec, spark_task: int) -> Sequence[int]:
        """The tasks of this bolt that live in a Spark task."""
        if bolt.folds_anywhere:
            return [spark_task % bolt.tasks]
        spread = self.hosts[bolt.id]
        return range(spark_task, bolt.tasks, spread) if spark_task < spread else ()

    def spark_task_of(self, bolt: BoltSpec, task: int) -> int:
        """The Spark task in which a task of this bolt lives."""
        return task % self.hosts[bolt.id]

    def local_tasks(self, bolt: BoltSpec, spark_task: int) -> Sequence[int]:
        """The tasks of this bolt that take what a Spark task of another stage passes on."""
        if bolt.folds_anywhere:
            return self.hosted(bolt, spark_task % self.width)
        return self.hosted(bolt, spark_task % self.hosts[bolt.id])


@dataclass(frozen=True)
class Layout:
    """The stages of a batch in the order in which they run."""

    stages: tuple[Stage, ...]
    process_count: int

    @functools.cached_property
    def process(self) -> tuple[Stage, ...]:
        return self.stages[: self.process_count]

    @functools.cached_property
    def commit(self) -> tuple[Stage, ...]:
        return self.stages[self.process_count :]

    @functools.cached_property
    def home(self) -> Mapping[str, Stage]:
        """The stage of each bolt."""
        return {bolt.id: stage for stage in self.stages for bolt in (*stage.bolts, *stage.dataframes)}

    def following(self, stage: Stage) -> Stage | None:
        """The stage that takes what this one hands on; None after the last."""
        return self.stages[stage.position + 1] if stage.position + 1 < len(self.stages) else None

    @functools.cached_property
    def is_simple(self) -> bool:
        """Is this a single stage of Python, without a shuffle and with nothing kept between jobs?"""
        return len(self.stages) == 1


def max_width(plan: ExecutionPlan, slots: Mapping[str, int]) -> int:
    """The greatest number of Spark tasks that a batch of this plan can use."""
    return max(plan.slots(slots).values(), default=1)


def lay_out(plan: ExecutionPlan, width: int, changed_slots: Mapping[str, int] | None = None) -> Layout:
    """The layout of a batch that gets `width` Spark tasks. `changed_slots` replace declared ones. The plan
    keeps it, since nearly all batches are laid out alike."""
    changed = changed_slots or {}
    key = (width, *sorted(changed.items()))
    layout = plan.layouts.get(key)
    if layout is None:
        layout = plan.layouts[key] = _lay_out(plan, width, plan.slots(changed))
    return layout


def _lay_out(plan: ExecutionPlan, width: int, slots: Mapping[str, int]) -> Layout:
    levels = _levels(plan, width)
    process = [plan.spout_id, *(bolt.id for bolt in plan.bolts if not bolt.in_commit)]
    process_count = 1 + max(levels[component] for component in process)
    stages = []
    for position in range(1 + max(levels.values())):
        here = [bolt for bolt in plan.bolts if levels[bolt.id] == position]
        bolts = tuple(bolt for bolt in here if not bolt.is_dataframe)
        hosts = _spread(plan, bolts, position, levels, width, slots)
        stages.append(
            Stage(
                position=position,
                phase=Phase.PROCESS if position < process_count else Phase.COMMIT,
                bolts=bolts,
                dataframes=tuple(bolt for bolt in here if bolt.is_dataframe),
                width=max([*hosts.values()], default=width),
                hosts=hosts,
                relays=_relays(plan, levels, position),
            )
        )
    return Layout(tuple(stages), process_count)


def _levels(plan: ExecutionPlan, width: int) -> dict[str, int]:
    """The stage of each component. The commit phase begins after the last stage of processing."""
    levels = {plan.spout_id: 0, **{spout.id: 0 for spout in plan.fed}}
    fed = {spout.id for spout in plan.fed}
    specs = {bolt.id: bolt for bolt in plan.bolts}

    def behind(bolt: BoltSpec, first: int) -> int:
        level = first
        for given in bolt.inputs:
            source = specs.get(given.source)
            if bolt.in_commit and (source is None or not source.in_commit):
                continue  # carried into the phase's first stage
            moves = (
                bolt.is_dataframe
                or (source is not None and source.is_dataframe)
                or (given.edge is Edge.EXCHANGE and width > 1 and given.source not in fed)
            )
            level = max(level, levels[given.source] + moves)
        return level

    for bolt in plan.bolts:
        if not bolt.in_commit:
            levels[bolt.id] = behind(bolt, 0)
    first = 1 + max(levels.values())
    for bolt in plan.bolts:
        if bolt.in_commit:
            levels[bolt.id] = behind(bolt, first)
    return levels


def _spread(
    plan: ExecutionPlan,
    bolts: Sequence[BoltSpec],
    position: int,
    levels: Mapping[str, int],
    width: int,
    slots: Mapping[str, int],
) -> dict[str, int]:
    """The number of Spark tasks over which each component of a stage is spread. Components that pass tuples
    to each other in place have the same number, the fewest slots among them."""
    members = [bolt.id for bolt in bolts if not bolt.folds_anywhere]
    if position == 0 and not plan.fed:
        members.append(plan.spout_id)
    group = {component: component for component in members}

    def root(component: str) -> str:
        while group[component] != component:
            component = group[component]
        return component

    for bolt in bolts:
        for given in bolt.inputs:
            together = given.edge is Edge.PASS and levels[given.source] == position
            if together and bolt.id in group and given.source in group:
                group[root(bolt.id)] = root(given.source)
    narrowest: dict[str, int] = {}
    for component in members:
        at = root(component)
        narrowest[at] = min(narrowest.get(at, width), slots[component])
    return {component: narrowest[root(component)] for component in members}


def _relays(plan: ExecutionPlan, levels: Mapping[str, int], position: int) -> bool:
    return any(
        levels[given.source] < position < levels[bolt.id] for bolt in plan.bolts for given in bolt.inputs
    )
