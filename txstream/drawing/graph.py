"""Components and what passed between them as SVG, for a page with `look.css`. `layers` places them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from mako.template import Template

from txstream.drawing.layers import Link, Placement, Point, Size, Step, place

_LETTER = 7.4  # what a letter of the widest line takes at most, on average
_LINE = 17.0
_PADDING = 10.0
_MARGIN = 8.0
_LONGEST = 34


@dataclass(frozen=True, slots=True)
class Node:
    """A component: its name, what is written below it, and whether it is marked as the slowest."""

    name: str
    lines: tuple[str, ...] = ()
    is_slowest: bool = False


@dataclass(frozen=True, slots=True)
class Edge:
    source: str
    target: str
    label: str


def svg(nodes: Sequence[Node], edges: Sequence[Edge], label: str) -> str:
    """Return the drawing. Every edge is between two of the nodes, and no edges make a ring."""
    layers = layers_of([node.name for node in nodes], [(edge.source, edge.target) for edge in edges])
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
        width=round(placed.size.width + 2 * _MARGIN),
        height=round(placed.size.height + 2 * _MARGIN),
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


def _size(lines: Sequence[str], *, padding: float = _PADDING) -> Size:
    longest = max(len(_cut(line)) for line in lines)
    return Size(longest * _LETTER + 2 * padding, len(lines) * _LINE + 2 * padding)


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
        text=files("txstream.drawing").joinpath("graph.mako").read_text(encoding="utf-8"),
        default_filters=["h"],
        strict_undefined=True,
    )
