"""A comparison as one page that loads nothing else: attempts from left to right, partitions below each other.

A column is one attempt; columns are in the order in which attempts began. A pause in which none began is as
wide as it was long. A cell has the colour of the txid that committed its tuples, even if its attempt had
another txid.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from mako.template import Template

from txstream.compare.report import ROWS
from txstream.compare.run import Outcome
from txstream.compare.timeline import Fate, Made, Range
from txstream.wording import in_order, shown

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
_TICK_EVERY = 5

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


class _Axis:
    """The time axis: the horizontal place of each moment."""

    def __init__(self, made: Sequence[Made], ended: float, left: int) -> None:
        self.times: list[float] = []
        self.places: list[float] = []
        self.pauses: list[tuple[float, float, float]] = []
        x = float(left)
        for one, following in zip(made, [*(m.began for m in made[1:]), ended], strict=True):
            self.times.append(one.began)
            self.places.append(x)
            x += _CELL
            pause = following - one.began
            if pause >= _PAUSE_SECONDS:
                width = min(_LONGEST, pause * _SECOND)
                self.times.append(one.began + pause / 1e6)
                self.places.append(x)
                self.pauses.append((x, width, pause))
                x += width
        self.times.append(ended)
        self.places.append(x)

    def at(self, moment: float) -> float:
        after = bisect_right(self.times, moment)
        if after == 0 or after == len(self.times):
            return self.places[0 if after == 0 else -1]
        (t0, t1), (x0, x1) = self.times[after - 1 : after + 1], self.places[after - 1 : after + 1]
        return x0 + (x1 - x0) * (moment - t0) / (t1 - t0)


def chart(outcome: Outcome) -> Chart:
    """Lay out one run."""
    made = outcome.timeline.settled()
    began, ended = made[0].began, max(one.ended or one.began for one in made)
    partitions = sorted({name for one in made for name in one.ranges}, key=in_order)
    left = 14 + 7 * max((len(_short(name)) for name in partitions), default=0)
    axis = _Axis(made, ended, left)
    row = max(_LOWEST, min(_HIGHEST, _ROWS // max(1, len(partitions))))
    row_of = {name: _TOP + number * row for number, name in enumerate(partitions)}
    bottom = _TOP + len(partitions) * row
    drawn = Chart(axis.places[-1] + 8, bottom + 22, row=row)
    drawn.rows = [Mark(left, axis.places[-1] - left, _short(name), y) for name, y in row_of.items()]
    homes = _homes(made)
    attempts: dict[int, int] = {}
    for one in made:
        x = axis.at(one.began)
        number = attempts[one.txid] = attempts.get(one.txid, 0) + 1
        drawn.columns.append(Mark(x, _CELL, f"{one.txid}{chr(8242) * (number - 1)}"))
        if len(drawn.columns) % _TICK_EVERY == 1:
            drawn.ticks.append(Mark(x, 0, f"{one.began - began:.1f} s", bottom))
        for partition, place in one.ranges.items():
            home = _home(homes.get(partition, []), place)
            title = f"{partition}, {place[0]:,} to {place[1]:,}: attempt {number} of txid {one.txid} "
            title += _FATES[one.fate]
            if home is not None and home != one.txid:
                title += f"; txid {home} committed these tuples"
            drawn.cells.append(Cell(x, row_of[partition], home, one.fate, title))
    for outage in outcome.injector.outages:
        x, end = axis.at(outage.began), axis.at(outage.ended if outage.ended is not None else ended)
        text = f"partition {_short(outage.partition)} away"
        drawn.outages.append(Mark(x, max(end - x, _CELL), text, row_of.get(outage.partition)))
    for x, wide, seconds in axis.pauses:
        stalled = "stalled " if wide >= _WIDE else ""
        drawn.pauses.append(Mark(x, wide, f"{stalled}{seconds:.1f} s"))
    drawn.deaths = [
        Mark(axis.at(at), 0, "driver dies")
        for fault, at in outcome.injector.happened
        if fault.fault == "crash"
    ]
    return drawn


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


def html(document: Mapping[str, Any], faults: Sequence[object], outcomes: Mapping[str, Outcome]) -> str:
    """Return the page. `document` is the comparison as JSON; `faults` are shown as text."""
    template = Template(  # noqa: S702 - every expression is escaped
        text=files("txstream.compare").joinpath("page.html.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )
    runs = [(name, document["semantics"][name], chart(outcome)) for name, outcome in outcomes.items()]
    page: str = template.render(
        document=document,
        faults=faults,
        runs=runs,
        rows=ROWS,
        shown=shown,
    )
    return page
