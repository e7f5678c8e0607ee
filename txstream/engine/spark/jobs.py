"""One Spark job as the runner has it run: its local properties, and what it gives."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.util import _load_from_socket

from txstream.engine.batch.messages import WorkOrder
from txstream.engine.spark.executor import WORK_PROPERTY

if TYPE_CHECKING:
    from pyspark import RDD, SparkContext

T = TypeVar("T")


class Job:
    """The local properties of a thread's Spark jobs while an attempt uses it."""

    def __init__(self, context: SparkContext, tag: str, pool: str, order: WorkOrder | None = None) -> None:
        self._context = context
        self._order = order
        self._pool = pool
        self._tag = tag

    def __enter__(self) -> None:
        if self._order is not None:
            self._context.setLocalProperty(WORK_PROPERTY, self._order.to_json())
        self._context.setLocalProperty("spark.scheduler.pool", self._pool)
        self._context.addJobTag(self._tag)

    def __exit__(self, *_: object) -> None:
        # The thread may be the user's own, whose next job must not be taken for this attempt's.
        self._context.removeJobTag(self._tag)
        self._context.setLocalProperty("spark.scheduler.pool", None)  # type: ignore[arg-type]  # removes it
        self._context.setLocalProperty(WORK_PROPERTY, None)  # type: ignore[arg-type]


def collect(rdd: RDD[T]) -> list[T]:
    """As `rdd.collect()`, which has Spark read the byte code of `RDD` and twice that of `SparkContext` anew
    for every job, to look for what its own closures should not hold: a third of an empty job."""
    as_scala, serve = _functions(rdd.context._jvm)
    try:
        found = rdd._jrdd.collectAsync().get()
    except Py4JJavaError as error:
        # Outside is only that the job failed. What of, PySpark tells as it does for `rdd.collect()`.
        error.java_exception = error.java_exception.getCause() or error.java_exception
        told = convert_exception(error.java_exception)
        if isinstance(told, UnknownException):
            raise
        raise told from None
    served = serve(as_scala(found.iterator()), f"serve RDD {rdd.id()}")
    with _load_from_socket(served, rdd._jrdd_deserializer) as stream:
        return list(stream)


@functools.lru_cache(1)
def _functions(jvm: Any) -> tuple[Any, Any]:
    """Each part of a Java name costs a question to the JVM."""
    to_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    return to_scala, jvm.org.apache.spark.api.python.PythonRDD.serveIterator
