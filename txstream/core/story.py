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
    """An event that the coordinator got, or a command that it answered with. `at` is the time by the loop's
    clock, in seconds; None before there was a loop."""

    at: float | None
    is_command: bool
    what: str
    txid: Txid | None
    attempt: AttemptId | None
    why: str

    @property
    def subject(self) -> str:
        """What happened to which txid and attempt."""
        if self.txid is None:
            whose = ""
        elif self.attempt is None:
            whose = f" txid {self.txid}"
        else:
            whose = f" {TransactionAttempt(self.txid, self.attempt)}"
        return f"{self.what}{whose}{f': {self.why}' if self.why else ''}"


class Story:
    """See the module. `clock` is the loop's, once there is one."""

    def __init__(self) -> None:
        self.clock: Callable[[], float] | None = None
        self._moments: deque[Moment] = deque(maxlen=LONGEST_STORY)

    def add(
        self,
        what: str,
        txid: Txid | None = None,
        attempt: AttemptId | None = None,
        *,
        why: str = "",
        is_command: bool = False,
    ) -> None:
        at = None if self.clock is None else self.clock()
        self._moments.append(Moment(at, is_command, what, txid, attempt, why))

    def lines(self, txid: Txid | None = None) -> list[str]:
        """Return a line for each moment, or for each that has to do with `txid`, the oldest first."""
        now = None if self.clock is None else self.clock()
        return [_line(moment, now) for moment in self._moments if txid is None or moment.txid == txid]


def _line(moment: Moment, now: float | None) -> str:
    ago = "at the start" if now is None or moment.at is None else f"{now - moment.at:.3f} s ago"
    return f"{ago:>14}  {'command' if moment.is_command else 'event  '}  {moment.subject}"
