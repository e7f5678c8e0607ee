"""An attempt in the acker's terms: which tasks of each component have finished, and which are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol, runtime_checkable

from txstream.api.topology import Phase
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.execution_plan import ExecutionPlan
from txstream.engine.batch.layout import Layout

# A stage's position, and one of its Spark tasks.
Ended = Collection[tuple[int, int]]

_MOST_MISSING = 50


@runtime_checkable
class TellsTasks(Protocol):
    """A runner that knows how far an attempt has come."""

    def task_tree(self, attempt: TransactionAttempt) -> Mapping[str, Any] | None:
        """As the function `task_tree`; None if this runner does not run the attempt, or cannot tell."""


def task_tree(plan: ExecutionPlan, layout: Layout, ended: Ended) -> dict[str, Any]:
    """By component, from the spout down: its phase, how many tasks have finished, some that are missing."""
    tasks: dict[str, dict[int, bool]] = {}
    phases: dict[str, Phase] = {}
    for stage in layout.stages:
        for spark_task in range(stage.width):
            is_over = (stage.position, spark_task) in ended
            if stage.position == 0:
                phases[plan.spout_id] = stage.phase
                tasks.setdefault(plan.spout_id, {})[spark_task] = is_over
            for bolt in stage.bolts:
                phases[bolt.id] = stage.phase
                for task in stage.hosted(bolt, spark_task):
                    known = tasks.setdefault(bolt.id, {})
                    known[task] = known.get(task, True) and is_over
    return {
        component: {
            "phase": str(phases[component]),
            "finished": sum(found.values()),
            "tasks": len(found),
            "missing": sorted(task for task, is_over in found.items() if not is_over)[:_MOST_MISSING],
        }
        for component, found in tasks.items()
    }
