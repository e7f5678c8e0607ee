"""Topics that are read before all others (`table_first`). Each plan begins where the one before it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from txstream.core.errors import TopologyError
from txstream.spouts.kafka import KNOWN, KafkaRange, KafkaSource
from txstream.spouts.kafka.read_first import share_first

Places = dict[str, KafkaRange]
UNREADABLE = -1


def planned(ends: Mapping[str, int], last: Places, limit: int, cap: int = 1000) -> tuple[Places, Places]:
    """Return what the next batch takes, and the places after it."""
    there = {name: end for name, end in ends.items() if end != UNREADABLE}
    whole = {name: end - (last[name].end if name in last else 0) for name, end in there.items()}
    shares, _ = share_first(
        lambda name: name.startswith("users/"),
        {name: min(left, limit, cap) for name, left in whole.items()},
        last,
        set(ends) - set(there),
        whole,
        limit,
        sum(place.end for place in last.values()),
    )
    took = {
        name: KafkaRange(there[name] - whole[name], there[name] - whole[name] + share)
        for name, share in shares.items()
        if share
    }
    return took, {**last, **took}


def sizes(took: Places) -> dict[str, int]:
    return {name: one.end - one.start for name, one in took.items()}


def test_the_first_are_read_to_their_ends_before_any_other() -> None:
    ends = {"users/0": 25, "users/1": 3, "orders/0": 50}
    places: Places = {}
    found = []
    for _ in range(5):
        took, places = planned(ends, places, 10)
        found.append(sizes(took))
        assert sum(found[-1].values()) == 10
    assert [one.get("orders/0", 0) for one in found] == [0, 0, 2, 10, 10]
    assert sum(one.get("users/0", 0) for one in found[:3]) == 25


def test_from_then_on_all_are_read_alike() -> None:
    _, places = planned({"users/0": 5, "orders/0": 50}, {}, 10)
    assert places["orders/0"].end == 5
    took, _ = planned({"users/0": 1000, "orders/0": 50}, places, 10)
    assert sizes(took)["orders/0"] > 0


def test_a_table_that_grows_while_it_is_read_holds_nothing_up() -> None:
    """The batch that reads it to its end may read others; it need not stand still."""
    places: Places = {}
    for round_ in range(1, 4):
        took, places = planned({"users/0": 8 * round_, "orders/0": 50}, places, 10)
        assert sizes(took) == {"users/0": 8, "orders/0": 2} or round_ > 1
    assert places["orders/0"].end > 2


def test_while_one_of_the_first_cannot_be_read_the_others_wait() -> None:
    took, places = planned({"users/0": 3, "users/1": UNREADABLE, "orders/0": 9}, {}, 100)
    assert sizes(took) == {"users/0": 3}
    took, _ = planned({"users/0": 3, "users/1": 2, "orders/0": 9}, places, 100)
    assert sizes(took) == {"users/1": 2, "orders/0": 9}


def test_a_cap_of_a_partition_is_no_end() -> None:
    took, places = planned({"users/0": 7, "orders/0": 9}, {}, 100, cap=4)
    assert sizes(took) == {"users/0": 4}
    took, _ = planned({"users/0": 7, "orders/0": 9}, places, 100, cap=4)
    assert sizes(took) == {"users/0": 3, "orders/0": 4}


def test_a_first_place_is_no_record() -> None:
    begun = {"orders/0": KafkaRange(5, 5, first_place=KNOWN), "users/0": KafkaRange(0, 0, first_place=KNOWN)}
    took, _ = planned({"users/0": 20, "orders/0": 9}, begun, 10)
    assert sizes(took) == {"users/0": 10}


def test_it_names_topics_of_the_source() -> None:
    assert KafkaSource(["users", "orders"], table_first="users").table_first == ("users",)
    assert KafkaSource(topic_pattern="u.*", table_first=["users"]).table_first == ("users",)
    wrong: dict[str, Any] = {"table_first": "user"}
    with pytest.raises(
        TopologyError, match="table_first names 'user', and the source reads the topics 'users'"
    ):
        KafkaSource(["users", "orders"], **wrong)
