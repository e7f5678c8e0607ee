"""How many records the next batch may hold under a goal for latency or rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.inmemory import MemoryLog
from support.lists import each
from support.loops import Run, World, failing_once

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.spouts import OpaqueSpout
from txstream.core.errors import BatchFailedError, TopologyError
from txstream.core.transaction import Txid
from txstream.engine.loop.pace import FLOOR_RECORDS, Pace
from txstream.engine.loop.workers import MonotonicClock
from txstream.plugins.testing.clock import ManualClock
from txstream.spouts.memory import MemorySpout


@dataclass
class Log:
    """A log with enough records. A batch takes `seconds_each` plus `seconds_per_record` for each record."""

    pace: Pace
    clock: ManualClock
    seconds_each: float = 0.0
    seconds_per_record: float = 0.0
    txid: int = 0
    sizes: list[int] = field(default_factory=list)

    def batch(self, there: int = 10**9) -> int:
        """Plan and commit one batch, and return its number of records."""
        self.txid += 1
        records = min(there, self.pace.limit())
        self.pace.planned(Txid(self.txid), records)
        self.clock.advance(self.seconds_each + self.seconds_per_record * records)
        self.pace.advanced(Txid(self.txid))
        self.sizes.append(records)
        return records


def log(*, most: int = 500_000, each: float = 0.0, per_record: float = 0.0, **goals: float) -> Log:
    clock = ManualClock()
    return Log(Pace(most, now=clock, **goals), clock, each, per_record)


def test_without_a_goal_a_batch_may_hold_what_the_spout_allows() -> None:
    quiet = log(most=7, each=60.0)
    assert [quiet.batch() for _ in range(3)] == [7, 7, 7]


def test_full_batches_grow_until_they_take_as_long_as_they_may() -> None:
    backlog = log(each=0.1, per_record=1e-5, max_batch_latency_seconds=1.0)
    for _ in range(20):
        backlog.batch()
    assert backlog.sizes[:3] == [10_000, 20_000, 40_000]
    last = backlog.sizes[-1]
    assert 60_000 < last <= 90_000, "0.1 s and 1 s for 100,000 records"


def test_a_spout_s_own_limit_holds() -> None:
    backlog = log(most=30_000, per_record=1e-9, max_batch_latency_seconds=1.0)
    assert [backlog.batch() for _ in range(4)] == [10_000, 20_000, 30_000, 30_000]


def test_batches_that_take_too_long_shrink_by_half_at_a_time_and_not_below_the_floor() -> None:
    slow = log(per_record=1.0, max_batch_latency_seconds=1.0)
    for _ in range(12):
        slow.batch()
    assert slow.sizes[:3] == [10_000, 5_000, 2_500]
    assert slow.sizes[-1] == FLOOR_RECORDS


def test_several_late_batches_of_one_size_shrink_it_once() -> None:
    one = log(max_batch_latency_seconds=1.0)
    for txid in (1, 2, 3):
        one.pace.planned(Txid(txid), 10_000)
    one.clock.advance(50.0)
    for txid in (1, 2, 3):
        one.pace.advanced(Txid(txid))
    assert one.pace.limit() == 5_000


def test_small_batches_say_nothing_of_larger_ones() -> None:
    live = log(each=0.01, max_batch_latency_seconds=1.0)
    for _ in range(10):
        live.batch(there=50)
    assert live.pace.limit() == 10_000


def test_one_small_batch_that_was_slow_does_not_make_the_next_ones_tiny() -> None:
    live = log(each=30.0, max_batch_latency_seconds=1.0)
    live.batch(there=50)
    assert live.pace.limit() == 5_000


def test_a_batch_without_records_is_not_measured() -> None:
    """The first one of a run may hold only first places, and wait for Spark's workers to start."""
    slow = log(each=60.0, max_batch_latency_seconds=2.0)
    before = slow.pace.limit()
    slow.batch(there=0)
    assert slow.pace.limit() == before


def test_a_replay_is_not_measured() -> None:
    one = log(max_batch_latency_seconds=1.0)
    one.pace.planned(Txid(1), 10_000)
    one.clock.advance(50.0)
    one.pace.planned(Txid(1), 10_000, replay=True)
    one.pace.advanced(Txid(1))
    assert one.pace.size == 10_000


def test_no_more_is_planned_than_the_rate_allows() -> None:
    limited = log(max_records_per_second=1_000.0)
    planned = limited.batch()
    assert planned == 1_000, "a second's worth at once"
    seconds = 0.0
    for _ in range(100):
        wait = limited.pace.seconds_to_wait()
        assert wait > 0.0
        assert limited.pace.limit() == 0
        limited.clock.advance(wait)
        seconds += wait
        planned += limited.batch()
    assert planned == pytest.approx(1_000 + 1_000 * seconds, rel=0.01)
    assert min(limited.sizes) >= 99, "not a trickle of batches"


def test_what_was_not_used_does_not_add_up() -> None:
    limited = log(max_records_per_second=1_000.0)
    limited.clock.advance(3600.0)
    assert limited.batch() == 1_000
    assert limited.pace.limit() == 0


def test_a_rate_below_one_a_second() -> None:
    limited = log(max_records_per_second=0.5)
    assert limited.batch() == 1
    assert limited.pace.seconds_to_wait() == pytest.approx(2.0)


class Ticks(MonotonicClock):
    """A clock that moves on by a tenth of a second at each reading."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += 0.1
        return self.seconds

    def seconds_until(self, due: float) -> float:
        return 0.0


def test_a_replay_does_not_wait_for_the_rate() -> None:
    """Its records were counted when they were first planned."""
    log = MemoryLog({"a": ["x"]})
    log.on_emit = failing_once(BatchFailedError("once"), 1)
    run = Run(World(log), options={"max_records_per_second": 1e-9}).complete()
    assert run.world.table.totals() == {"x": 1}
    assert run.loop.statistics.failed_attempts == 1


def test_a_run_waits_until_the_rate_allows_more() -> None:
    world = World(MemoryLog({"a": ["x"] * 12}))
    planned: list[tuple[float, int]] = []
    clock = Ticks()
    options = {"max_records_per_second": 4.0, "message_timeout_seconds": 1e9}
    run = Run(world, clock=clock, max_batch_records=100, options=options)
    plan = run.spout.plan

    def watched(last: Any, limit: int) -> Any:
        planned.append((clock.seconds, limit))
        return plan(last, limit)

    run.spout.plan = watched  # type: ignore[method-assign]
    run.complete()
    assert world.table.totals() == {"x": 12}
    assert planned[0][1] == 4
    for seconds, _ in planned:
        assert sum(limit for at, limit in planned if at <= seconds) <= 4 + 4 * seconds


@each("name", ["max_batch_latency_seconds", "max_records_per_second"])
@each("value", [0, -1.0, float("nan"), float("inf"), True, "2"])
def test_a_goal_that_cannot_be_meant_is_refused(name: str, value: object) -> None:
    source = MemorySpout("word string")
    with pytest.raises(TopologyError, match=f"{name} is .*; it must be a number above 0"):
        TransactionalTopologyBuilder("t", "lines", OpaqueSpout(source), **{name: value})  # type: ignore[arg-type]
