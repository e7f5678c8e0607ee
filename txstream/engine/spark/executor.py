"""What a Spark task finds on its executor: the plan of its run, unpickled once per process, and the work
order of its job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import cloudpickle

from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.messages import WorkOrder

if TYPE_CHECKING:
    from pyspark import Broadcast

WORK_PROPERTY = "txstream.work"

# By run, the last used at the end. With more topologies than `_MOST_PLANS`, plans are unpickled repeatedly.
_plans: dict[str, ExecutionPlan] = {}
_MOST_PLANS = 8


def shipped_plan(shipped: Broadcast[bytes], run_id: str) -> ExecutionPlan:
    """Return the plan of a run."""
    plan = _plans.pop(run_id, None)
    if plan is None:
        plan = cloudpickle.loads(shipped.value)
    _plans[run_id] = plan
    if len(_plans) > _MOST_PLANS:
        del _plans[next(iter(_plans))]
    return plan


def current_order() -> WorkOrder:
    """Return the work order of the job that this Spark task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    text = context.getLocalProperty(WORK_PROPERTY) if context is not None else None
    if text is None:
        raise RuntimeError("this Spark task has no work order: it was not started by SparkRunner")
    return WorkOrder.from_json(text)
