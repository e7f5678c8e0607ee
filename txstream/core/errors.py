"""Every error that txstream raises on purpose.

All derive from `TxstreamError`, so a caller can catch them all. A message says what was expected, what was
found and what to do next; the cause is chained. `exit_status` is the exit status of the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from txstream.core.wording import storable


class TxstreamError(Exception):
    """Root of all txstream errors. `without_data`, where known, is the message without user code's words, and
    `record` says where in the source the record is that it is about. `component`, `kind` and `words`: who
    failed, the class of what was raised there, and its message, if a worker reported it; `given`: the tuple
    that was processed there, as the engine looks for it. `at`: the row of the first tuple to blame, of those
    that a bolt was to take, if it has kept none of them, or that it has emitted. `ends_run`: no further
    attempt is made, because too many records of the batch fail. `story`: if it ended a run, the coordinator's
    last events and commands, the oldest first, a line each. `shows_story`: whether the command line shows the
    end of it without being asked to.

    Message and notes can be stored and shown anywhere (`storable`), whatever user code or a service said.
    """

    exit_status: ClassVar[int] = 1
    shows_story: ClassVar[bool] = False
    without_data: str | None = None
    story: Sequence[str] = ()
    record: str | None = None
    component: str | None = None
    kind: str | None = None
    words: str | None = None
    given: Any = None
    at: int | None = None
    ends_run: bool = False

    def __init__(self, *parts: object) -> None:
        super().__init__(*(storable(part) if isinstance(part, str) else part for part in parts))

    def add_note(self, note: str) -> None:
        super().add_note(storable(note))


class UsageError(TxstreamError):
    """The command or call is wrong: an unknown name, a wrong type, an impossible option."""

    exit_status: ClassVar[int] = 2


class TopologyError(TxstreamError):
    """A topology cannot be built as declared; the message names the component and the remedy."""


class SchemaError(TopologyError):
    """A type declaration ("word string, n bigint") cannot be understood, or two of them clash."""


class ServiceUnavailableError(TxstreamError):
    """ZooKeeper, Kafka, the database, Spark or Java could not be reached or started in time. `service` is
    what to wait for, in words, if whoever raised it has said that."""

    service: str | None = None


class SparkLostError(TxstreamError):
    """Spark's Java process ended; the message names exit and log. The next run recovers what is open."""


# --- a batch ---------------------------------------------------------------------------------------


class BatchFailedError(TxstreamError):
    """Raise this in a bolt or an emitter to have the batch replayed. It is an expected failure: replays have
    no limit, and no traceback is logged."""


FailedException = BatchFailedError  # Storm's name


class PartitionUnavailableError(BatchFailedError):
    """A partition cannot be read now, or gave no data for `fetch_timeout_seconds`. Replayed."""


class ShortReadError(BatchFailedError):
    """The planned range was not read in full: the reader stopped before the planned end."""


class ShortBatchError(BatchFailedError):
    """On some edge, fewer or more tuples arrived than were sent."""


class DataLostError(TxstreamError):
    """The planned range no longer exists in the log (retention, a topic deleted and created again), or
    the plan ends beyond the log's end. Never skipped silently."""


class InputChangedError(TxstreamError):
    """What a batch reads is not what was read before: records of a batch that a database may have committed
    are gone, or the id of a schema means another schema. The message says what was expected and found."""


class DecodeError(TxstreamError):
    """A record cannot be decoded as declared; the message has topic, partition and offset."""


class TupleError(TxstreamError):
    """A bolt emitted a tuple that its declared stream does not allow, or asked for an unknown field."""


class BoltError(TxstreamError):
    """User code raised. The message names txid, attempt, component, task and tuple, and has the traceback. Of
    the error that ends a run it also names partition and offset of the record; in the commit phase, of one
    that makes the tuple, or the ranges of the batch."""


class BatchTimeoutError(BatchFailedError):
    """An attempt was not processed within `message_timeout_seconds`."""


# --- state and order --------------------------------------------------------------------------------


class FencedError(TxstreamError):
    """A newer leader runs this topology. This driver has written nothing since, and must exit."""

    exit_status: ClassVar[int] = 3


class StaleAttemptError(FencedError):
    """The fence refused a write, because its attempt is not the current one."""


class LeaderExistsError(TxstreamError):
    """Another driver runs this topology and `--no-wait` was given."""


class CorruptStateError(TxstreamError):
    """Stored data is not what txstream wrote; the message names the path or row. Never treated as absent."""


class ProgressMismatchError(TxstreamError):
    """ZooKeeper and a database disagree about which batch was committed last; the message names both figures.
    Found at a start, or by a commit when the database was restored from an older copy during the run."""


class IdentityMismatchError(TxstreamError):
    """The topology's code differs from what was first run under this id, or a state table belongs to another
    topology; the message lists the differences."""


class StateTableError(TxstreamError):
    """A state table exists with different columns, or cannot hold what was declared."""


class StateValueError(TxstreamError):
    """A value cannot be stored: a null in a key, a number out of range. As in `BoltError`, the message names
    partition and offset of the record, or a range of records that fail only together. `row`: the table and
    the key, as text, of the row that it was for, if that is known."""

    row: tuple[str, str] | None = None

    def of_row(self, table: str, key: str) -> Self:
        """Note the row, and return this error."""
        self.row = (table, key)
        return self


class LateRecordError(StateValueError):
    """A record's row is older than its table keeps rows (`keep`): it would be for a row that may have been
    removed. `places`: partition ("topic/number") and offset of records of which this is so, as far as tuples
    with Kafka's columns say it. `only_late_from`: the component that these tuples came from, if there were no
    others among them."""

    places: Sequence[tuple[str, int]] = ()
    only_late_from: str | None = None


class SchemaRevisionError(TxstreamError):
    """The framework's own tables in a database have another revision than this version needs."""


class TxidRegressionError(CorruptStateError):
    """A state row carries a txid newer than the batch being committed."""


class MetaTooLargeError(TxstreamError):
    """A batch's metas exceed what one ZooKeeper request can carry (1 MiB)."""


class TooManyDeadLettersError(TxstreamError):
    """Of the latest records, more fail by themselves than may become dead letters: a bug."""


class CoordinatorError(TxstreamError):
    """An event reached the coordinator in an order that its rules do not allow."""

    shows_story: ClassVar[bool] = True
