"""The watermark as a fold: what it waits for, what it ignores, and that it never falls."""

from __future__ import annotations

from typing import Any

from hypothesis import given, strategies as st

from txstream.plugins.windows.times import DAY, SECOND
from txstream.plugins.windows.watermark import WindowKeeper, counted, heard, later, told, watermark

MINUTE = 60 * SECOND
PARTITIONS = st.sampled_from(["p0", "p1", "p2"])
LATEST = st.dictionaries(PARTITIONS, st.integers(-(10**15), 10**15))


@given(st.none() | st.integers(-(10**15), 10**15), LATEST, st.sets(PARTITIONS), st.integers(0, 10**12))
def test_it_never_falls_and_waits_for_each_partition(
    before: int | None, latest: dict[str, int], unread: set[str], grace: int
) -> None:
    found, held_by = watermark(before, latest, unread, grace)
    assert before is None or (found is not None and found >= before)
    assert set(held_by) <= unread
    if found != before:
        assert found is not None
        assert all(latest[partition] - grace >= found for partition in unread)
        assert any(latest[partition] - grace == found for partition in unread)


def test_equal_times_and_no_grace_close_what_ends_at_that_time() -> None:
    # The end is not after the watermark: a window of [0, 1 h) closes once each partition has seen 1 h.
    assert watermark(None, {"p0": 60 * MINUTE, "p1": 60 * MINUTE}, {"p0", "p1"}, 0) == (60 * MINUTE, [])


def test_an_idle_partition_holds_nothing_back() -> None:
    latest = {"idle": MINUTE, "busy": 90 * MINUTE}
    assert watermark(None, latest, {"busy"}, 0) == (90 * MINUTE, [])
    assert watermark(None, latest, {"idle", "busy"}, 0) == (MINUTE, ["idle"])  # it has records again


def test_a_new_partition_holds_back_until_something_of_it_is_committed() -> None:
    latest = {"old": 90 * MINUTE}
    assert watermark(80 * MINUTE, latest, {"old", "new"}, 0) == (80 * MINUTE, ["new"])
    assert watermark(80 * MINUTE, {**latest, "new": 85 * MINUTE}, {"old", "new"}, 0) == (85 * MINUTE, ["new"])


def test_a_batch_without_ranges_moves_nothing() -> None:
    assert watermark(MINUTE, {"p0": 90 * MINUTE}, (), 0) == (MINUTE, [])
    assert watermark(None, {"p0": 90 * MINUTE}, (), 0) == (None, [])


def test_a_record_from_the_year_2099_says_nothing_and_a_fast_clock_is_the_leaders() -> None:
    clock = 56 * 365 * DAY
    assert counted(clock - MINUTE, clock) == clock - MINUTE
    assert counted(clock + 5 * MINUTE, clock) == clock
    assert counted(clock + 73 * 365 * DAY, clock) is None


def test_what_tasks_tell_is_what_the_driver_hears() -> None:
    assert heard([told({"p0": 3}), {}, told({}), {b"other": b"x"}, told({"p1": 2})]) == [{"p0": 3}, {"p1": 2}]
    assert later({"p0": 3}, {"p0": 2, "p1": 1}, {"p1": 4}) == {"p0": 3, "p1": 4}


def batch(keeper: WindowKeeper, txid: int, before: Any, latest: dict[str, int], *waiting: str) -> Any:
    """Plan, process and commit one batch."""
    horizon = keeper.next(before, latest.keys(), waiting, 0.0)
    keeper.committed(txid, keeper.learned(horizon, [told(latest)]))
    return horizon


def test_a_topology_that_was_stopped_for_a_week_closes_nothing_early() -> None:
    keeper = WindowKeeper(0)
    one = batch(keeper, 1, None, {"p0": 0, "p1": MINUTE})
    # A week later p0 is read first; what is unread of p1 holds the watermark back, and no clock moves it.
    two = batch(keeper, 2, one, {"p0": 7 * DAY}, "p1")
    three = batch(keeper, 3, two, {"p0": 7 * DAY + MINUTE}, "p1")
    four = batch(keeper, 4, three, {"p1": 7 * DAY})
    five = batch(keeper, 5, four, {"p0": 7 * DAY, "p1": 7 * DAY})
    assert [one["watermark"] for one in (one, two, three, four, five)] == [None, 0, MINUTE, MINUTE, 7 * DAY]
    assert [one["late"] for one in (two, three, four)] == [None, 0, MINUTE]
    assert three["held_by"] == ["p1"]


def test_a_new_leader_goes_on_from_what_the_ledger_has() -> None:
    keeper = WindowKeeper(MINUTE)
    one = batch(keeper, 1, None, {"p0": 5 * MINUTE})
    learned = keeper.learned(one, [])
    follower = WindowKeeper(MINUTE)
    follower.committed(1, learned)
    assert follower.next(one, {"p0"}, (), 0.0) == keeper.next(one, {"p0"}, (), 0.0)
    assert follower.next(one, {"p0"}, (), 0.0)["through"] == 1


def test_what_is_learned_counts_once_it_is_committed() -> None:
    keeper = WindowKeeper(0)
    horizon = keeper.next(None, {"p0"}, (), 0.0)
    keeper.learned(horizon, [told({"p0": MINUTE})])  # its attempt fails
    assert keeper.next(horizon, {"p0"}, (), 0.0)["watermark"] is None
