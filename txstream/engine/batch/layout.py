"""Which components of a plan run in the same Spark tasks, for a batch that is worth so many of them.

A layout is a row of stages, first those of processing, then those of the commit. Tuples move only to a later
stage; an edge over several stages is carried on by those between. A batch that is worth one Spark task has
one stage for each phase, however many exchanges its topology has: they are list appends.

Invariants. A component is in exactly one stage, and computed once per attempt, however many read it. Tasks
that pass tuples to each other in place are spread over the same number of Spark tasks, so that every Spark
task that has tuples has a task to take them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txstream.api.topology import Phase
from txstream.engine.batch.execution_plan import BoltSpec, Edge, ExecutionPlan


@dataclass(frozen=True)
class Stage:
    """Bolts that run in the same Spark tasks; `width` is how many Spark tasks.

    `hosts` says over how many of them a bolt's tasks are spread. `dataframes` are computed by Spark from what
    the stage before hands on. `relays` says that tuples for later stages come through here.
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
        """Where a task of this bolt lives."""
        return task % self.hosts[bolt.id]

    def local_tasks(self, bolt: BoltSpec, spark_task: int) -> Sequence[int]:
        """The tasks that are nearest to what comes from a Spark task of another stage."""
        if bolt.folds_anywhere:
            return self.hosted(bolt, spark_task % self.width)
        return self.hosted(bolt, spark_task % self.hosts[bolt.id])


@dataclass(frozen=True)
class Layout:
    """The stages of a batch in the order in which they run."""

    stages: tuple[Stage, ...]
    process_count: int

    @property
    def process(self) -> tuple[Stage, ...]:
        return self.stages[: self.process_count]

    @property
    def commit(self) -> tuple[Stage, ...]:
        return self.stages[self.process_count :]

    def home(self, component: str) -> Stage:
        """The stage of a bolt."""
        for stage in self.stages:
            if any(bolt.id == component for bolt in (*stage.bolts, *stage.dataframes)):
                return stage
        raise KeyError(component)

    def following(self, stage: Stage) -> Stage | None:
        """The stage that gets what this one hands on."""
        return self.stages[stage.position + 1] if stage.position + 1 < len(self.stages) else None

    @property
    def is_simple(self) -> bool:
        """One stage of Python and nothing after it: no shuffle, nothing kept between jobs."""
        return len(self.stages) == 1


def max_width(plan: ExecutionPlan, slots: Mapping[str, int]) -> int:
    """How many Spark tasks a batch of this plan can use at most."""
    return max(plan.slots(slots).values(), default=1)


def lay_out(plan: ExecutionPlan, width: int, changed_slots: Mapping[str, int] | None = None) -> Layout:
    """The layout of a batch that is worth `width` Spark tasks; slots may have been changed since."""
    slots = plan.slots(changed_slots or {})
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
    """The stage of each component. Bolts of the commit phase begin behind all that is processed."""
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
    """Over how many Spark tasks each component of a stage is spread. Components that pass tuples to each
    other in place are spread alike, over the fewest slots among them."""
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
