"""Spark's pools for the jobs of the two phases: a commit's tasks go before those of processing.

A commit holds up every batch behind it, and it is short; processing is neither.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROCESSING_POOL = "processing"
COMMIT_POOL = "commit"
ALLOCATION_SETTING = "spark.scheduler.allocation.file"

# A pool that has less than its minimum share is served first, and no cluster has so many cores. Within a
# pool the jobs are served in the order in which they began: the older batch first.
_ALLOCATIONS = f"""<?xml version="1.0"?>
<allocations>
  <pool name="{COMMIT_POOL}">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>1000000</minShare>
  </pool>
  <pool name="{PROCESSING_POOL}">
    <schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare>
  </pool>
</allocations>
"""


@contextmanager
def pool_settings() -> Iterator[dict[str, str]]:
    """Settings for the start of a SparkContext, which reads their file once: it is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="txstream-") as folder:
        file = Path(folder) / "pools.xml"
        file.write_text(_ALLOCATIONS)
        yield {ALLOCATION_SETTING: file.as_uri()}
