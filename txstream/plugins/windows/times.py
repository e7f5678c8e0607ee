"""Windows of time: which ones a record counts in. Pure, but for the data of time zones.

Invariants. The windows of a `Tumbling` follow each other without a gap, from the first year to the last, and
each time is in exactly one. A window has its start and not its end. Days are those of a zone, so where clocks
change one has 23 or 25 hours; what is shorter than a day begins anew with each day, in hours that pass, and
the last one of a day ends with the day. The windows of a `Hopping` each span the same number of steps, which
follow each other as the windows of a `Tumbling` do.

Times are microseconds since 1970, as Arrow has them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Any, ClassVar, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

from txstream.core.errors import TopologyError
from txstream.core.ledger_retention import seconds_of

Times: TypeAlias = npt.NDArray[np.int64]

SECOND = 1_000_000
DAY = 86_400 * SECOND
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATES = date.min.toordinal(), date.max.toordinal()
_MOST_AT_ONCE = 1_000


def micros(moment: datetime) -> int:
    """Return a point of time in microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def moment(time: int) -> datetime:
    """Return the point of time, in UTC; the last one that there is for any after it."""
    try:
        return _EPOCH + timedelta(microseconds=time)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def length(what: str, text: str, *, may_be_zero: bool = False) -> int:
    """Return a length such as "1h" in microseconds. Raises TopologyError for anything else."""
    seconds = seconds_of(text) if isinstance(text, str) else None
    if seconds is None or seconds >= timedelta.max.total_seconds() or not (seconds or may_be_zero):
        raise TopologyError(f"{what} is {text!r}; write a length such as '1d', '1h', '15m' or '30s'")
    return int(seconds) * SECOND


@dataclass(frozen=True)
class Tumbling:
    """Windows that follow each other: `Tumbling("1h", time="at", grace="10m", zone="Europe/Berlin")`.

    size: "1d", "1h", "15m", "30s". Whole days, or a part of which a day has a whole number.
    time: the field of the tuples, a timestamp, that says when something happened.
    grace: how far a record may be behind the latest of its partition and still be in time.
    zone: whose days are meant; a name such as "UTC" or "Europe/Berlin".
    origin: when some window of whole days began, in the zone, by default at 00:00 on 1 January 1970, a
        Thursday: `datetime(2024, 1, 1)` makes weeks of "7d" begin on Mondays, `datetime(2024, 1, 1, 6)` days
        at six. Raises TopologyError for what makes no windows.
    """

    size: str
    time: str
    grace: str = "0s"
    zone: str = "UTC"
    origin: datetime | None = None

    column_of: ClassVar[str] = "WindowState, which asks what becomes of late records (late=)"

    def __post_init__(self) -> None:
        named = f"{type(self).__name__}({self.size!r})"
        if not self.time or not isinstance(self.time, str):
            raise TopologyError(f"{named}: time is {self.time!r}; it must name the field that has the time")
        length(f"{named}: grace", self.grace, may_be_zero=True)
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise TopologyError(
                f"{named}: this machine knows no zone {self.zone!r}; write a name such as 'UTC' or "
                f"'Europe/Berlin' (pip install tzdata brings the names where the system has none)"
            ) from error
        if self.origin is not None and (not isinstance(self.origin, datetime) or self.origin.tzinfo):
            raise TopologyError(
                f"{named}: origin is {self.origin!r}; it must be a datetime without a zone, since zone says "
                f"whose clock is meant"
            )
        self._check_length("size", self.size)

    def _check_length(self, name: str, text: str) -> None:
        micro = length(f"{type(self).__name__}: {name}", text)
        if micro % DAY and DAY % micro:
            raise TopologyError(
                f"{type(self).__name__}: {name} is {text!r}; it must be whole days, or a part of a day that "
                f"fits into it a whole number of times, such as '1h' or '15m'"
            )

    @property
    def step(self) -> str:
        """How often a window begins."""
        return self.size

    @property
    def windows_of_a_time(self) -> int:
        """How many windows each time is in."""
        return 1

    def declaration(self) -> dict[str, Any]:
        """Return what must not change while there are windows, as JSON values: `grace` may."""
        origin = None if self.origin is None else self.origin.isoformat()
        return {"size": self.size, "step": self.step, "time": self.time, "zone": self.zone, "origin": origin}

    @functools.cached_property
    def grace_micros(self) -> int:
        return length("grace", self.grace, may_be_zero=True)

    def windows(self, times: Times) -> list[tuple[Times, Times]]:
        """Return the windows that these times are in: for each time its first window, for each its second
        and so on. Each pair is starts and ends; the window that ends first comes first."""
        count = self.windows_of_a_time
        cells, places = np.unique(self._starts(times), return_inverse=True)
        # The steps around each one, from the oldest that a window of it begins with to the last one's end.
        around = [cells]
        for _ in range(count - 1):
            around.insert(0, self._starts(around[0] - 1))
        for _ in range(count):
            around.append(self._ends(around[-1]))
        return [(around[at][places], around[at + count][places]) for at in range(count)]

    # --- steps --------------------------------------------------------------------------------------

    @functools.cached_property
    def _of_days(self) -> tuple[int, int, timedelta, tzinfo]:
        """The days of a step (1 for a part of a day), the ordinal of one that a step begins with, when in a
        day that is, and the zone."""
        origin = self.origin or datetime(1970, 1, 1)
        into = origin - datetime(origin.year, origin.month, origin.day)
        days = max(1, length("size", self.step) // DAY)
        return days, origin.toordinal(), into, ZoneInfo(self.zone)

    def _starts(self, times: Times) -> Times:
        """Return where the step of each time begins."""
        days = self._days_around(times)
        found = days[np.searchsorted(days, times, side="right") - 1]
        part = length("size", self.step)
        return found if part >= DAY else found + (times - found) // part * part

    def _ends(self, starts: Times) -> Times:
        """Return where the steps end that begin there."""
        days = self._days_around(starts)
        ends = days[np.searchsorted(days, starts, side="right")]
        part = length("size", self.step)
        return ends if part >= DAY else np.minimum(ends, starts + part)

    def _days_around(self, times: Times) -> Times:
        """Return where days, or steps of several days, begin: those of these times, those before them and
        those after them, in order."""
        found: set[int] = set()
        for day in np.unique(times // DAY).tolist():
            found.update(self._days_near(day))
        return np.array(sorted(found), np.int64)

    def _days_near(self, day: int) -> tuple[int, ...]:
        days, first, into, zone = self._of_days
        return _days_near(day, days, first, into, zone)


@functools.lru_cache(maxsize=10_000)
def _days_near(day: int, days: int, first: int, into: timedelta, zone: tzinfo) -> tuple[int, ...]:
    """Return where the steps begin that a day of UTC, counted from 1970, may touch, and the next after it."""
    at = (_EPOCH.toordinal() + day - first) // days
    return tuple(_begin(first + (at + more) * days, into, zone) for more in (-2, -1, 0, 1, 2))


def _begin(ordinal: int, into: timedelta, zone: tzinfo) -> int:
    if not _DATES[0] < ordinal < _DATES[1]:  # no time is so far away
        return (ordinal - _EPOCH.toordinal()) * DAY
    local = datetime.fromordinal(ordinal) + into
    return micros(local.replace(tzinfo=zone))


@dataclass(frozen=True)
class Hopping(Tumbling):
    """Windows that overlap: `Hopping("1h", every="15m", time="at", grace="5m")`. Every quarter of an hour one
    begins, and each record counts in four. `size` is `every` some whole number of times. The other arguments
    are those of `Tumbling`; what is said of its windows is so of the steps between two beginnings here."""

    every: str = ""

    def _check_length(self, name: str, text: str) -> None:
        size = length("Hopping: size", self.size)
        super()._check_length("every", self.every)
        times, rest = divmod(size, length("Hopping: every", self.every))
        if rest or not 1 < times <= _MOST_AT_ONCE:
            raise TopologyError(
                f"Hopping: size is {self.size!r} and every {self.every!r}; size must be every two to "
                f"{_MOST_AT_ONCE:,} times"
            )

    @property
    def step(self) -> str:
        return self.every

    @property
    def windows_of_a_time(self) -> int:
        return length("size", self.size) // length("every", self.every)
