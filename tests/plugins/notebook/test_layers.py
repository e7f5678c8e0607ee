"""Where a drawing puts boxes, labels and lines: nothing overlaps, and no line crosses a box."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings, strategies as st

from txstream.plugins.notebook.layers import Link, Placement, Point, Route, Size, Step, place

LABEL = Size(50, 12)
BOX = Size(90, 40)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Size], dict[str, int], list[Link]]:
    """Draw an acyclic graph with one source; every other node is below all nodes that it reads from."""
    sizes = st.builds(Size, st.integers(10, 200), st.integers(10, 90))
    nodes = {"n0": draw(sizes)}
    layers = {"n0": 0}
    links: list[Link] = []
    for number in range(1, draw(st.integers(1, 11))):
        name = f"n{number}"
        sources = draw(st.lists(st.sampled_from(sorted(nodes)), min_size=1, max_size=4))
        layers[name] = 1 + max(layers[source] for source in sources)
        # A source may appear twice: then the node reads two of its streams.
        links += [
            Link(source, name, draw(st.builds(Size, st.integers(5, 120), st.integers(5, 30))))
            for source in sources
        ]
        nodes[name] = draw(sizes)
    return nodes, layers, links


def rectangle(center: Point, size: Size) -> tuple[float, float, float, float]:
    return (
        center.x - size.width / 2,
        center.y - size.height / 2,
        center.x + size.width / 2,
        center.y + size.height / 2,
    )


def steps_of(route: Route) -> tuple[Step, ...]:
    return (*route.above, *route.below)


@settings(max_examples=40, deadline=None)
@given(graphs())
def test_nothing_overlaps_and_lines_pass_beside_boxes(
    graph: tuple[dict[str, Size], dict[str, int], list[Link]],
) -> None:
    nodes, layers, links = graph
    placed = place(nodes, layers, links)
    taken = {name: rectangle(placed.nodes[name], size) for name, size in nodes.items()}
    labels = {
        f"label {number}": rectangle(route.label, link.label)
        for number, (route, link) in enumerate(zip(placed.routes, links, strict=True))
    }
    for (_, one), (_, other) in itertools.combinations({**taken, **labels}.items(), 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart
    for left, top, right, bottom in (*taken.values(), *labels.values()):
        assert -1e-6 <= left <= right <= placed.size.width + 1e-6
        assert -1e-6 <= top <= bottom <= placed.size.height + 1e-6
    for link, route in zip(links, placed.routes, strict=True):
        check_route(placed, nodes, link, route)
        ends = {link.source, link.target}
        for name, box in taken.items():
            if name not in ends:
                assert not any(touches(step, box) for step in steps_of(route))
    for (name, box), (number, route) in itertools.product(labels.items(), enumerate(placed.routes)):
        if name != f"label {number}":
            assert not any(touches(step, box) for step in steps_of(route))


def check_route(placed: Placement, nodes: dict[str, Size], link: Link, route: Route) -> None:
    """Check that the route runs down from the source's lower side over the label to the target's top."""
    source = rectangle(placed.nodes[link.source], nodes[link.source])
    target = rectangle(placed.nodes[link.target], nodes[link.target])
    first, last = route.above[0].start, route.below[-1].end
    assert source[0] <= first.x <= source[2]
    assert first.y == pytest.approx(source[3])
    assert target[0] <= last.x <= target[2]
    assert last.y == pytest.approx(target[1])
    for piece in (route.above, route.below):
        for upper, lower in itertools.pairwise(piece):
            assert upper.end == lower.start
        assert all(step.start.y <= step.end.y + 1e-6 for step in piece)
    label = rectangle(route.label, link.label)
    assert route.above[-1].end == pytest.approx((route.label.x, label[1]))
    assert route.below[0].start == pytest.approx((route.label.x, label[3]))
    assert route.below[-1].start.x == route.below[-1].end.x, "the arrow's head is on a straight piece"


def touches(step: Step, box: tuple[float, float, float, float]) -> bool:
    """Does the step overlap the box both vertically and horizontally?"""
    if step.end.y <= box[1] + 1e-6 or step.start.y >= box[3] - 1e-6:
        return False
    low, high = sorted((step.start.x, step.end.x))
    return high > box[0] and low < box[2]


def chain(*names: str) -> Placement:
    links = [Link(one, other, LABEL) for one, other in itertools.pairwise(names)]
    return place(dict.fromkeys(names, BOX), {name: at for at, name in enumerate(names)}, links)


def test_a_chain_is_one_straight_line() -> None:
    placed = chain("a", "b", "c", "d")
    assert {round(point.x, 6) for point in placed.nodes.values()} == {BOX.width / 2}
    xs = {step.end.x for route in placed.routes for step in steps_of(route)}
    assert [round(x, 6) for x in xs] == [BOX.width / 2] * len(xs)
    assert placed.size.width == pytest.approx(BOX.width)


def crossings(placed: Placement) -> int:
    """Count the pairs of lines that change sides, sampled at every unit of height."""
    found = 0
    for one, other in itertools.combinations(placed.routes, 2):
        sides = set()
        for at in range(int(placed.size.height)):
            left, right = x_at(one, at), x_at(other, at)
            if left is not None and right is not None and abs(left - right) > 1:
                sides.add(left < right)
        found += len(sides) > 1
    return found


def x_at(route: Route, y: float) -> float | None:
    for step in steps_of(route):
        if step.start.y <= y < step.end.y:
            return step.start.x + (step.end.x - step.start.x) * (y - step.start.y) / (
                step.end.y - step.start.y
            )
    return None


def test_a_graph_that_can_be_drawn_without_crossings_is() -> None:
    """In the order of declaration the lines would cross, because `clean` comes after `split`."""
    layers = {"lines": 0, "split": 1, "clean": 1, "word": 2, "length": 2, "total": 3, "report": 4}
    edges = [
        *(("lines", "split"), ("lines", "clean"), ("lines", "report"), ("split", "word")),
        *(("split", "length"), ("clean", "total"), ("word", "total"), ("length", "report")),
        ("total", "report"),
    ]
    placed = place(dict.fromkeys(layers, BOX), layers, [Link(*edge, LABEL) for edge in edges])
    assert crossings(placed) == 0


def test_a_crossing_that_cannot_be_avoided_is_seen_by_the_test() -> None:
    layers = {"top": 0, **dict.fromkeys("abc", 1), **dict.fromkeys("xyz", 2)}
    edges = [("top", name) for name in "abc"] + [(one, other) for one in "abc" for other in "xyz"]
    assert crossings(place(dict.fromkeys(layers, BOX), layers, [Link(*edge, LABEL) for edge in edges])) > 0


def test_a_line_over_several_layers_is_straight_where_there_is_room() -> None:
    layers = {"a": 0, "b": 1, "c": 2, "d": 3}
    edges = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")]
    placed = place(dict.fromkeys(layers, BOX), layers, [Link(*edge, LABEL) for edge in edges])
    passing = placed.routes[3]
    assert len({round(step.end.x, 6) for step in passing.above[1:]}) == 1


def test_the_same_graph_is_placed_alike() -> None:
    assert chain("a", "b", "c") == chain("a", "b", "c")
