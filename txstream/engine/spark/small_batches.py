"""Small batches without a Spark job: the port between the runner and what processes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from txstream.core.entry_points import SMALL_BATCHES, load
from txstream.core.transaction import TransactionAttempt
from txstream.engine.batch.messages import Element, WorkOrder

if TYPE_CHECKING:
    from pyspark import Broadcast, SparkContext


class SmallBatches(Protocol):
    """What the group `txstream.small_batches` makes, by a Spark context, the plan's broadcast, the run's id
    and the number of Spark tasks asked for. It shares the cores with jobs, of which it is told. `run`,
    `cancel` and `leave` may be called from several threads at once."""

    @property
    def count(self) -> int:
        """How many Spark tasks of a batch it can process at once at present."""

    def run(self, order: WorkOrder, width: int) -> list[Element] | None:
        """Process the only stage of a batch in `width` Spark tasks. Returns None if a job has to do it.
        Raises BatchFailedError if the attempt was cancelled."""

    def cancel(self, attempt: TransactionAttempt) -> None:
        """Let whoever waits for this attempt go."""

    def leave(self) -> None:
        """Give all cores to jobs."""

    def job_begins(self, *, is_small: bool) -> None:
        """A job starts; `is_small` if it is one that could have been spared."""

    def job_succeeded(self, *, is_small: bool) -> None:
        """A job has ended well."""

    def close(self) -> None:
        """End whatever was started. Calling it again does nothing."""


class NoSmallBatches:
    """Every batch is a job."""

    count = 0

    def run(self, order: WorkOrder, width: int) -> None:
        return None

    def cancel(self, attempt: TransactionAttempt) -> None: ...
    def leave(self) -> None: ...
    def job_begins(self, *, is_small: bool) -> None: ...
    def job_succeeded(self, *, is_small: bool) -> None: ...
    def close(self) -> None: ...


def small_batches(context: SparkContext, shipped: Broadcast[bytes], run_id: str, count: int) -> SmallBatches:
    """Return what processes small batches with `count` Spark tasks; with none, or if no installed package
    does so, every batch is a job."""
    make = load(SMALL_BATCHES, "spark", "way to process small batches") if count else None
    made: SmallBatches = NoSmallBatches() if make is None else make(context, shipped, run_id, count)
    return made
