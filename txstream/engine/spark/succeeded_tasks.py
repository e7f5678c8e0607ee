"""Which Spark tasks of a job have succeeded, as Spark's own status store has it: asked for by people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import SparkContext

_MOST_TASKS = 10_000


def succeeded_tasks(
    context: SparkContext, tag: str, spark_stages: Sequence[Sequence[int]] | None
) -> set[tuple[int, int]] | None:
    """By position of a stage and number of a Spark task, of the newest job with this tag; `spark_stages` are
    the positions that each of its Spark stages runs. None where Spark's stages are not those."""
    if spark_stages is None:
        return None
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    tagged = [job for job in map(jobs.apply, range(jobs.size())) if job.jobTags().contains(tag)]
    if not tagged:
        return set()
    stages = max(tagged, key=lambda job: job.jobId()).stageIds()
    numbers = sorted(map(stages.apply, range(stages.size())))
    # In the commit phase what was processed is skipped, and counts as a stage or not, as Spark likes.
    if len(numbers) != len(spark_stages):
        return None
    ended: set[tuple[int, int]] = set()
    for number, positions in zip(numbers, spark_stages, strict=True):
        tasks = store.taskList(number, store.lastStageAttempt(number).attemptId(), _MOST_TASKS)
        for task in map(tasks.apply, range(tasks.size())):
            if task.status() == "SUCCESS":
                ended.update((position, task.index()) for position in positions)
    return ended
