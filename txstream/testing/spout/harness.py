"""What the author of a source writes for the conformance suite: how data comes into the log and goes away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from txstream.api.spouts import PartitionedSpout, SpoutContext
from txstream.testing.promises import NotApplicableError

Row = Mapping[str, Any]
Rows = Mapping[str, Sequence[Row]]


class SpoutHarness(ABC):
    """A log, what can happen to it, and the source over it.

    The suite makes a harness for every check and closes it afterwards, so each must bring a log that no
    other harness sees. All methods are called from one thread. An exception that a harness raises is its
    own and is not taken for the source's.

    context: what the source is opened with. Keep `fetch_timeout_seconds` small: outage checks wait for it.
    settle_seconds: how long the source may take until it sees what was done to the log, and until a service
        that is slow answers it (PartitionUnavailableError). The suite asks again until then; 0 is right for a
        log in this process. Only a check that fails waits so long.
    deadline_seconds: how long a plan or a read may take in an outage. Much more than what is promised (two
        seconds, and `fetch_timeout_seconds`), because it must hold on a busy machine.
    unit_records: how many records the source cannot divide between two batches (a row group, a file).
    limits: False where the source cannot keep to a limit at all, because a batch is what it is.
    endless: True where rows come by themselves, so that there is never nothing new.
    other_process: False where another process cannot read the log, because it lives in this one.
    """

    context: SpoutContext = SpoutContext("conformance", "spout", {}, fetch_timeout_seconds=1.0)
    settle_seconds: float = 5.0
    deadline_seconds: float = 15.0
    unit_records: int = 1
    limits: bool = True
    endless: bool = False
    other_process: bool = True

    @abstractmethod
    def create(self) -> PartitionedSpout[Any]:
        """A new source over this log, made as the program makes it, at its first start and at a restart."""

    @abstractmethod
    def append(self, count: int) -> Rows | None:
        """Have `count` more records in every partition, two partitions at least where the source can have
        them.

        Returns the new rows by partition, in the order of the log: mappings from column to value, which may
        leave out columns that the harness cannot foresee. No two rows of a partition may be equal. None
        where the rows themselves cannot be foreseen: they are then compared with what one large batch reads.
        """

    def add_partition(self, count: int) -> Rows | None:
        """Have a partition appear, with `count` records. Returns as `append`."""
        raise NotApplicableError("the harness has no add_partition()")

    def hide(self, partition: str) -> None:
        """Make a partition unreadable, as an outage does, until `show`. `close` may find it hidden."""
        raise NotApplicableError("the harness has no hide() and show()")

    def show(self, partition: str) -> None:
        """End what `hide` began."""
        raise NotApplicableError("the harness has no hide() and show()")

    def lose(self, partition: str) -> None:
        """Delete for ever everything that is in a partition now, as retention does."""
        raise NotApplicableError("the harness has no lose()")

    def close(self) -> None:  # noqa: B027 - most harnesses have nothing to release
        """Called once after the check, also when it failed."""
