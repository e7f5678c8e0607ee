"""Sharing a batch's limit between partitions."""

from __future__ import annotations

from hypothesis import given, strategies as st

from txstream.spouts.backlog import share_limit

BACKLOGS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(-5, 10_000), max_size=12)


def test_what_fits_is_taken_whole() -> None:
    assert share_limit({"a": 3, "b": 0, "c": 7}, 10) == {"a": 3, "c": 7}
    assert share_limit({}, 10) == {}


def test_a_large_backlog_gets_more_and_a_small_one_does_not_starve() -> None:
    shares = share_limit({"large": 1_000_000, "small": 100}, 1000)
    assert shares["small"] == 100
    assert shares["large"] == 900
    shares = share_limit({"large": 1_000_000, "middle": 10_000, "other": 10_000}, 999)
    assert min(shares["middle"], shares["other"]) >= 166
    assert shares["large"] > 600


def test_with_fewer_records_than_partitions_the_turn_goes_round() -> None:
    backlogs = dict.fromkeys("abc", 100)
    positions = dict.fromkeys("abc", 0)
    for _ in range(30):
        for name, taken in share_limit(backlogs, 1, sum(positions.values())).items():
            positions[name] += taken
    assert positions == {"a": 10, "b": 10, "c": 10}


@given(BACKLOGS, st.integers(1, 5000), st.integers(0, 1 << 60))
def test_nothing_is_given_twice_or_left_over(backlogs: dict[str, int], limit: int, progress: int) -> None:
    shares = share_limit(backlogs, limit, progress)
    assert all(0 < taken <= backlogs[name] for name, taken in shares.items())
    assert sum(shares.values()) == min(limit, sum(b for b in backlogs.values() if b > 0))
    if limit >= len(backlogs):
        assert set(shares) == {name for name, backlog in backlogs.items() if backlog > 0}
    assert shares == share_limit(dict(reversed(backlogs.items())), limit, progress)
