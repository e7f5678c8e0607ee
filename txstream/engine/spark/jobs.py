"""How the runner has one Spark job run: its local properties, its results, and what has succeeded.

Each call of a Java method is a request to another process and a turn of the interpreter's lock, so the code
here takes the way with the fewest calls.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.util import _load_from_socket

from txstream.engine.batch.messages import WorkOrder
from txstream.engine.spark.executor import WORK_PROPERTY

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

_MOST_TASKS = 10_000


T = TypeVar("T")


class JobProperties(threading.local):
    """The local properties of a thread's Spark jobs while an attempt uses the thread. They are a copy,
    because the thread may be the user's, whose next job must not be taken for this attempt's. The copy is
    made once per thread: together with the runner in its thread, in others at their first attempt."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context._jsc.sc()
        self._threads = self._context.getLocalProperties()
        self._attempts = self._threads.clone()

    @contextlib.contextmanager
    def set(self, tag: str, pool: str, order: WorkOrder | None = None) -> Iterator[None]:
        """Set the properties of an attempt for the time of the block."""
        context = self._context
        context.setLocalProperties(self._attempts)
        try:
            context.setLocalProperty(WORK_PROPERTY, None if order is None else order.to_json())
            context.setLocalProperty("spark.scheduler.pool", pool)
            context.setLocalProperty("spark.job.tags", tag)
            yield
        finally:
            context.setLocalProperties(self._threads)


def collect(rdd: RDD[T]) -> list[T]:
    """Return the elements of an RDD, as `rdd.collect()` does, but cheaper. `rdd.collect()` has Spark read the
    byte code of `RDD` once and of `SparkContext` twice for every job, to look for what its own closures
    should not hold. That is a third of an empty job.

    The elements come over a socket of their own. To take them as results of calls would need fewer calls,
    but a result of more than 8 kB waits 40 ms for a delayed TCP acknowledgement.
    """
    try:
        found = rdd._jrdd.collectAsync().get()
    except Py4JJavaError as error:
        # The outer error says only that the job failed. PySpark finds its cause as for `rdd.collect()`.
        error.java_exception = error.java_exception.getCause() or error.java_exception
        converted = convert_exception(error.java_exception)
        if isinstance(converted, UnknownException):
            raise
        raise converted from None
    as_scala, serve = _functions(rdd.context._jvm)
    served = serve(as_scala(found.iterator()), f"serve RDD {rdd.id()}")
    with _load_from_socket(served, rdd._jrdd_deserializer) as stream:
        return list(stream)


@functools.lru_cache(1)
def _functions(jvm: Any) -> tuple[Any, Any]:
    """Look up Java's functions once: each part of a Java name costs a request to the JVM."""
    to_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    return to_scala, jvm.org.apache.spark.api.python.PythonRDD.serveIterator


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
