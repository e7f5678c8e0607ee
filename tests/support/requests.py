"""Operators' requests and assignments, as tests make and read them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from support.zookeeper_backends import Hook
from txstream.core.placement import Assignment, TaskPlace
from txstream.core.transaction import Txid, attempt_id
from txstream.zookeeper import InForce, ProgressStore, Requests

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
LOST_BEFORE_OR_AFTER = pytest.mark.parametrize("moment", ["before", "after"])


class Told:
    """Counts how often it was told, and waits for the next time."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.times = 0

    def __call__(self) -> None:
        with self._changed:
            self.times += 1
            self._changed.notify_all()

    def wait(self, times: int, seconds: float = 60) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.times >= times, seconds)


def once(act: Callable[[], object], write: str) -> Hook:
    """Return a hook that acts right before the first `write`, as if somebody else were faster."""
    done: list[None] = []

    def hook(moment: str, name: str) -> None:
        if (moment, name) == ("before", write) and not done:
            done.append(None)
            act()

    return hook


def waiting(requests: Requests) -> list[dict[str, int]]:
    return [dict(request.body) for request in requests.waiting]


def slots(**slots: int) -> Requests:
    """Return requests of which none waits, with these slots in force."""
    return Requests(InForce(slots))


def answer_all(store: ProgressStore, refused: str | None = None) -> None:
    for request in store.read_requests().waiting:
        store.answer_request(request, refused, {"before": {"count": 2}})


def assignment(tasks: int = 2, txid: int = 1, name: Callable[[int], str] = str) -> Assignment:
    places = (TaskPlace("count", n, n // 2, name(n), "here", n / 8, n * 10) for n in range(tasks))
    return Assignment(Txid(txid), attempt_id(1, txid), NOON, tuple(places))
