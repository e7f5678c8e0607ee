"""A topology as an SVG drawing: boxes from the top down, the commit phase below the processing phase.

matplotlib draws it, without a display and without pyplot. `layers` says where everything goes, in points from
the upper left corner. Text stays text, so it can be searched and selected. Importers of this module make sure
that matplotlib is installed.

Invariant: the same topology gives the same bytes with the same matplotlib, whatever the user's matplotlib
settings are, and whenever it is drawn.
"""

from __future__ import annotations

import contextlib
import io
import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import text_to_path

from txstream.api.bolts import DataFrameBolt, StateCommitter
from txstream.api.description import describe_grouping, describe_instance, printable, state_semantics
from txstream.api.spouts import SourceSpout
from txstream.api.topology import Phase
from txstream.api.tuples import DEFAULT_STREAM
from txstream.drawing.layers import Link, Placement, Point, Size, Step, place
from txstream.wording import counted

if TYPE_CHECKING:
    from txstream.api.groupings import Grouping
    from txstream.api.topology import Component, Topology

# It comes with matplotlib, so widths are the same everywhere. What browsers use instead is no wider.
_FONT = "DejaVu Sans"
_POINTS_PER_INCH = 72
_LINE_SPACING = 1.4
_BASELINE = 0.78
_BOX_PADDING = 9.0
_LABEL_PADDING = 4.0
_WIDE_CHARACTER = 0.4
_LONGEST_TEXT = 48
_MARGIN = 16.0
_PADDING = 14.0
_BAND_TITLE_WIDTH = 22.0
_TITLE_HEIGHT = 42.0


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of text. `size` is the font's, in points."""

    text: str
    size: float
    ink: str
    bold: bool = False


@dataclass(frozen=True, slots=True)
class _Style:
    """The colors of a box, of its border, and of the band that it is in."""

    fill: str
    border: str
    band: str
    border_width: float = 1.0


_INK = "#1b2733"
_QUIET_INK = "#52606d"
_EDGE_INK = "#5c6b7a"
_SPOUT = _Style(fill="#d9ead3", border="#4b7a3a", band="#f1f5f9")
_PROCESS = _Style(fill="#ffffff", border="#4a6785", band="#f1f5f9")
_COMMIT = _Style(fill="#ffffff", border="#a85f00", band="#fff1d9")
_COMMITTER = _Style(fill="#ffdca0", border="#a85f00", band="#fff1d9", border_width=2.2)


def draw_topology(topology: Topology) -> bytes:
    """Return the drawing as an SVG document in UTF-8."""
    drawn = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": "txstream", "Title": topology.id}
    with _fixed_settings():
        _figure(topology).savefig(drawn, format="svg", metadata=metadata)
    return drawn.getvalue()


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    target: str
    lines: list[_Line]


def _figure(topology: Topology) -> Figure:
    boxes = {component.id: _box_lines(topology, component) for component in topology.components}
    edges = [
        _Edge(grouping.component, bolt.id, _label_lines(grouping))
        for bolt in topology.bolts
        for grouping in bolt.inputs
    ]
    layers = _layers(topology)
    # Tracked tuples need no commit phase.
    commit = min(
        (layers[component.id] for component in topology.components if component.phase == Phase.COMMIT),
        default=None,
    )
    placed = place(
        {name: _box_size(lines) for name, lines in boxes.items()},
        layers,
        [Link(edge.source, edge.target, _label_size(edge.lines)) for edge in edges],
        room_above={} if commit is None else {commit: 2 * _PADDING},
    )
    title = _title_lines(topology)
    room = _room(placed, _text_size(title))
    figure, whole = _new_figure(room.width + 2 * _MARGIN, room.height + 2 * _MARGIN + _TITLE_HEIGHT)
    whole.write(title, Point(_MARGIN, _MARGIN))
    bands = whole.moved(_MARGIN, _MARGIN + _TITLE_HEIGHT)
    boundary = room.height if commit is None else placed.layer_tops[commit]
    bands.draw_band("process phase", _PROCESS, Point(0, 0), Size(room.width, boundary))
    if commit is not None:
        bands.draw_band("commit phase", _COMMIT, Point(0, boundary), Size(room.width, room.height - boundary))
    slack = room.width - _BAND_TITLE_WIDTH - 2 * _PADDING - placed.size.width
    pen = bands.moved(_BAND_TITLE_WIDTH + _PADDING + slack / 2, _PADDING)
    for edge, route in zip(edges, placed.routes, strict=True):
        pen.draw_line(route.above, _EDGE_INK)
        pen.write_centered(edge.lines, route.label)
        pen.draw_line(route.below, _EDGE_INK, arrow=True)
    for component in topology.components:
        pen.draw_box(boxes[component.id], placed.nodes[component.id], _style(component))
    return figure


def _layers(topology: Topology) -> dict[str, int]:
    """Return the layer of each component: below all that it reads, the commit phase below processing."""
    layers: dict[str, int] = {}
    for phase in Phase:
        first = 1 + max(layers.values(), default=-1)
        for component in topology.components:
            if component.phase is phase:
                above = [layers[grouping.component] + 1 for grouping in component.inputs]
                layers[component.id] = max([first, *above])
    return layers


def _room(placed: Placement, title: Size) -> Size:
    """Return the size that the bands cover: the boxes with padding, and the bands' titles."""
    width = _BAND_TITLE_WIDTH + 2 * _PADDING + placed.size.width
    return Size(max(width, title.width), placed.size.height + 2 * _PADDING)


# --- texts and colors ----------------------------------------------------------------------------------


def _title_lines(topology: Topology) -> list[_Line]:
    return [
        _Line(topology.id, 14.0, _INK, bold=True),
        _Line(f"{topology.kind}, {topology.at_once}", 9.0, _QUIET_INK),
    ]


def _box_lines(topology: Topology, component: Component) -> list[_Line]:
    bolt = component.instance
    lines = [
        _Line(_shown(component.id), 11.0, _INK, bold=True),
        _Line(_shown(describe_instance(bolt)), 9.0, _INK),
        _Line(
            f"{counted(component.parallelism, 'slot')}, {counted(component.tasks, 'task')}", 8.5, _QUIET_INK
        ),
    ]
    if isinstance(bolt, DataFrameBolt):
        lines.append(_Line("Spark SQL", 8.5, _QUIET_INK))
    if component.is_committer:
        lines.append(_Line("committer", 8.5, _COMMIT.border, bold=True))
    if isinstance(bolt, StateCommitter):
        table = f"{bolt.state.table} ({state_semantics(topology, bolt)})"
        lines.append(_Line(_shown(f"table {table}"), 8.5, _QUIET_INK))
    return lines


def _label_lines(grouping: Grouping) -> list[_Line]:
    lines = [_Line(_shown(describe_grouping(grouping)), 8.5, _QUIET_INK)]
    if grouping.stream != DEFAULT_STREAM:
        lines.insert(0, _Line(_shown(f"stream {grouping.stream}"), 8.5, _INK))
    return lines


def _shown(text: str) -> str:
    """Return a text on one line, cut if it is too long to be drawn."""
    text = printable(text)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _style(component: Component) -> _Style:
    if isinstance(component.instance, SourceSpout):
        return _SPOUT
    if component.phase is Phase.PROCESS:
        return _PROCESS
    return _COMMITTER if component.is_committer else _COMMIT


# --- tools of the drawing ----------------------------------------------------------------------------


@contextlib.contextmanager
def _fixed_settings() -> Iterator[None]:
    """Use matplotlib's own settings instead of the user's, and nothing random, for the time of the block."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the viewer has other fonts
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {"svg.fonttype": "none", "svg.hashsalt": "txstream", "font.family": _FONT, "path.simplify": False}
        )
        yield


def _text_size(lines: Sequence[_Line]) -> Size:
    """Return the room that lines of text take, one below the other."""
    return Size(max(map(_width, lines)), sum(line.size * _LINE_SPACING for line in lines))


def _label_size(lines: Sequence[_Line]) -> Size:
    """Return the size of a label with padding, since its line must not touch it."""
    text = _text_size(lines)
    return Size(text.width, text.height + _LABEL_PADDING)


def _box_size(lines: Sequence[_Line]) -> Size:
    """Return the size of a box around lines of text."""
    text = _text_size(lines)
    return Size(text.width + 2 * _BOX_PADDING, text.height + 1.4 * _BOX_PADDING)


def _width(line: _Line) -> float:
    font = FontProperties(family=_FONT, size=line.size, weight="bold" if line.bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(line.text, font, False)
    # The font has no East Asian characters. Those that a browser shows are wider than the font's stand-in.
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in line.text)
    return float(width) + wide * _WIDE_CHARACTER * line.size


def _new_figure(width: float, height: float) -> tuple[Figure, _Pen]:
    """Return an empty figure of this size in points, and a pen at its upper left corner."""
    figure = Figure(
        figsize=(width / _POINTS_PER_INCH, height / _POINTS_PER_INCH), dpi=_POINTS_PER_INCH, facecolor="white"
    )
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    return figure, _Pen(axes, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Pen:
    """Draws on a figure, with its origin at `x`, `y`."""

    axes: Axes
    x: float
    y: float

    def moved(self, x: float, y: float) -> _Pen:
        """Return a pen whose origin is farther to the right and down."""
        return _Pen(self.axes, self.x + x, self.y + y)

    def write(self, lines: Sequence[_Line], corner: Point) -> None:
        """Write lines of text from their upper left corner."""
        self._write(lines, corner, "left")

    def write_centered(self, lines: Sequence[_Line], center: Point) -> None:
        self._write(lines, Point(center.x, center.y - _text_size(lines).height / 2), "center")

    def _write(self, lines: Sequence[_Line], top: Point, align: str) -> None:
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

    def draw_box(self, lines: Sequence[_Line], center: Point, style: _Style) -> None:
        """Draw a box with lines of text in it."""
        size = _box_size(lines)
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

    def draw_band(self, title: str, style: _Style, corner: Point, size: Size) -> None:
        """Draw a background with its title written upwards along the left side."""
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
        """Draw a line of steps, each straight or a curve between two verticals, perhaps with an arrowhead."""
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
