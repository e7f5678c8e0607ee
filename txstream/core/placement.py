"""Where the tasks of a batch ran: reported by executors, stored by the leader, shown to people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from txstream.core.transaction import AttemptId, Txid


class TaskPlace(NamedTuple):
    """One task of one attempt. `task` and `slot` count from 0 within the component. `worker` names the
    executor process, `host` its machine. `seconds` is the time in the task, `tuples` the number of tuples it
    was given."""

    component: str
    task: int
    slot: int
    worker: str
    host: str
    seconds: float
    tuples: int


class EdgeTuples(NamedTuple):
    """How many tuples of a stream of `source` the component `target` was given, and the time outside of
    bolts, all tasks together: `send_seconds` to choose tasks and encode, `take_seconds` to fetch and decode.
    Both are 0 where the tuples stayed in their Spark task; None is not known."""

    source: str
    stream: str
    target: str
    tuples: int
    send_seconds: float | None = None
    take_seconds: float | None = None


def own_seconds(send: float | None, take: float | None) -> tuple[str, str]:
    """Return the seconds of an edge as cells of a table."""
    if send == take == 0:
        return "in its bolt", ""
    first, second = ("-" if seconds is None else f"{seconds:.3f}" for seconds in (send, take))
    return first, second


@dataclass(frozen=True, slots=True)
class Assignment:
    """The tasks of one processed attempt, as of `at`. `left_out` counts the tasks that there was no room to
    store: those that took the least time. `edges` are stored in a note of their own. `by_residents` says that
    Spark tasks that stay ran them, without a job."""

    txid: Txid
    attempt: AttemptId
    at: datetime
    tasks: tuple[TaskPlace, ...]
    left_out: int = 0
    edges: tuple[EdgeTuples, ...] = ()
    by_residents: bool = False

    def in_order(self) -> list[TaskPlace]:
        """Return the tasks by component, then by task."""
        return sorted(self.tasks, key=lambda place: (place.component, place.task))
