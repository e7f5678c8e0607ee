"""Which failures are replayed, which count as bugs, and how long the next attempt of a txid waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from txstream.api.errors import (
    BatchFailedError,
    BoltError,
    ServiceUnavailableError,
    TupleError,
    TxstreamError,
)
from txstream.transaction import TransactionAttempt

BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_LONGEST_SECONDS = 5.0

_KEPT_FAILURES = 10
_LONGEST_MESSAGE = 1_000


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
    """How often a txid has failed in this run; `last` are its latest failures, as the ledger keeps them."""

    attempts: int = 0
    bugs: int = 0
    last_error: str | None = None
    last: deque[Mapping[str, Any]] = field(default_factory=lambda: deque(maxlen=_KEPT_FAILURES))

    def add(self, error: BaseException, attempt: TransactionAttempt | None = None) -> None:
        """One more. Without an `attempt` it is counted, but not kept."""
        self.attempts += 1
        self.bugs += judge(error) is Verdict.BUG
        self.last_error = str(error)
        if attempt is not None:
            message = self.last_error
            if len(message) > _LONGEST_MESSAGE:
                message = f"{message[:_LONGEST_MESSAGE]}..."
            failed_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self.last.append({"attempt": attempt.attempt, "error": message, "failed_at": failed_at})

    @property
    def delay_seconds(self) -> float:
        """How long the next attempt waits: the same failure seldom goes away at once."""
        if self.attempts == 0:
            return 0.0
        doubled = BACKOFF_FIRST_SECONDS * 2.0 ** min(self.attempts - 1, 30)
        return min(doubled, BACKOFF_LONGEST_SECONDS)
