"""Which Spark tasks of a job have succeeded, according to Spark's status store. Read when a person asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_MOST_TASKS = 10_000


def succeeded_tasks(
    context: SparkContext, tag: str, spark_stages: Sequence[Sequence[int]] | None
) -> set[tuple[int, int]] | None:
    """Return the Spark tasks that have succeeded in the newest job with this tag: the position of the stage,
    and the number of the Spark task. `spark_stages` are the positions of the stages that each Spark stage
    runs. Returns None if they are unknown, or if Spark has another number of stages."""
    if spark_stages is None:
        return None
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    tagged = [job for job in map(jobs.apply, range(jobs.size())) if job.jobTags().contains(tag)]
    if not tagged:
        return set()
    stages = max(tagged, key=lambda job: job.jobId()).stageIds()
    numbers = sorted(map(stages.apply, range(stages.size())))
    # In the commit phase Spark skips what was processed, and may or may not count it as a stage.
    if len(numbers) != len(spark_stages):
        return None
    ended: set[tuple[int, int]] = set()
    for number, positions in zip(numbers, spark_stages, strict=True):
        tasks = store.taskList(number, store.lastStageAttempt(number).attemptId(), _MOST_TASKS)
        for task in map(tasks.apply, range(tasks.size())):
            if task.status() == "SUCCESS":
                ended.update((position, task.index()) for position in positions)
    return ended
