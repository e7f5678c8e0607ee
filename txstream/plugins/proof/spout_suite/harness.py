"""What the author of a source writes for the conformance suite: how rows get into the log and disappear."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.plugins.proof.promises import NotApplicableError

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]


class SpoutHarness(ABC):
    """A log, what can happen to it, and the source that reads it.

    The suite creates a harness for every check and closes it afterwards, so each must bring a log that no
    other harness sees. All methods are called from one thread. An exception from the harness is passed on as
    it is and does not count against the source.

    context: what the source is opened with. Keep `fetch_timeout_seconds` small: outage checks wait for it.
    settle_seconds: how long the source may take to see a change of the log, and how long a slow service may
        take to answer it (PartitionUnavailableError). The suite asks again until then. 0 is right for a log
        in this process. Only a failing check waits this long.
    deadline_seconds: how long a plan or a read may take in an outage. Set it much higher than what is
        promised (two seconds, and `fetch_timeout_seconds`), because it must hold on a busy machine.
    unit_records: how many records the source cannot divide between two batches (a row group, a file).
    limits: False if the source cannot keep to a limit at all, because the size of a batch is given.
    endless: True if rows arrive by themselves, so that there is always something new.
    """

    context: SpoutContext = SpoutContext("conformance", "spout", {}, fetch_timeout_seconds=1.0)
    settle_seconds: float = 5.0
    deadline_seconds: float = 15.0
    unit_records: int = 1
    limits: bool = True
    endless: bool = False

    @abstractmethod
    def create(self) -> PartitionedSpout[Any]:
        """Return a new source over this log, as the program creates it at its first start and at a
        restart."""

    @abstractmethod
    def append(self, count: int) -> Rows | None:
        """Add `count` records to every partition. Have at least two partitions if the source can have them.

        Returns the new rows by partition, in the order of the log, as mappings from column to value. They may
        leave out columns that the harness cannot foresee. No two rows of a partition may be equal. Returns
        None if the rows themselves cannot be foreseen; they are then compared with what one large batch
        reads.
        """

    def add_partition(self, count: int) -> Rows | None:
        """Add a partition with `count` records. Returns what `append` does."""
        raise NotApplicableError("the harness has no add_partition()")

    def hide(self, partition: str) -> None:
        """Make a partition unreadable, as in an outage, until `show`. It may still be hidden at `close`."""
        raise NotApplicableError("the harness has no hide() and show()")

    def show(self, partition: str) -> None:
        """Make a hidden partition readable again."""
        raise NotApplicableError("the harness has no hide() and show()")

    def lose(self, partition: str) -> None:
        """Delete everything that is in a partition now for good, as retention does."""
        raise NotApplicableError("the harness has no lose()")

    def close(self) -> None:  # noqa: B027 - most harnesses have nothing to release
        """Release the log. Called once after the check, also when the check failed."""
