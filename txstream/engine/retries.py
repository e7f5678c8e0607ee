"""Which failures are replayed, which count as bugs, and how long the next attempt of a txid waits."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from txstream.api.errors import (
    BatchFailedError,
    BoltError,
    ServiceUnavailableError,
    TupleError,
    TxstreamError,
)

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_LONGEST_SECONDS = 5.0


class Verdict(Enum):
    """What a failed attempt means for the run."""

    REPLAY = "replay"  # expected, or an outage: without limit
    BUG = "bug"  # replayed too, but only `max_attempts` times
    FATAL = "fatal"  # the same data would fail again, or another driver leads


def judge(error: BaseException) -> Verdict:
    """What an attempt's error means."""
    if isinstance(error, (BatchFailedError, ServiceUnavailableError)):
        return Verdict.REPLAY
    if isinstance(error, (BoltError, TupleError)):
        return Verdict.BUG
    if isinstance(error, TxstreamError) or not isinstance(error, Exception):
        return Verdict.FATAL
    return Verdict.BUG


@dataclass
class TxidFailures:
    """How often a txid has failed in this run."""

    attempts: int = 0
    bugs: int = 0
    last_error: str | None = None

    def add(self, error: BaseException) -> None:
        self.attempts += 1
        self.bugs += judge(error) is Verdict.BUG
        self.last_error = str(error)

    @property
    def delay_seconds(self) -> float:
        """How long the next attempt waits: the same failure seldom goes away at once."""
        if self.attempts == 0:
            return 0.0
        doubled = BACKOFF_FIRST_SECONDS * 2.0 ** min(self.attempts - 1, 30)
        return min(doubled, BACKOFF_LONGEST_SECONDS)
