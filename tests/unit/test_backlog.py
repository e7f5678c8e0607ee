"""Sharing a batch's limit between partitions."""

from __future__ import annotations

from hypothesis import given, strategies as st

from txstream.spouts.backlog import share_limit

BACKLOGS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(-5, 10_000), max_size=40)


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


def test_of_many_partitions_some_get_a_piece_in_their_turn() -> None:
    positions = {f"p{number:03}": 0 for number in range(1_000)}
    for _ in range(50):
        backlogs = {name: 1_000 - position for name, position in positions.items()}
        shares = share_limit(backlogs, 5_000, sum(positions.values()))
        assert len(shares) == 20
        assert set(shares.values()) == {250}
        for name, taken in shares.items():
            positions[name] += taken
    assert set(positions.values()) == {250}


def test_every_turn_comes_beside_a_large_backlog() -> None:
    backlogs = {"large": 1_000_000} | {f"p{number:03}": 3 for number in range(999)}
    for turn in range(30):
        shares = share_limit(backlogs, 1_000, 1_000 * turn)
        assert sum(shares.values()) == 1_000
        backlogs = {name: backlog - shares.get(name, 0) for name, backlog in backlogs.items()}
    assert {name for name, backlog in backlogs.items() if backlog} == {"large"}


def test_those_in_their_turn_may_fill_the_limit_with_all_they_have() -> None:
    assert share_limit({"a": 1, "b": 1, "c": 1}, 1) == {"a": 1}
    assert share_limit({f"p{number:02}": 2 for number in range(40)}, 20) == {
        f"p{number:02}": 2 for number in range(10)
    }


SMALL_BACKLOGS = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.integers(0, 4), max_size=40)


@given(BACKLOGS | SMALL_BACKLOGS, st.integers(1, 50) | st.integers(1, 5000), st.integers(0, 1 << 60))
def test_nothing_is_given_twice_or_left_over(backlogs: dict[str, int], limit: int, progress: int) -> None:
    shares = share_limit(backlogs, limit, progress)
    assert all(0 < taken <= backlogs[name] for name, taken in shares.items())
    waiting = {name: backlog for name, backlog in backlogs.items() if backlog > 0}
    assert sum(shares.values()) == min(limit, sum(waiting.values()))
    if len(waiting) <= min(limit, 16):
        assert set(shares) == set(waiting)
    assert shares == share_limit(dict(reversed(backlogs.items())), limit, progress)
