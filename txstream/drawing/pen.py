"""What a drawing is made of: lines of text, boxes, arrows and bands, in points from the upper left corner.

The only module that draws with matplotlib; whoever imports it has made sure that matplotlib is there.
"""

from __future__ import annotations

import contextlib
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from txstream.drawing.layers import Point, Size, Step

# It comes with matplotlib, so widths are the same everywhere; what browsers put in its place is no wider.
_FONT = "DejaVu Sans"
_POINTS_PER_INCH = 72
_LINE_SPACING = 1.4
_BASELINE = 0.78
_BOX_PADDING = 9.0
_LABEL_PADDING = 4.0
_WIDE_CHARACTER = 0.4


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text; `size` is its font's, in points."""

    text: str
    size: float
    ink: str
    bold: bool = False


@dataclass(frozen=True, slots=True)
class Style:
    """Colors of a box, of its border, and of the band that it is in."""

    fill: str
    border: str
    band: str
    border_width: float = 1.0


@contextlib.contextmanager
def fixed_settings() -> Iterator[None]:
    """matplotlib's own settings instead of the user's, and nothing random, for the time of the block."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # whoever shows it has other fonts
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "txstream", "font.family": _FONT, "path.simplify": False}
        )
        yield


def text_size(lines: Sequence[Line]) -> Size:
    """How much room lines of text take, one below the other."""
    return Size(max(map(_width, lines)), sum(line.size * _LINE_SPACING for line in lines))


def label_size(lines: Sequence[Line]) -> Size:
    """The size of a label in a line, which must not touch it."""
    text = text_size(lines)
    return Size(text.width, text.height + _LABEL_PADDING)


def box_size(lines: Sequence[Line]) -> Size:
    """The size of a box around lines of text."""
    text = text_size(lines)
    return Size(text.width + 2 * _BOX_PADDING, text.height + 1.4 * _BOX_PADDING)


def _width(line: Line) -> float:
    font = FontProperties(family=_FONT, size=line.size, weight="bold" if line.bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(line.text, font, False)
    # The font has no East Asian characters; those that a browser shows are wider than the gap for them.
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in line.text)
    return float(width) + wide * _WIDE_CHARACTER * line.size


def new_figure(width: float, height: float) -> tuple[Figure, Pen]:
    """An empty figure of a size in points, and a pen at its upper left corner."""
    figure = Figure(
        figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH, facecolor="white"
    )
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    return figure, Pen(axes, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Pen:
    """Draws on a figure, with its origin at `x`, `y`."""

    axes: Axes
    x: float
    y: float

    def moved(self, x: float, y: float) -> Pen:
        """A pen whose origin is farther to the right and below."""
        return Pen(self.axes, self.x + x, self.y + y)

    def write(self, lines: Sequence[Line], corner: Point) -> None:
        """Lines of text from their upper left corner."""
        self._write(lines, corner, "left")

    def write_centered(self, lines: Sequence[Line], center: Point) -> None:
        self._write(lines, Point(center.x, center.y - text_size(lines).height / 2), "center")

    def _write(self, lines: Sequence[Line], top: Point, align: str) -> None:
        y = top.y
        for line in lines:
            self.axes.text(
                self.x + top.x,
                self.y + y + line.size * (_BASELINE + _LINE_SPACING) / 2,
                line.text,
                fontsize=line.size,
                fontweight="bold" if line.bold else "normal",
                color=line.ink,
                horizontalalignment=align,
                verticalalignment="baseline",
                parse_math=False,  # a $ in a name is a dollar
            )
            y += line.size * _LINE_SPACING

    def draw_box(self, lines: Sequence[Line], center: Point, style: Style) -> None:
        """A box with lines of text in it."""
        size = box_size(lines)
        self.axes.add_patch(
            FancyBboxPatch(
                (self.x + center.x - size.width / 2, self.y + center.y - size.height / 2),
                size.width,
                size.height,
                boxstyle="round,pad=0,rounding_size=5",
                facecolor=style.fill,
                edgecolor=style.border,
                linewidth=style.border_width,
                zorder=2,
                clip_on=False,
            )
        )
        self.write_centered(lines, center)

    def draw_band(self, title: str, style: Style, corner: Point, size: Size) -> None:
        """A background with its title written upwards along the left side."""
        x, y = self.x + corner.x, self.y + corner.y
        self.axes.add_patch(
            Rectangle((x, y), size.width, size.height, facecolor=style.band, edgecolor="none", zorder=0)
        )
        self.axes.text(
            x + 14.0,
            y + size.height / 2,
            title,
            fontsize=9.0,
            fontweight="bold",
            color=style.border,
            rotation="vertical",
            horizontalalignment="center",
            verticalalignment="center",
        )

    def draw_line(self, steps: Sequence[Step], ink: str, *, arrow: bool = False) -> None:
        """A line of steps, each straight or a curve between two verticals, perhaps with an arrow's head."""
        points, codes = [self._at(steps[0].start)], [Path.MOVETO]
        for step in steps:
            if step.start == step.end:
                continue
            start, end = self._at(step.start), self._at(step.end)
            if start[0] == end[0]:
                points.append(end)
                codes.append(Path.LINETO)
                continue
            middle = (start[1] + end[1]) / 2
            points += [(start[0], middle), (end[0], middle), end]
            codes += [Path.CURVE4] * 3
        path = Path(points, codes)
        self.axes.add_patch(
            FancyArrowPatch(
                path=path, arrowstyle="-|>,head_length=5,head_width=2.6", linewidth=1.1, color=ink, zorder=1
            )
            if arrow
            else PathPatch(path, facecolor="none", edgecolor=ink, linewidth=1.1, zorder=1)
        )

    def _at(self, point: Point) -> tuple[float, float]:
        return self.x + point.x, self.y + point.y
