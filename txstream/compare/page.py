"""A comparison as one page that loads nothing else: attempts from left to right, partitions below each other.

A column is one attempt. All charts have one time axis, counted from each run's first attempt: what began
after the same time is at the same place. The axis is as wide as the busiest run needs for its columns; a
pause in which no run began an attempt is as wide as it was long. A cell has the colour of the txid that
committed its tuples, even if its attempt had another txid.
"""

from __future__ import annotations

import base64
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from mako.template import Template

from txstream.compare.report import in_a_sentence, side_by_side
from txstream.compare.run import Outcome
from txstream.compare.timeline import Fate, Made, Range
from txstream.wording import in_order, shown

if TYPE_CHECKING:
    from txstream.api.topology import Topology

COLOURS = 7
"""The number of colours in the template; neighbouring txids differ."""

_CELL = 28
_ROWS = 260  # the greatest height of all rows together
_HIGHEST = 30
_LOWEST = 8
_TOP = 54
_LETTERS = 14
_PAUSE_SECONDS = 1.0  # a shorter pause between two attempts is not drawn
_SECOND = 30  # the width of a second of a longer pause
_LONGEST = 240
_WIDE = 90  # a pause this wide has room for words
_LEAST_ROOM = 40  # for a number of seconds
_TICK = 120  # between two times on the axis

_FATES = {
    Fate.OPEN: "was open at the end",
    Fate.COMMITTED: "committed",
    Fate.WRITTEN: "was written, its driver died, and it was written again: counted twice",
    Fate.FAILED: "failed",
    Fate.DROPPED: "was dropped",
}


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
    """The drawing of one run. `columns` are attempts with their txids, `ticks` seconds since the start."""

    width: float
    height: int
    rows: list[Mark] = field(default_factory=list)
    columns: list[Mark] = field(default_factory=list)
    cells: list[Cell] = field(default_factory=list)
    outages: list[Mark] = field(default_factory=list)
    pauses: list[Mark] = field(default_factory=list)
    deaths: list[Mark] = field(default_factory=list)
    ticks: list[Mark] = field(default_factory=list)
    row: int = _HIGHEST
    cell: int = _CELL
    top: int = _TOP


class Axis:
    """The time axis of all charts: the horizontal place of each moment, in seconds since a run's start.

    Invariant: places grow with time, and two attempts of one run are at least a column apart.
    """

    def __init__(self, runs: Sequence[Sequence[Made]], left: int) -> None:
        self.left = left
        starts = sorted(
            (one.began - made[0].began, number) for number, made in enumerate(runs) for one in made
        )
        self._times: list[float] = []
        self._places: list[float] = []
        free = [float(left)] * len(runs)  # where the next column of each run may begin
        place, before = float(left), 0.0
        for moment, run in [*starts, (max(map(_seconds, runs)), None)]:
            if moment - before >= _PAUSE_SECONDS:
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


def charts(outcomes: Sequence[Outcome]) -> list[Chart]:
    """Lay out runs on one time axis."""
    runs = [outcome.timeline.settled() for outcome in outcomes]
    names = {_short(name) for made in runs for one in made for name in one.ranges}
    axis = Axis(runs, 14 + 7 * max(map(len, names), default=0))
    return [_chart(outcome, made, axis) for outcome, made in zip(outcomes, runs, strict=True)]


def _seconds(made: Sequence[Made]) -> float:
    return max(one.ended or one.began for one in made) - made[0].began


def _chart(outcome: Outcome, made: Sequence[Made], axis: Axis) -> Chart:
    began, ended = made[0].began, made[0].began + _seconds(made)
    partitions = sorted({name for one in made for name in one.ranges}, key=in_order)
    row = max(_LOWEST, min(_HIGHEST, _ROWS // max(1, len(partitions))))
    row_of = {name: _TOP + number * row for number, name in enumerate(partitions)}
    bottom = _TOP + len(partitions) * row
    drawn = Chart(axis.end + _LEAST_ROOM, bottom + 22, row=row)
    drawn.rows = [Mark(axis.left, axis.end - axis.left, _short(name), y) for name, y in row_of.items()]
    drawn.ticks = list(axis.ticks(bottom))
    homes = _homes(made)
    attempts: dict[int, int] = {}
    for one in made:
        x = axis.at(one.began - began)
        number = attempts[one.txid] = attempts.get(one.txid, 0) + 1
        drawn.columns.append(Mark(x, _CELL, f"{one.txid}{chr(8242) * (number - 1)}"))
        for partition, place in one.ranges.items():
            home = _home(homes.get(partition, []), place)
            title = f"{partition}, {place[0]:,} to {place[1]:,}: attempt {number} of txid {one.txid} "
            title += _FATES[one.fate]
            if home is not None and home != one.txid:
                title += f"; txid {home} committed these tuples"
            drawn.cells.append(Cell(x, row_of[partition], home, one.fate, title))
    for outage in outcome.injector.outages:
        x = axis.at(outage.began - began)
        end = axis.at((outage.ended if outage.ended is not None else ended) - began)
        text = f"partition {_short(outage.partition)} away"
        drawn.outages.append(Mark(x, max(end - x, _CELL), text, row_of.get(outage.partition)))
    drawn.pauses = list(_pauses(made, drawn.columns, axis.at(ended - began), ended))
    drawn.deaths = [
        Mark(axis.at(at - began), 0, "driver dies")
        for fault, at in outcome.injector.happened
        if fault.fault == "crash"
    ]
    return drawn


def _pauses(made: Sequence[Made], columns: Sequence[Mark], end: float, ended: float) -> Iterator[Mark]:
    """Yield the times in which a run began no attempt for so long that it is worth a word."""
    nexts = [*((one.began, column.x) for one, column in zip(made, columns, strict=True)), (ended, end)]
    for one, column, (began, x) in zip(made, columns, nexts[1:], strict=True):
        room = x - column.x - _CELL
        if began - one.began >= _PAUSE_SECONDS and room >= _LEAST_ROOM:
            stalled = "stalled " if room >= _WIDE else ""
            yield Mark(column.x + _CELL, room, f"{stalled}{began - one.began:.1f} s")


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


def _home(homes: Sequence[tuple[Range, int]], place: Range) -> int | None:
    shared = [(min(end, place[1]) - max(start, place[0]), txid) for (start, end), txid in homes]
    common, txid = max(shared, default=(0, 0))
    return txid if common > 0 else None


def html(
    document: Mapping[str, Any], faults: Sequence[object], outcomes: Mapping[str, Outcome], topology: Topology
) -> str:
    """Return the page. `document` is the comparison as JSON; `faults` are shown as text."""
    template = Template(  # noqa: S702 - every expression is escaped
        text=files("txstream.compare").joinpath("page.html.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )
    runs = document["semantics"]
    page: str = template.render(
        document=document,
        faults=faults,
        runs=runs,
        charts=dict(zip(outcomes, charts(list(outcomes.values())), strict=True)),
        rows=side_by_side(runs),
        told={name: in_a_sentence(found) for name, found in runs.items()},
        graph=_drawn(topology),
        description=topology.describe(),
        shown=shown,
    )
    return page


def _drawn(topology: Topology) -> str | None:
    """Return the topology's graph as an image's address that holds the image, or None without matplotlib."""
    try:
        from txstream.drawing.topology import draw_topology
    except ImportError:
        return None
    return f"data:image/svg+xml;base64,{base64.b64encode(draw_topology(topology)).decode()}"
