"""Records that a source has and that cannot be read yet are shown as a wait, if they wait for long."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support.inmemory import MemoryCoordinator, MemoryLog
from support.loops import Run, World, wait

from txstream.api.spouts import HeldBack
from txstream.core.waiting import Waiting
from txstream.engine.loop.held_back import HeldBackRecords

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Told:
    """Tells of records that are held back since START."""

    def __init__(self) -> None:
        self.waiting = Waiting(lambda _: True)
        self.seconds = 0.0
        clock: Any = SimpleNamespace(
            now=lambda: self.seconds, wall_clock=lambda: START.timestamp() + self.seconds
        )
        self._records = HeldBackRecords(self.waiting, clock)

    def at(self, seconds: float, **records: int) -> str | None:
        """Tell so many seconds after START, and return what is waited for then, without the time."""
        self.seconds = seconds
        self._records.tell({name: HeldBack(count, "a lock", START) for name, count in records.items()})
        assert all(one.since == START for one in self.waiting.waits)
        return "; ".join(f"{one.what}: {one.because}" for one in self.waiting.waits) or None


def test_what_is_held_back_for_moments_is_no_wait() -> None:
    told = Told()
    assert told.at(0, a=5) is None
    assert told.at(2.9, a=5) is None
    assert told.at(3, a=5) == "records of a: 5 behind a lock"
    assert told.at(4) is None


def test_what_only_grows_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "txstream")
    told = Told()
    assert told.at(3, a=5) == "records of a: 5 behind a lock"
    assert told.at(12.9, a=900) == "records of a: 5 behind a lock"
    assert told.at(13, a=1_000) == "records of a: 1,000 behind a lock"
    assert told.at(14, a=1_001, b=1) == "records of a, b: 1,001 behind a lock; 1 behind a lock"
    assert told.at(15) is None
    assert [message[:25] for message in caplog.messages] == ["waiting for records of a "] * 2 + [
        "waiting for records of a,",
        "no longer waiting for rec",
    ]


def test_of_many_partitions_the_ones_with_the_most_are_named() -> None:
    assert Told().at(3, a=1, b=2, c=3, d=4, e=5) == (
        "records of e, d, c and 2 other partitions: 5 behind a lock; 4 behind a lock; 3 behind a lock"
    )


def test_a_run_shows_it_while_the_source_tells_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog({"a": ["x"] * 4})
    shown: list[str | None] = []
    enough = threading.Event()
    plan = MemoryCoordinator.plan

    def planned(self: MemoryCoordinator, last: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
        shown.append(run.loop.waiting_for)
        if len(shown) == 3:
            enough.set()
        since = datetime.now(UTC) - timedelta(minutes=1)
        self.held_back = {"a": HeldBack(7, "a lock", since)} if len(shown) == 1 else {}
        return plan(self, last, limit)

    monkeypatch.setattr(MemoryCoordinator, "plan", planned)
    run = Run(World(log), until=None)
    run.start()
    wait(enough, "three plans")
    run.loop.stop()
    run.finish()
    assert shown[0] is None
    assert str(shown[1]).startswith("records of a since ")
    assert str(shown[1]).endswith("(7 behind a lock)")
    assert shown[2] is None
