"""Components and the edges between them as SVG: for a page that has `look.css`, or as a file.

`layers` places them.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from mako.template import Template

from txstream.plugins.notebook.layers import Link, Placement, Point, Size, Step, place

_LETTER = 7.4  # what a letter of the widest line takes at most, on average
_LINE = 17.0
_PADDING = 10.0
_MARGIN = 8.0
_LONGEST = 48
_HEADING = 30.0


@dataclass(frozen=True, slots=True)
class Node:
    """A component: its name, what is written below it, and how `look.css` marks its box: as "slowest",
    "source", "commit" or "committer"."""

    name: str
    lines: tuple[str, ...] = ()
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    label: str


def svg(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    label: str,
    *,
    layers: Mapping[str, int] | None = None,
    look: str = "",
) -> str:
    """Return the drawing. Every edge is between two of the nodes, and no edges make a ring. With the style
    sheet `look` it is a document of its own, with the label as its heading."""
    if layers is None:
        layers = layers_of([node.name for node in nodes], [(edge.source, edge.target) for edge in edges])
    heading = _HEADING if look else 0.0
    wanted = _width(label) if look else 0.0
    sizes = {node.name: _size([node.name, *node.lines]) for node in nodes}
    links = [Link(edge.source, edge.target, _size([edge.label], padding=3.0)) for edge in edges]
    placed = place(sizes, layers, links)
    drawn: str = _template().render(
        nodes=nodes,
        edges=edges,
        placed=placed,
        sizes=sizes,
        cut=_cut,
        line=_LINE,
        margin=_MARGIN,
        width=round(max(placed.size.width, wanted) + 2 * _MARGIN),
        height=round(placed.size.height + 2 * _MARGIN + heading),
        top=-round(heading),
        look=look,
        paths=_paths(placed),
        label=label,
    )
    return drawn


def layers_of(names: Sequence[str], edges: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Return each node's layer, one below the lowest that it reads from. `edges` are pairs of source and
    target."""
    layers = dict.fromkeys(names, 0)
    for _ in names:
        for source, target in edges:
            layers[target] = max(layers[target], layers[source] + 1)
    used = sorted(set(layers.values()))
    return {name: used.index(layer) for name, layer in layers.items()}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _width(line: str) -> float:
    shown = _cut(line)
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in shown)
    return (len(shown) + wide) * _LETTER


def _size(lines: Sequence[str], *, padding: float = _PADDING) -> Size:
    return Size(max(map(_width, lines)) + 2 * padding, len(lines) * _LINE + 2 * padding)


def _paths(placed: Placement) -> list[str]:
    """Return the line of each edge, which its label interrupts."""
    return [f"{_path(route.above)} {_path(route.below)}" for route in placed.routes]


def _path(steps: Sequence[Step]) -> str:
    found = [f"M{_at(steps[0].start)}"]
    for step in steps:
        middle = (step.start.y + step.end.y) / 2
        bends = f"C{_at(Point(step.start.x, middle))} {_at(Point(step.end.x, middle))} {_at(step.end)}"
        found.append(f"L{_at(step.end)}" if step.start.x == step.end.x else bends)
    return " ".join(found)


def _at(point: Point) -> str:
    return f"{point.x + _MARGIN:.1f},{point.y + _MARGIN:.1f}"


@cache
def _template() -> Template:
    return Template(  # noqa: S702 - every expression is escaped
        text=files("txstream.plugins.notebook").joinpath("graph.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )
