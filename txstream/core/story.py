"""The story of a coordinator: its last events and commands, for whoever has to find out how a run ended.

Invariants. It holds at most 200 moments, the oldest first. It has numbers and names of the framework, never
data of a user. As dask.distributed's workers, it is shown with the errors of the state machine that keeps it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from txstream.core.transaction import AttemptId, TransactionAttempt, Txid

LONGEST_STORY = 200


class Moment(NamedTuple):
    """An event that the coordinator got, or a command that it answered with, which names its `cause`: that
    event. `at` is the time by the loop's clock, in seconds; None before there was a loop."""

    at: float | None
    what: str
    txid: Txid | None
    attempt: AttemptId | None
    why: str = ""
    cause: Moment | None = None

    @property
    def subject(self) -> str:
        """What happened to which txid and attempt."""
        if self.txid is None:
            return self.what
        attempt = self.attempt
        whose = f"txid {self.txid}" if attempt is None else str(TransactionAttempt(self.txid, attempt))
        return f"{self.what} {whose}"

    def __str__(self) -> str:
        if self.cause is not None:
            return f"command  {self.subject}, after {self.cause.subject}"
        return f"event    {self.subject}{f': {self.why}' if self.why else ''}"


class Story:
    """See the module. `clock` is the loop's, once there is one."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] | None = None
        self._moments: deque[Moment] = deque(maxlen=LONGEST_STORY)
        self._event: Moment | None = None

    def add(
        self, what: str, txid: Txid | None = None, attempt: AttemptId | None = None, *, why: str = ""
    ) -> None:
        """Add an event."""
        self._event = Moment(self._now(), what, txid, attempt, why)
        self._moments.append(self._event)

    def answer(self, what: str, txid: Txid, attempt: AttemptId | None) -> None:
        """Add a command that answers the event that was added last."""
        self._moments.append(Moment(self._now(), what, txid, attempt, cause=self._event))

    def lines(self, txid: Txid | None = None) -> list[str]:
        """Return a line for each moment, or for each that has to do with `txid`, the oldest first."""
        now = self._now()
        return [_line(moment, now) for moment in self._moments if txid is None or moment.txid == txid]

    def _now(self) -> float | None:
        return None if self.clock is None else self.clock()


def _line(moment: Moment, now: float | None) -> str:
    ago = "at the start" if now is None or moment.at is None else f"{now - moment.at:.3f} s ago"
    return f"{ago:>14}  {moment}"
