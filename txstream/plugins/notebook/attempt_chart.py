"""Attempts from left to right, partitions below each other: the drawing of `compare --html` and of the page.

A column is one attempt. All charts of one page have one time axis, counted from each run's first attempt:
what began after the same time is at the same place. The axis is as wide as the busiest run needs for its
columns; a pause in which no run began an attempt is as wide as it was long. A cell has the colour of the txid
that committed its tuples, even if its attempt had another txid. Of very many partitions, neighbours share a
row.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Protocol

from mako.template import Template

from txstream.core.failing_batch import SEARCHED
from txstream.core.wording import counted, in_order

COLOURS = 7
"""The number of colours in `look.css`; neighbouring txids differ."""

MOST_ROWS = 64
"""Of more partitions than that, neighbours share a row, so that there are at most half as many rows."""

_CELL = 28
_ROWS = 260  # the greatest height of all rows together
_HIGHEST = 30
_LOWEST = 8
_TOP = 54
_LETTERS = 14
_PAUSE_SECONDS = 1.0  # a shorter pause between two attempts is not drawn
_SECOND = 30  # the width of a second of a longer pause
_LONGEST = 240
_MOST_OF_IT = 0.5  # of a pause, which then has its reason
_WIDE = 90  # a pause this wide has room for words
_LEAST_ROOM = 40  # for a number of seconds
_TICK = 120  # between two times on the axis

Range = tuple[int, int]
"""Positions `[start, end)` of one partition."""


class Fate(StrEnum):
    """What became of an attempt.

    WRITTEN: it was committed, but its driver died before that was noted, and the txid was processed again.
    DROPPED: it was given up, because an earlier batch failed or its driver died.
    """

    OPEN = "open"
    COMMITTED = "committed"
    WRITTEN = "written"
    FAILED = "failed"
    DROPPED = "dropped"


_FATES = {
    Fate.OPEN: "was open at the end",
    Fate.COMMITTED: "committed",
    Fate.WRITTEN: "was written, its driver died, and it was written again: counted twice",
    Fate.FAILED: "failed",
    Fate.DROPPED: "was dropped",
}


class Made(Protocol):
    """One attempt; times in seconds, on any one clock."""

    @property
    def txid(self) -> int: ...
    @property
    def ranges(self) -> Mapping[str, Range]: ...
    @property
    def began(self) -> float: ...
    @property
    def ended(self) -> float | None: ...
    @property
    def fate(self) -> Fate: ...


class Away(Protocol):
    """An outage of a partition; one that has not ended has None there."""

    @property
    def partition(self) -> str: ...
    @property
    def began(self) -> float: ...
    @property
    def ended(self) -> float | None: ...


@dataclass(frozen=True)
class Run:
    """What is drawn: attempts in the order in which they began, outages, and moments with a word each.
    `waits` are outages of everything, with what was waited for; `until`, if given, is the present."""

    made: Sequence[Made]
    outages: Sequence[Away] = ()
    deaths: Sequence[tuple[float, str]] = ()
    handovers: Sequence[tuple[float, str]] = ()
    waits: Sequence[tuple[float, float, str]] = ()
    until: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.until, *(one.ended or one.began for one in self.made)) - self.made[0].began


@dataclass(frozen=True)
class Cell:
    """The tuples of one partition in one attempt. `home` is the txid that committed most of them."""

    x: float
    y: int
    home: int | None
    fate: Fate
    title: str

    @property
    def colour(self) -> int:
        return (self.home or 0) % COLOURS


@dataclass(frozen=True)
class Mark:
    """A mark with a text, `width` wide from `x` on, at the row at `y` or over all rows."""

    x: float
    width: float
    text: str
    y: int | None = None


@dataclass
class Chart:
    """The drawing of one run. `columns` are attempts, `txids` theirs, `ticks` seconds since the start."""

    width: float
    height: int
    rows: list[Mark] = field(default_factory=list)
    columns: list[Mark] = field(default_factory=list)
    txids: list[int] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    outages: list[Mark] = field(default_factory=list)
    pauses: list[Mark] = field(default_factory=list)
    deaths: list[Mark] = field(default_factory=list)
    handovers: list[Mark] = field(default_factory=list)
    ticks: list[Mark] = field(default_factory=list)
    row: int = _HIGHEST
    cell: int = _CELL
    top: int = _TOP


class Axis:
    """The time axis of all charts: the horizontal place of each moment, in seconds since a run's start.

    Invariant: places grow with time, and two attempts of one run are at least a column apart.
    """

    def __init__(self, runs: Sequence[Run], left: int, pause_seconds: float = _PAUSE_SECONDS) -> None:
        self.left = left
        starts = sorted(
            (one.began - run.made[0].began, number) for number, run in enumerate(runs) for one in run.made
        )
        self._times: list[float] = []
        self._places: list[float] = []
        free = [float(left)] * len(runs)  # where the next column of each run may begin
        place, before = float(left), 0.0
        for moment, run in [*starts, (max(run.seconds for run in runs), None)]:
            if moment - before >= pause_seconds:
                self._add(before + (moment - before) / 1e6, place + _CELL)
                place += _CELL + min(_LONGEST, (moment - before) * _SECOND)
            place = max(place, max(free) if run is None else free[run])
            if run is not None:
                free[run] = place + _CELL
            self._add(moment, place)
            before = moment
        self.end = place

    def _add(self, moment: float, place: float) -> None:
        self._times.append(moment)
        self._places.append(place)

    def at(self, moment: float) -> float:
        after = bisect_right(self._times, moment)
        if after == 0 or after == len(self._times):
            return self._places[0 if after == 0 else -1]
        (t0, t1), (x0, x1) = self._times[after - 1 : after + 1], self._places[after - 1 : after + 1]
        return x0 + (x1 - x0) * (moment - t0) / (t1 - t0)

    def ticks(self, y: int) -> Iterator[Mark]:
        """Yield the seconds at places that leave room for each other."""
        free = 0.0
        for moment, place in zip(self._times, self._places, strict=True):
            if place >= free:
                yield Mark(place, 0, f"{moment:.1f} s", y)
                free = place + _TICK


def charts(runs: Sequence[Run], *, pause_seconds: float = _PAUSE_SECONDS) -> list[Chart]:
    """Lay out runs, each with an attempt, on one time axis. Shorter pauses between attempts are not drawn."""
    shared = [_rows_of(run) for run in runs]
    names = {name for rows in shared for name in rows.values()}
    axis = Axis(runs, 14 + 7 * max(map(len, names), default=0), pause_seconds)
    return [_chart(run, rows, axis, pause_seconds) for run, rows in zip(runs, shared, strict=True)]


def svg(chart: Chart, label: str, link: Callable[[int], str] | None = None) -> str:
    """Return a chart as SVG for a page with `look.css` and `pattern`. `link` is where a txid leads."""
    drawn: str = _template().get_def("chart").render(chart=chart, label=label, link=link)
    return drawn


def legend(*, compared: bool) -> str:
    """Return the hatch pattern that all charts of a page use, and what the marks mean. `compared` are runs
    through faults that were made, side by side."""
    told: str = _template().get_def("legend").render(compared=compared)
    return told


def look() -> str:
    """Return the style sheet of every page that has such a drawing: colours, and the chart's marks."""
    return files("txstream.plugins.notebook").joinpath("look.css").read_text(encoding="utf-8")


@cache
def _template() -> Template:
    return Template(  # noqa: S702 - every expression is escaped
        text=files("txstream.plugins.notebook").joinpath("attempt_chart.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )


def _rows_of(run: Run) -> dict[str, str]:
    """Return the name of each partition's row, in order."""
    partitions = sorted(
        {name for one in run.made for name in one.ranges} | {one.partition for one in run.outages},
        key=in_order,
    )
    if len(partitions) <= MOST_ROWS:
        return {name: _short(name) for name in partitions}
    size = -(-len(partitions) // (MOST_ROWS // 2))
    rows: dict[str, str] = {}
    for first in range(0, len(partitions), size):
        group = partitions[first : first + size]
        rows |= dict.fromkeys(group, f"{_short(group[0])} to {_short(group[-1])}")
    return rows


def _chart(run: Run, rows: Mapping[str, str], axis: Axis, pause_seconds: float) -> Chart:
    began, ended = run.made[0].began, run.made[0].began + run.seconds
    names = list(dict.fromkeys(rows.values()))
    row = max(_LOWEST, min(_HIGHEST, _ROWS // max(1, len(names))))
    row_of = {name: _TOP + number * row for number, name in enumerate(names)}
    bottom = _TOP + len(names) * row
    drawn = Chart(axis.end + max(_LEAST_ROOM, axis.left), bottom + 22, row=row)
    drawn.rows = [Mark(axis.left, axis.end - axis.left, name, y) for name, y in row_of.items()]
    drawn.ticks = list(axis.ticks(bottom))
    homes = _homes(run.made)
    attempts: dict[int, int] = {}
    for one in run.made:
        x = axis.at(one.began - began)
        number = attempts[one.txid] = attempts.get(one.txid, 0) + 1
        drawn.columns.append(Mark(x, _CELL, f"{one.txid}{chr(8242) * (number - 1)}"))
        drawn.txids.append(one.txid)
        told = f"attempt {number} of txid {one.txid} {_FATES[one.fate]}"
        held: dict[str, list[str]] = {}
        for partition in one.ranges:
            held.setdefault(rows[partition], []).append(partition)
        for name, partitions in held.items():
            home = _main_home(one, partitions, homes)
            title = f"{_what(one, partitions)}: {told}"
            if home is not None and home != one.txid:
                title += f"; txid {home} committed these tuples"
            drawn.cells.append(Cell(x, row_of[name], home, one.fate, title))
    for outage in run.outages:
        x = axis.at(outage.began - began)
        end = axis.at((outage.ended if outage.ended is not None else ended) - began)
        text = f"partition {_short(outage.partition)} away"
        y = row_of[rows[outage.partition]]
        drawn.outages.append(Mark(x, max(end - x, _CELL), text, y))
    drawn.outages = _told_once(drawn.outages)
    for since, till, text in run.waits:
        x = axis.at(since - began)
        drawn.outages.append(Mark(x, max(axis.at(till - began) - x, _CELL), text))
    drawn.pauses = list(_pauses(run, drawn.columns, axis.at(ended - began), ended, pause_seconds))
    drawn.deaths = [Mark(axis.at(at - began), 0, text) for at, text in run.deaths]
    drawn.handovers = [Mark(axis.at(at - began), 0, text) for at, text in run.handovers]
    return drawn


def _what(one: Made, partitions: Sequence[str]) -> str:
    if len(partitions) == 1:
        start, end = one.ranges[partitions[0]]
        return f"{partitions[0]}, {start:,} to {end:,}"
    records = sum(end - start for start, end in map(one.ranges.__getitem__, partitions))
    return f"{len(partitions):,} partitions, {counted(records, 'record')}"


def _main_home(
    one: Made, partitions: Sequence[str], homes: Mapping[str, list[tuple[Range, int]]]
) -> int | None:
    """Return the txid that committed most of what these partitions held."""
    if one.fate is Fate.COMMITTED:
        return one.txid
    tuples: dict[int, int] = {}
    for partition in partitions:
        start, end = one.ranges[partition]
        for (first, last), txid in homes.get(partition, []):
            common = min(last, end) - max(first, start)
            if common > 0:
                tuples[txid] = tuples.get(txid, 0) + common
    return max(tuples, key=lambda txid: (tuples[txid], txid)) if tuples else None


def _told_once(outages: Sequence[Mark]) -> list[Mark]:
    """Return one mark for each row, and words for the first of those that begin at one place."""
    told: dict[float, int] = {}
    for one in outages:
        told[one.x] = told.get(one.x, 0) + 1
    marks: dict[tuple[float, int | None], Mark] = {}
    for one in outages:
        more = told.pop(one.x, 0)
        text = one.text if more == 1 else f"{more} partitions away" if more else ""
        marks.setdefault((one.x, one.y), Mark(one.x, one.width, text, one.y))
    return list(marks.values())


def _pauses(
    run: Run, columns: Sequence[Mark], end: float, ended: float, pause_seconds: float
) -> Iterator[Mark]:
    """Yield the times in which a run began no attempt for so long that it is worth a word, which is why."""
    made = run.made
    nexts = [*((one.began, column.x) for one, column in zip(made, columns, strict=True)), (ended, end)]
    for one, column, (began, x) in zip(made, columns, nexts[1:], strict=True):
        room = x - column.x - _CELL
        if began - one.began >= pause_seconds and room >= _LEAST_ROOM:
            why = f"{_why(run, one, began)} " if room >= _WIDE else ""
            yield Mark(column.x + _CELL, room, f"{why}{began - one.began:.1f} s")


def _why(run: Run, before: Made, began: float) -> str:
    """Return what a run did most of the time between an attempt and the next one."""
    length = began - before.began

    def share(since: float, till: float) -> float:
        return (min(till, began) - max(since, before.began)) / length

    # A takeover is at the first attempt of the new driver.
    if any(before.began < at <= began for at, _ in (*run.deaths, *run.handovers)):
        return "no driver"
    for since, till, text in run.waits:
        if share(since, till) > _MOST_OF_IT:
            return "searching" if SEARCHED in text else "waiting"
    if share(before.began, before.ended if before.ended is not None else began) > _MOST_OF_IT:
        return "processing"
    if before.fate not in (Fate.COMMITTED, Fate.WRITTEN):
        return "retrying"
    if any(share(one.began, began if one.ended is None else one.ended) > _MOST_OF_IT for one in run.outages):
        return "partition away"
    return "idle"


def _short(partition: str) -> str:
    """Return a Kafka partition's number, or the end of any other name. The cells show the full name."""
    name = partition.rpartition("/")[2]
    return name if len(name) <= _LETTERS else f"…{name[1 - _LETTERS :]}"


def _homes(made: Sequence[Made]) -> dict[str, list[tuple[Range, int]]]:
    found: dict[str, list[tuple[Range, int]]] = {}
    for one in made:
        if one.fate is Fate.COMMITTED:
            for partition, place in one.ranges.items():
                found.setdefault(partition, []).append((place, one.txid))
    return found
