"""Which windows a time is in, beside a plain search with Python's own calendar."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.lists import each

from txstream import Hopping, TopologyError, Tumbling

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia", "Australia/Lord_Howe")


def micros(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def windows(window: Tumbling, *moments: datetime) -> list[list[tuple[datetime, datetime]]]:
    found = window.windows(np.array([micros(one) for one in moments], np.int64))
    return [
        [
            (EPOCH + timedelta(microseconds=int(start[at])), EPOCH + timedelta(microseconds=int(end[at])))
            for start, end in found
        ]
        for at in range(len(moments))
    ]


def steps(size: str, zone: str, origin: datetime, near: datetime) -> Iterator[datetime]:
    """The beginnings of windows around a moment, one after the other, by the calendar alone."""
    number, unit = int(size[:-1]), size[-1]
    days = number if unit == "d" else 1
    first = origin + ((near - origin) // timedelta(days=days) - 8) * timedelta(days=days)
    for at in itertools.count():
        begins, ends = (
            (first + (at + more) * timedelta(days=days)).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
            for more in (0, 1)
        )
        if unit == "d":
            yield begins
        else:
            part = timedelta(**{{"h": "hours", "m": "minutes"}[unit]: number})
            while begins < ends:
                yield begins
                begins += part


@settings(max_examples=300, deadline=None)
@given(
    st.datetimes(datetime(1950, 1, 1), datetime(2100, 1, 1)),
    st.sampled_from(["1d", "7d", "1h", "6h", "15m", "90m"]),
    st.sampled_from(ZONES),
    st.sampled_from([datetime(1970, 1, 1), datetime(2024, 1, 1, 6, 30)]),
    st.integers(1, 4),
)
def test_a_time_is_in_the_windows_that_the_calendar_says(
    local: datetime, size: str, zone: str, origin: datetime, many: int
) -> None:
    moment = local.replace(tzinfo=UTC)
    window = Tumbling(size, time="at", zone=zone, origin=origin)
    if many > 1:
        window = Hopping(
            f"{many * int(size[:-1])}{size[-1]}", every=size, time="at", zone=zone, origin=origin
        )
    bounds: list[datetime] = []
    for begins in steps(size, zone, origin, local):
        bounds.append(begins)
        if begins > moment and sum(one > moment for one in bounds) > many:
            break
    last = max(at for at, one in enumerate(bounds) if one <= moment)
    wanted = [(bounds[last - more], bounds[last - more + many]) for more in reversed(range(many))]
    assert windows(window, moment) == [wanted]


def test_days_where_clocks_change_have_23_and_25_hours() -> None:
    berlin, day = ZoneInfo("Europe/Berlin"), Tumbling("1d", time="at", zone="Europe/Berlin")
    lengths = []
    for number in (28, 29, 30):  # of March 2026, when summer time begins
        ((start, end),) = windows(day, datetime(2026, 3, number, 12, tzinfo=berlin))[0]
        assert start == datetime(2026, 3, number, tzinfo=berlin).astimezone(UTC)
        lengths.append((end - start).total_seconds() / 3600)
    for number in (24, 25, 26):  # of October, when it ends
        ((start, end),) = windows(day, datetime(2026, 10, number, 12, tzinfo=berlin))[0]
        lengths.append((end - start).total_seconds() / 3600)
    assert lengths == [24, 23, 24, 24, 25, 24]


def test_a_window_has_its_start_and_not_its_end() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    tick, hour = timedelta(microseconds=1), timedelta(hours=1)
    found = windows(Tumbling("1h", time="at"), noon - tick, noon, noon + hour - tick, noon + hour)
    assert [one for ((one, _),) in found] == [noon - hour, noon, noon, noon + hour]
    assert all(end - start == hour for ((start, end),) in found)


def test_times_at_the_ends_of_the_calendar_have_windows() -> None:
    for size in ("1h", "1d", "7d"):
        window = Tumbling(size, time="at", zone="Asia/Kolkata")
        far = np.array([-(10**17), 10**17, micros(datetime.max.replace(tzinfo=UTC))], np.int64)
        ((starts, ends),) = window.windows(far)
        assert (starts <= far).all()
        assert (far < ends).all()


@each(
    "given, why",
    [
        ({"size": "7h"}, "whole number of times"),
        ({"size": "36h"}, "whole days, or a part of a day"),
        ({"size": "0s"}, "write a length"),
        ({"size": 60}, "write a length"),
        ({"time": ""}, "must name the field"),
        ({"grace": "soon"}, "grace is 'soon'"),
        ({"zone": "Europe/Berlinn"}, "knows no zone 'Europe/Berlinn'"),
        ({"origin": EPOCH}, "without a zone"),
        ({"size": "1h", "every": "25m"}, "fits into it a whole number"),
        ({"size": "1h", "every": "1h"}, "two to 1,000 times"),
        ({"size": "1h", "every": ""}, "every is ''"),
    ],
)
def test_what_makes_no_windows_is_refused(given: dict[str, Any], why: str) -> None:
    kind = Hopping if "every" in given else Tumbling
    with pytest.raises(TopologyError, match=why):
        kind(**{"size": "1h", "time": "at", **given})
