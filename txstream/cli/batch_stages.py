"""Which parts of a topology run together: the stages of a batch, and how tuples get from bolt to bolt.

This is the engine's own layout of a batch, made without an address and without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from txstream.api.bolts import StateCommitter
from txstream.api.groupings import Grouping, GroupingKind, describe_grouping
from txstream.api.spouts import SpoutContext
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.errors import UsageError
from txstream.core.wording import counted, printable

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.engine.batch.execution_plan import BoltSpec, Input
    from txstream.engine.batch.layout import Stage

_RUN_ID = "describe"


class Movement(StrEnum):
    """How the tuples of a subscription get to the bolt."""

    IN_PLACE = "in place"
    """Handed over within the Spark task that made them."""
    EXCHANGE = "exchange"
    """To a later stage of the same phase, through Spark's shuffle."""
    DATAFRAME = "dataframe"
    """To or from Spark SQL."""
    COMMIT = "commit"
    """Kept on the executors until the batch commits, then given to a stage of the commit phase."""


@dataclass(frozen=True, slots=True)
class ShownStage:
    """Components that run in the same Spark tasks. `number` counts stages from 1. `spark_tasks` is None for a
    stage of Spark SQL only, where Spark decides. `relays`: tuples for later stages pass through."""

    number: int
    phase: str
    spark_tasks: int | None
    python: tuple[str, ...]
    spark_sql: tuple[str, ...]
    relays: bool

    @property
    def runs_python(self) -> bool:
        return self.spark_tasks is not None


@dataclass(frozen=True, slots=True)
class ShownEdge:
    """One subscription: from which stage to which its tuples go, how, and why they may stay in place."""

    grouping: Grouping
    target: str
    movement: Movement
    from_stage: int
    to_stage: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The stages of a batch worth `width` Spark tasks. `largest` is the most that a batch can be worth.

    `states` are the components whose deltas are stored, `map_states` those that write states themselves, each
    with its table. `residents` is how many Spark tasks of a run stay for small batches.
    """

    width: int
    largest: int
    stages: tuple[ShownStage, ...]
    edges: tuple[ShownEdge, ...]
    states: tuple[tuple[str, str], ...]
    map_states: tuple[tuple[str, str], ...] = ()
    residents: int = 0

    @property
    def python_stages(self) -> int:
        return sum(stage.runs_python for stage in self.stages)


def plan_batch(topology: Topology, width: int | None = None) -> BatchPlan:
    """Return how a batch worth `width` Spark tasks would run, by default the largest.

    Raises UsageError for a width that no batch has, TopologyError for a bolt that cannot be pickled.
    """
    from txstream.engine.batch.execution_plan import compile_topology
    from txstream.engine.batch.layout import lay_out, max_width
    from txstream.engine.batch.sizing import resident_tasks

    context = SpoutContext(topology.id, topology.components[0].id, {})
    plan = compile_topology(topology, context, _RUN_ID)
    largest = max_width(plan, {})
    width = largest if width is None else width
    if not 1 <= width <= largest:
        raise UsageError(
            f"--width {width}: a batch of topology {topology.id!r} is worth "
            f"{'1 to ' if largest > 1 else ''}{counted(largest, 'Spark task')}, "
            f"because no component has more than {counted(largest, 'slot')}"
        )
    layout = lay_out(plan, width)
    stages = tuple(_stage(stage, plan.spout_id) for stage in layout.stages)
    homes = {name: stage.number for stage in stages for name in (*stage.python, *stage.spark_sql)}
    specs = {bolt.id: bolt for bolt in plan.bolts}
    return BatchPlan(
        width=width,
        largest=largest,
        stages=stages,
        edges=tuple(_edge(specs, homes, bolt, given) for bolt in plan.bolts for given in bolt.inputs),
        states=tuple(
            (component.id, component.instance.state.table)
            for component in topology.bolts
            if isinstance(component.instance, StateCommitter)
        ),
        map_states=tuple((use.component, use.state.table) for use in topology.map_states),
        residents=resident_tasks(plan, topology.resident_tasks),
    )


def _stage(stage: Stage, spout: str) -> ShownStage:
    python = tuple(bolt.id for bolt in stage.bolts)
    if stage.position == 0:
        python = (spout, *python)
    return ShownStage(
        number=stage.position + 1,
        phase=str(stage.phase),
        spark_tasks=stage.width if python or stage.relays or not stage.dataframes else None,
        python=python,
        spark_sql=tuple(bolt.id for bolt in stage.dataframes),
        relays=stage.relays,
    )


def _edge(specs: dict[str, BoltSpec], homes: dict[str, int], bolt: BoltSpec, given: Input) -> ShownEdge:
    source = specs.get(given.source)
    from_stage, to_stage = homes[given.source], homes[bolt.id]
    reason = ""
    if bolt.in_commit and (source is None or not source.in_commit):
        movement = Movement.COMMIT
    elif bolt.is_dataframe or (source is not None and source.is_dataframe):
        movement = Movement.DATAFRAME
    elif from_stage == to_stage:
        movement = Movement.IN_PLACE
        reason = _reason(bolt, given)
    else:
        movement = Movement.EXCHANGE
    return ShownEdge(given.grouping, bolt.id, movement, from_stage, to_stage, reason)


def _reason(bolt: BoltSpec, given: Input) -> str:
    """Why tuples stay in place although the grouping alone does not say so."""
    from txstream.engine.batch.execution_plan import Edge

    if given.grouping.kind is GroupingKind.LOCAL_OR_SHUFFLE:
        return ""
    if given.edge is Edge.EXCHANGE:
        return "there is one Spark task"
    return "the driver merges its deltas" if bolt.folds_anywhere else "its rows are merged by the state below"


# --- as text and as JSON -------------------------------------------------------------------------------


def plan_text(plan: BatchPlan) -> str:
    """Return the stages, then what moves between them, as aligned text."""
    most = " (the most for this topology)" if plan.width == plan.largest else ""
    worth = f"a batch worth {counted(plan.width, 'Spark task')}{most}"
    lines = [f"{worth}: {counted(plan.python_stages, 'Python stage')}", ""]
    lines += _table(
        ("stage", "phase", "Spark tasks", "runs"),
        [
            (str(stage.number), stage.phase, str(stage.spark_tasks or "Spark's"), _runs(stage))
            for stage in plan.stages
        ],
    )
    lines.append("")
    lines += _table(("from", "to", "grouping", "tuples"), [_edge_row(edge) for edge in plan.edges])
    lines += ["", *_afterwards(plan)] if plan.states or _commit_stages(plan) else []
    if plan.residents:
        lines.append(f"a run keeps {counted(plan.residents, 'Spark task')} for batches that need no more")
    return "\n".join(lines)


def plan_document(plan: BatchPlan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "width": plan.width,
        "largest_width": plan.largest,
        "python_stages": plan.python_stages,
        "resident_tasks": plan.residents,
        "stages": [
            {
                "stage": stage.number,
                "phase": stage.phase,
                "spark_tasks": stage.spark_tasks,
                "python": list(stage.python),
                "spark_sql": list(stage.spark_sql),
            }
            for stage in plan.stages
        ],
        "edges": [
            {
                "from": edge.grouping.component,
                "stream": edge.grouping.stream,
                "to": edge.target,
                "grouping": str(edge.grouping.kind),
                "fields": list(edge.grouping.fields),
                "tuples": str(edge.movement),
                "from_stage": edge.from_stage,
                "to_stage": edge.to_stage,
            }
            for edge in plan.edges
        ],
        "states": _tables_document(plan.states),
        "map_states": _tables_document(plan.map_states),
    }


def _tables_document(states: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"component": component, "table": table} for component, table in states]


def _runs(stage: ShownStage) -> str:
    parts = []
    if stage.python:
        parts.append(f"Python: {', '.join(map(printable, stage.python))}")
    if stage.spark_sql:
        parts.append(f"Spark SQL: {', '.join(map(printable, stage.spark_sql))}")
    if stage.relays and not stage.python:
        parts.append("tuples for later stages")
    return "; ".join(parts)


def _edge_row(edge: ShownEdge) -> tuple[str, ...]:
    source = edge.grouping.component
    if edge.grouping.stream != DEFAULT_STREAM:
        source += f".{edge.grouping.stream}"
    way = f"stage {edge.from_stage} to {edge.to_stage}"
    described = {
        Movement.IN_PLACE: f"stay in place{f': {edge.reason}' if edge.reason else ''}",
        Movement.EXCHANGE: f"are exchanged, {way}",
        Movement.DATAFRAME: f"go through a DataFrame, {way}",
        Movement.COMMIT: f"are kept for the commit, {way}",
    }
    return (
        printable(source),
        printable(edge.target),
        describe_grouping(edge.grouping),
        described[edge.movement],
    )


def _commit_stages(plan: BatchPlan) -> list[int]:
    return [stage.number for stage in plan.stages if stage.phase == "commit"]


def _afterwards(plan: BatchPlan) -> Iterator[str]:
    stages = _commit_stages(plan)
    if stages:
        named = f"stage {stages[0]} runs" if len(stages) == 1 else f"stages {stages[0]} to {stages[-1]} run"
        yield f"{named} when the batch commits, in the order of txids"
    if plan.map_states:
        yield f"there, tasks write what bolts keep: {_shown_tables(plan.map_states)}"
    if plan.states:
        when = "after that" if stages else "when the batch commits, in the order of txids"
        yield f"{when}, the driver writes deltas: {_shown_tables(plan.states)}"


def _shown_tables(states: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{printable(component)} to table {printable(table)}" for component, table in states)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
