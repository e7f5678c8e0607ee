"""Lays out the boxes and labels of a layered drawing, from the top down. Pure: sizes in, positions out.

It is Sugiyama's method, in three steps. First an edge over several layers gets a place in each of them. Then
sweeps improve the order within layers, so that few edges cross. Then every place moves as near to its
neighbours as the order allows. An edge's label also has a place, between the layers, so nothing can overlap.

Invariant: the same input gives the same output. Nothing depends on hashes or on the clock.

Sources: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981;
positions in a layer are an isotonic regression, solved by pooling adjacent violators (Barlow et al., 1972).
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_ORDER_STARTS = 20
_ORDER_SWEEPS = 12
_POSITION_SWEEPS = 200
_SETTLED = 0.01
_GAP_IN_ROW = 22.0
_GAP_BETWEEN_ROWS = 20.0
_EDGE_WIDTH = 4.0
_PORT_GAP = 26.0
_ARROW_LENGTH = 8.0  # the last piece of a line is straight, under the arrow's head
# The weights with which places attract each other: labels belong above targets, lines should be straight.
_TO_SOURCE, _TO_TARGET, _STRAIGHTNESS = 1.0, 3.0, 8.0


class Point(NamedTuple):
    """A position, counted from the upper left corner, with y downwards."""

    x: float
    y: float


class Size(NamedTuple):
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Link:
    """An edge to a node of a lower layer, with the size of its label."""

    source: str
    target: str
    label: Size


class Step(NamedTuple):
    """A piece of an edge's line: straight down, or a curve that begins and ends vertically."""

    start: Point
    end: Point


@dataclass(frozen=True, slots=True)
class Route:
    """An edge's line: the steps to its label, the label's center, and the steps on to the target."""

    above: tuple[Step, ...]
    label: Point
    below: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """The layout: the centers of the nodes, the routes in the order of the links, and the total size."""

    nodes: Mapping[str, Point]
    routes: tuple[Route, ...]
    size: Size


@dataclass(slots=True)
class _Place:
    """The place of a node, of a label, or of an edge that passes a row."""

    size: Size
    row: int
    is_node: bool = False
    up: list[int] = field(default_factory=list)
    down: list[int] = field(default_factory=list)
    x: float = 0.0


def place(
    nodes: Mapping[str, Size],
    layers: Mapping[str, int],
    links: Sequence[Link],
) -> Placement:
    """Return positions for nodes in their layers; layer 0 is the topmost. A link's source must be in a layer
    above its target, and every layer but the topmost must have a target."""
    grid = _Grid(nodes, layers, links)
    grid.order()
    grid.settle()
    return grid.placement()


class _Grid:
    """Rows of places. Layer n is row 2n; labels are in the row above their link's target."""

    def __init__(self, nodes: Mapping[str, Size], layers: Mapping[str, int], links: Sequence[Link]) -> None:
        self.places: list[_Place] = []
        self.nodes: dict[str, int] = {}
        self.rows: list[list[int]] = [[] for _ in range(1 + 2 * max(layers.values()))]
        for name, size in nodes.items():
            self.nodes[name] = self._add(size, 2 * layers[name], is_node=True)
        self.paths = [self._thread(link, layers) for link in links]

    def _add(self, size: Size, row: int, *, is_node: bool = False) -> int:
        self.places.append(_Place(size, row, is_node))
        self.rows[row].append(len(self.places) - 1)
        return len(self.places) - 1

    def _thread(self, link: Link, layers: Mapping[str, int]) -> list[int]:
        """Make the places of a link, and return them from its source to its target."""
        first, last = 2 * layers[link.source] + 1, 2 * layers[link.target] - 1
        path = [self.nodes[link.source]]
        for row in range(first, last + 1):
            path.append(self._add(link.label if row == last else Size(_EDGE_WIDTH, 0.0), row))
        path.append(self.nodes[link.target])
        for upper, lower in itertools.pairwise(path):
            self.places[upper].down.append(lower)
            self.places[lower].up.append(upper)
        return path

    # --- order ------------------------------------------------------------------------------------------

    def order(self) -> None:
        """Order the rows so that few lines cross: the best of several starts, each improved by sweeps."""
        best, fewest = self.rows, self._crossings()
        declared = [list(row) for row in self.rows]
        shuffle = random.Random(0).shuffle  # noqa: S311 - every drawing must be the same
        for start in range(_ORDER_STARTS):
            if fewest == 0:
                break
            self.rows = [list(row) for row in declared]
            if start:
                for row in self.rows:
                    shuffle(row)
            ordered, crossings = self._improved()
            if crossings < fewest:
                best, fewest = ordered, crossings
        self.rows = best

    def _improved(self) -> tuple[list[list[int]], int]:
        """Sort each row by the mean of its neighbours, down and up in turn; return the best order."""
        best, fewest = [list(row) for row in self.rows], self._crossings()
        for sweep in range(_ORDER_SWEEPS):
            down = sweep % 2 == 0
            for row in self.rows[1:] if down else reversed(self.rows[:-1]):
                self._sort(row, down=down)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(row) for row in self.rows], crossings
        return best, fewest

    def _sort(self, row: list[int], *, down: bool) -> None:
        beside = self.rows[self.places[row[0]].row + (-1 if down else 1)]
        at = {place: index for index, place in enumerate(beside)}
        own = {place: index for index, place in enumerate(row)}

        def mean(place: int) -> float:
            near = self.places[place].up if down else self.places[place].down
            return sum(at[other] for other in near) / len(near) if near else float(own[place])

        row.sort(key=mean)

    def _crossings(self) -> int:
        return sum(self._crossings_between(upper, lower) for upper, lower in itertools.pairwise(self.rows))

    def _crossings_between(self, upper: Sequence[int], lower: Sequence[int]) -> int:
        at = {place: index for index, place in enumerate(lower)}
        seen: list[int] = []
        crossings = 0
        for place in upper:
            ends = sorted(at[other] for other in self.places[place].down)
            crossings += sum(len(seen) - bisect.bisect_right(seen, end) for end in ends)
            for end in ends:
                bisect.insort(seen, end)
        return crossings

    # --- positions --------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Move the places of each row as near to their neighbours above and below as the order allows."""
        for row in self.rows:
            self._spread(row, [(0.0, 1.0)] * len(row))
        for sweep in range(_POSITION_SWEEPS):
            before = [place.x for place in self.places]
            for row in self.rows if sweep % 2 == 0 else reversed(self.rows):
                self._spread(row, [self._wanted(place) for place in row])
            if all(abs(place.x - x) < _SETTLED for place, x in zip(self.places, before, strict=True)):
                break
        self._straighten()
        left = min(place.x - place.size.width / 2 for place in self.places)
        for place in self.places:
            place.x -= left

    def _wanted(self, index: int) -> tuple[float, float]:
        """Return where its lines pull a place, and with what weight."""
        place = self.places[index]
        total = weights = 0.0
        for upper, lower, other in self._pulls(index):
            weight = _TO_SOURCE if upper.is_node else _TO_TARGET if lower.is_node else _STRAIGHTNESS
            total += weight * other.x
            weights += weight
        return (total / weights, weights) if weights else (place.x, 1.0)

    def _pulls(self, index: int) -> Iterator[tuple[_Place, _Place, _Place]]:
        """Yield the upper and the lower end of each line that ends here, and the one that is not this
        place."""
        place = self.places[index]
        for upper in (self.places[near] for near in place.up):
            yield upper, place, upper
        for lower in (self.places[near] for near in place.down):
            yield place, lower, lower

    def _straighten(self) -> None:
        """Give the places of a line between two nodes the same x, as far as there is room."""
        for path in self.paths:
            run: list[int] = []
            least, most = -math.inf, math.inf
            for index in path[1:-1]:
                low, high = self._free(index)
                if max(least, low) > min(most, high):
                    self._align(run, least, most)
                    run, least, most = [], -math.inf, math.inf
                run.append(index)
                least, most = max(least, low), min(most, high)
            self._align(run, least, most)

    def _align(self, run: Sequence[int], least: float, most: float) -> None:
        x = sum(self.places[index].x for index in run) / len(run)
        for index in run:
            self.places[index].x = min(max(x, least), most)

    def _free(self, index: int) -> tuple[float, float]:
        """Return the range of x in which a place can be without moving those beside it."""
        place = self.places[index]
        row = self.rows[place.row]
        at = row.index(index)
        low, high = -math.inf, math.inf
        if at > 0:
            left = self.places[row[at - 1]]
            low = left.x + (left.size.width + place.size.width) / 2 + _GAP_IN_ROW
        if at + 1 < len(row):
            right = self.places[row[at + 1]]
            high = right.x - (right.size.width + place.size.width) / 2 - _GAP_IN_ROW
        return min(low, place.x), max(high, place.x)

    def _spread(self, row: Sequence[int], wanted: Sequence[tuple[float, float]]) -> None:
        """Set the positions that minimize the weighted squared distances to `wanted`, without overlaps."""
        offsets = [0.0]
        for left, right in itertools.pairwise(row):
            apart = (self.places[left].size.width + self.places[right].size.width) / 2 + _GAP_IN_ROW
            offsets.append(offsets[-1] + apart)
        blocks: list[tuple[float, float, int]] = []  # weighted sum, weight, places
        for (x, weight), offset in zip(wanted, offsets, strict=True):
            block = ((x - offset) * weight, weight, 1)
            while blocks and blocks[-1][0] / blocks[-1][1] > block[0] / block[1]:
                before = blocks.pop()
                block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
            blocks.append(block)
        means = [total / weight for total, weight, places in blocks for _ in range(places)]
        for index, mean, offset in zip(row, means, offsets, strict=True):
            self.places[index].x = mean + offset

    # --- the drawing ------------------------------------------------------------------------------------

    def placement(self) -> Placement:
        extents = list(self._extents())
        middle = [(top + bottom) / 2 for top, bottom in extents]
        width = max(place.x + place.size.width / 2 for place in self.places)
        ports = self._ports()
        return Placement(
            nodes={
                name: Point(self.places[at].x, middle[self.places[at].row]) for name, at in self.nodes.items()
            },
            routes=tuple(self._route(number, extents, ports) for number in range(len(self.paths))),
            size=Size(width, extents[-1][1]),
        )

    def _extents(self) -> Iterator[tuple[float, float]]:
        """Yield the top and bottom of each row."""
        bottom = -_GAP_BETWEEN_ROWS
        for row in self.rows:
            top = bottom + _GAP_BETWEEN_ROWS
            bottom = top + max(self.places[place].size.height for place in row)
            yield top, bottom

    def _ports(self) -> dict[tuple[int, int], float]:
        """Return the x at which a link leaves or enters a node, by node and the link's place beside it. The
        links are side by side in the order of those places, so lines do not cross at the node."""
        ports = {}
        for node in self.nodes.values():
            place = self.places[node]
            for near in (place.up, place.down):
                ordered = sorted(near, key=lambda other: (self.places[other].x, other))
                gap = min(_PORT_GAP, 0.8 * place.size.width / max(1, len(ordered)))
                for number, other in enumerate(ordered):
                    ports[node, other] = place.x + gap * (number - (len(ordered) - 1) / 2)
        return ports

    def _route(
        self, number: int, extents: Sequence[tuple[float, float]], ports: Mapping[tuple[int, int], float]
    ) -> Route:
        path = self.paths[number]
        source, label, target = (self.places[at] for at in (path[0], path[-2], path[-1]))
        middle = sum(extents[label.row]) / 2
        x = ports[path[0], path[1]]
        steps = [
            Step(
                Point(x, sum(extents[source.row]) / 2 + source.size.height / 2),
                Point(x, extents[source.row][1]),
            )
        ]
        for passed in (self.places[at] for at in path[1:-1]):
            top, bottom = extents[passed.row]
            end = middle - label.size.height / 2 if passed is label else bottom
            steps.append(Step(steps[-1].end, Point(passed.x, top)))
            steps.append(Step(steps[-1].end, Point(passed.x, end)))
        x, (top, bottom) = ports[path[-1], path[-2]], extents[target.row]
        below = [Step(Point(label.x, middle + label.size.height / 2), Point(label.x, extents[label.row][1]))]
        below.append(Step(below[-1].end, Point(x, top - _ARROW_LENGTH)))
        below.append(Step(below[-1].end, Point(x, (top + bottom) / 2 - target.size.height / 2)))
        return Route(tuple(steps), Point(label.x, middle), tuple(below))
