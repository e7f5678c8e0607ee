"""Dead letters: records that fail by themselves, kept in a table instead of ending the run.

The promise: of each source record, either all its effects are in the states, or exactly one row of
`txstream_dead_letter` holds it and none of its effects is there. Here are the words that all parts share: the
user's setting, a record that a batch's metas leave out, and the row that is stored for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txstream.core.errors import LateRecordError, TopologyError
from txstream.core.transaction import Txid

DEFAULT_MAX_PER_BATCH = 100
DEFAULT_MAX_SHARE = 0.01
# A live batch may have a handful of records, of which a share would allow none. When all fail, batch after
# batch, the window of the latest records ends the run.
_ALWAYS = 10
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """Asks for dead letters: `TransactionalTopologyBuilder(..., dead_letters=DeadLetters())`.

    At most `max_per_batch` records of a batch become dead letters, and at most the share `max_share` of its
    records, but always ten. When more fail it is a bug and not poison, and the run ends with the first error.
    So it does with TooManyDeadLettersError when of the last 10,000 records, and all of the last ten minutes,
    more than that share become dead letters, and more than `max_per_batch`. Late records, of a table with
    `keep`, are not counted. Once they are committed, they are sent to the Kafka topic `topic` as well, if it
    is given. Raises TopologyError for impossible values.
    """

    max_per_batch: int = DEFAULT_MAX_PER_BATCH
    max_share: float = DEFAULT_MAX_SHARE
    topic: str | None = None

    def __post_init__(self) -> None:
        most, share = self.max_per_batch, self.max_share
        if isinstance(most, bool) or not isinstance(most, int) or most < 1:
            raise TopologyError(f"max_per_batch of dead letters is {most!r}; it must be an integer above 0")
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise TopologyError(f"max_share of dead letters is {share!r}; it must be above 0 and at most 1")
        if self.topic is not None and not (isinstance(self.topic, str) and _TOPIC.fullmatch(self.topic)):
            raise TopologyError(f"topic of dead letters is {self.topic!r}; it must be the name of a topic")

    def most_of(self, records: int) -> int:
        """Return how many of a batch's records may become dead letters."""
        return min(self.max_per_batch, max(_ALWAYS, math.floor(self.max_share * records)))


@dataclass(frozen=True, slots=True, order=True)
class Excluded:
    """One record that a batch leaves out, as its metas keep it: the source's partition, the position of the
    record in it, the component in which it failed and the class of the exception. No message, which may hold
    data."""

    partition: str
    offset: int
    component: str
    exception: str

    @property
    def is_late(self) -> bool:
        """Whether its row is older than its table keeps rows. Such a record is no bug, however many there
        are."""
        return self.exception == LateRecordError.__name__


@dataclass(frozen=True, slots=True, order=True)
class LetterKey:
    """Which dead letter of a topology's life: the batch that left its record out, and the record's place."""

    txid: Txid
    place: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that a batch leaves out, as the table keeps it.

    `source` is its place as text. `topic`, `partition` and `offset` are Kafka's; other sources have None for
    what they do not know. `headers` is a JSON array of [name, value in base64 or null]. `traceback` and
    `message` are the user's own words, cut and cleaned for storage.
    """

    source: str
    topic: str | None
    partition: int | None
    offset: int | None
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: bytes | None
    component: str
    exception: str
    message: str
    traceback: str

    @property
    def is_late(self) -> bool:
        """See `Excluded`."""
        return self.exception == LateRecordError.__name__


class SentLetter(NamedTuple):
    """What is sent of a letter. `partition` is the one of its source, None if that has no number."""

    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    timestamp_ms: int | None


class LetterSender(Protocol):
    """A connection to the topic. Whatever it raises is taken for an outage."""

    def send(self, record: SentLetter) -> None:
        """Append a record, and return once the broker has acknowledged it."""

    def close(self) -> None:
        """Close the connection; what is not acknowledged is given up."""
