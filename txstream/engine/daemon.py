"""Spark's Python daemon, without a full garbage collection after every task.

PySpark's daemon makes each worker run `gc.collect()` when a task ends: 10 to 40 ms, more than a small
batch costs otherwise. This one collects once per worker and freezes what is alive then. Later garbage is
left to Python's own generations.

Imported by name on executors (`spark.python.daemon.module`), before shipped files are on the path; it
imports nothing that starts threads, since it forks.
"""

from __future__ import annotations

import gc
from typing import Any

import pyspark.daemon


class CollectOnce:
    """Stands in for the module `gc` inside pyspark.daemon."""

    def __init__(self) -> None:
        self._collected = False

    def collect(self, *args: int) -> int:
        if self._collected:
            return 0
        self._collected = True
        found = gc.collect(*args)
        gc.freeze()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(gc, name)


# The daemon calls gc.collect() by the name that it imported; there is no setting for it.
vars(pyspark.daemon)["gc"] = CollectOnce()

if __name__ == "__main__":
    pyspark.daemon.manager()
