"""A topology as an SVG drawing: boxes from the top down, the commit phase below the processing.

matplotlib draws it, without a display and without pyplot; `layers` says where everything goes. Text stays
text, so that it can be searched and selected. Whoever imports this has made sure that matplotlib is there.

Invariant: the same topology gives the same bytes with the same matplotlib, whatever the user's own matplotlib
settings are, and whenever it is drawn.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstream.api.bolts import DataFrameBolt, StateCommitter
from txstream.api.description import describe_grouping, describe_instance, printable, state_semantics
from txstream.api.spouts import SourceSpout
from txstream.api.topology import Phase
from txstream.api.tuples import DEFAULT_STREAM
from txstream.drawing.layers import Link, Placement, Point, Size, place
from txstream.drawing.pen import Line, Style, box_size, fixed_settings, label_size, new_figure, text_size
from txstream.words import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from txstream.api.groupings import Grouping
    from txstream.api.topology import Component, Topology

_LONGEST_TEXT = 48
_MARGIN = 16.0
_PADDING = 14.0
_BAND_TITLE_WIDTH = 22.0
_TITLE_HEIGHT = 42.0


_INK = "#1b2733"
_QUIET_INK = "#52606d"
_EDGE_INK = "#5c6b7a"
_SPOUT = Style(fill="#d9ead3", border="#4b7a3a", band="#f1f5f9")
_PROCESS = Style(fill="#ffffff", border="#4a6785", band="#f1f5f9")
_COMMIT = Style(fill="#ffffff", border="#a85f00", band="#fff1d9")
_COMMITTER = Style(fill="#ffdca0", border="#a85f00", band="#fff1d9", border_width=2.2)


def draw_topology(topology: Topology) -> bytes:
    """The drawing as an SVG document in UTF-8."""
    drawn = io.BytesIO()
    metadata: dict[str, Any] = {"Date": None, "Creator": "txstream", "Title": topology.id}
    with fixed_settings():
        _figure(topology).savefig(drawn, format="svg", metadata=metadata)
    return drawn.getvalue()


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    target: str
    lines: list[Line]


def _figure(topology: Topology) -> Figure:
    boxes = {component.id: _box_lines(topology, component) for component in topology.components}
    edges = [
        _Edge(grouping.component, bolt.id, _label_lines(grouping))
        for bolt in topology.bolts
        for grouping in bolt.inputs
    ]
    layers = _layers(topology)
    commit = min(layers[component.id] for component in topology.components if component.phase == Phase.COMMIT)
    placed = place(
        {name: box_size(lines) for name, lines in boxes.items()},
        layers,
        [Link(edge.source, edge.target, label_size(edge.lines)) for edge in edges],
        room_above={commit: 2 * _PADDING},
    )
    title = _title_lines(topology)
    room = _room(placed, text_size(title))
    figure, whole = new_figure(room.width + 2 * _MARGIN, room.height + 2 * _MARGIN + _TITLE_HEIGHT)
    whole.write(title, Point(_MARGIN, _MARGIN))
    bands = whole.moved(_MARGIN, _MARGIN + _TITLE_HEIGHT)
    boundary = placed.layer_tops[commit]
    bands.draw_band("process phase", _PROCESS, Point(0, 0), Size(room.width, boundary))
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
    """A component is below all that it reads from, and the commit phase below all of the processing."""
    layers: dict[str, int] = {}
    for phase in Phase:
        first = 1 + max(layers.values(), default=-1)
        for component in topology.components:
            if component.phase is phase:
                above = [layers[grouping.component] + 1 for grouping in component.inputs]
                layers[component.id] = max([first, *above])
    return layers


def _room(placed: Placement, title: Size) -> Size:
    """What the bands cover: the boxes with padding, and the bands' own titles."""
    width = _BAND_TITLE_WIDTH + 2 * _PADDING + placed.size.width
    return Size(max(width, title.width), placed.size.height + 2 * _PADDING)


# --- texts and colors ----------------------------------------------------------------------------------


def _title_lines(topology: Topology) -> list[Line]:
    batches = f"{counted(topology.max_spout_pending, 'batch', 'batches')} at once"
    return [
        Line(topology.id, 14.0, _INK, bold=True),
        Line(f"{topology.semantics}, {batches}", 9.0, _QUIET_INK),
    ]


def _box_lines(topology: Topology, component: Component) -> list[Line]:
    bolt = component.instance
    lines = [
        Line(_shown(component.id), 11.0, _INK, bold=True),
        Line(_shown(describe_instance(bolt)), 9.0, _INK),
        Line(
            f"{counted(component.parallelism, 'slot')}, {counted(component.tasks, 'task')}", 8.5, _QUIET_INK
        ),
    ]
    if isinstance(bolt, DataFrameBolt):
        lines.append(Line("Spark SQL", 8.5, _QUIET_INK))
    if component.is_committer:
        lines.append(Line("committer", 8.5, _COMMIT.border, bold=True))
    if isinstance(bolt, StateCommitter):
        table = f"{bolt.state.table} ({state_semantics(topology, bolt)})"
        lines.append(Line(_shown(f"table {table}"), 8.5, _QUIET_INK))
    return lines


def _label_lines(grouping: Grouping) -> list[Line]:
    lines = [Line(_shown(describe_grouping(grouping)), 8.5, _QUIET_INK)]
    if grouping.stream != DEFAULT_STREAM:
        lines.insert(0, Line(_shown(f"stream {grouping.stream}"), 8.5, _INK))
    return lines


def _shown(text: str) -> str:
    """On one line, and cut where it is too long to be drawn."""
    text = printable(text)
    return text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…"


def _style(component: Component) -> Style:
    if isinstance(component.instance, SourceSpout):
        return _SPOUT
    if component.phase is Phase.PROCESS:
        return _PROCESS
    return _COMMITTER if component.is_committer else _COMMIT
