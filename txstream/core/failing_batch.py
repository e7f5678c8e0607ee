"""Why a batch is not committed yet: reported by the engine, stored by the leader, shown to people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from txstream.core.transaction import AttemptId, Txid

SEARCHED = "what fails in txid "
"""What a `Wait` begins with that is a search for records to leave out."""


class LeftOut(NamedTuple):
    """A batch that left out records, and when it was committed."""

    txid: int
    records: int
    at: datetime | None


@dataclass(frozen=True, slots=True)
class FailingBatch:
    """A batch whose attempts fail, as of `at`, when `attempt` failed. `reasons` counts the failures of that
    run by reason; a reason holds no data of the batch. `metas` are its stored plan, or what its latest
    attempt held; `attempts` are the latest that failed, oldest first, as the ledger keeps them but without
    data."""

    txid: Txid
    attempt: AttemptId
    at: datetime
    reasons: Mapping[str, int]
    metas: Mapping[str, Any] = field(default_factory=dict)
    attempts: Sequence[Mapping[str, Any]] = ()

    @property
    def failed_attempts(self) -> int:
        return sum(self.reasons.values())

    @property
    def may_pass(self) -> bool:
        """Whether the next attempt may come to another end than the last one."""
        return not (self.attempts and self.attempts[-1].get("stays"))


@dataclass(frozen=True, slots=True)
class Wait:
    """A run has been waiting for `what` since `since`. `because` says why nothing goes on without it, where
    that is worth saying. `reason` says what was wrong with it when the wait began."""

    what: str
    since: datetime
    because: str
    reason: str

    @property
    def told(self) -> str:
        """What the run does meanwhile."""
        if not self.what.startswith(SEARCHED):
            return f"waiting for {self}"
        seconds = (datetime.now(UTC) - self.since).total_seconds()
        return f"looking for {self.what}: {self.because}, {seconds:.0f} s so far"

    def __str__(self) -> str:
        because = f" ({self.because})" if self.because else ""
        return f"{self.what} since {self.since.astimezone():%H:%M:%S}{because}"
