"""What a Spark task finds on its executor: the plan, unpickled once per process, and its job's work order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import cloudpickle

from txstream.engine.plan import ExecutionPlan
from txstream.engine.wire import WorkOrder

if TYPE_CHECKING:
    from pyspark import Broadcast

WORK_PROPERTY = "txstream.work"

_plan: ExecutionPlan | None = None


def shipped_plan(shipped: Broadcast[bytes], run_id: str) -> ExecutionPlan:
    """The plan of a run."""
    global _plan
    if _plan is None or _plan.run_id != run_id:
        _plan = cloudpickle.loads(shipped.value)
    return _plan


def current_order() -> WorkOrder:
    """The work order of the job that this Spark task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(WORK_PROPERTY) if context is not None else None
    if text is None:
        raise RuntimeError("this Spark task has no work order: it was not started by SparkRunner")
    return WorkOrder.from_json(text)
