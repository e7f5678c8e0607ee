"""Bolts that Spark computes itself, as DataFrames: the port between the runner and what does so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from txstream.core.entry_points import COMPUTED_BOLTS, load
from txstream.core.errors import UsageError
from txstream.engine.batch.execution_plan import BoltSpec, ExecutionPlan
from txstream.engine.batch.layout import Stage
from txstream.engine.batch.messages import Element, WorkOrder

if TYPE_CHECKING:
    from pyspark import RDD, Broadcast, SparkContext
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Computation:
    """The bolt `spec` of `stage`, to be applied in an attempt to the messages before it. `shipped` is the
    plan's broadcast."""

    plan: ExecutionPlan
    shipped: Broadcast[bytes]
    order: WorkOrder
    stage: Stage
    spec: BoltSpec
    messages: RDD[Element]


class ComputedBolts(Protocol):
    """What the group `txstream.computed_bolts` makes, by a Spark context, the user's session if there is one,
    and the plan: once, before the first batch, which may take seconds. Raises TopologyError for a plan whose
    bolts Spark cannot compute."""

    def compute(self, asked: Computation) -> Iterator[tuple[str, RDD[Element]]]:
        """Yield, for each of the bolt's output streams, the origin of its messages and an RDD of elements for
        the next stage. Raises the error of the bolt, and TupleError when it returns other columns than
        declared."""


def computed_bolts(
    context: SparkContext, given: SparkSession | None, plan: ExecutionPlan
) -> ComputedBolts | None:
    """Return what computes the plan's DataFrame bolts; None if it has none."""
    if not any(bolt.is_dataframe for bolt in plan.bolts):
        return None
    make = load(COMPUTED_BOLTS, "dataframe", "computation of DataFrame bolts")
    if make is None:
        raise UsageError("no installed package computes DataFrame bolts")
    made: ComputedBolts = make(context, given, plan)
    return made
