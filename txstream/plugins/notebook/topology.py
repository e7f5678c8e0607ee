"""A topology as an SVG file: boxes from the top down, the commit phase below the processing phase.

It has its styles in it, so it is drawn the same in a browser, in an `<img>`, and in a notebook.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from txstream.api.bolts import DataFrameBolt, StateCommitter
from txstream.api.groupings import describe_grouping
from txstream.api.spouts import SourceSpout
from txstream.api.topology import Phase
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.wording import counted, printable
from txstream.plugins.notebook.attempt_chart import look
from txstream.plugins.notebook.description import describe_instance, state_semantics
from txstream.plugins.notebook.graph import Edge, Node, svg

if TYPE_CHECKING:
    from txstream.api.groupings import Grouping
    from txstream.api.topology import Component, Topology


def draw_topology(topology: Topology) -> bytes:
    """Return the drawing as an SVG document in UTF-8."""
    edges = [
        Edge(printable(grouping.component), printable(bolt.id), _label(grouping))
        for bolt in topology.bolts
        for grouping in bolt.inputs
    ]
    nodes = [_node(topology, component) for component in topology.components]
    heading = printable(f"{topology.id}: {topology.kind}, {topology.at_once}")
    return svg(nodes, edges, heading, layers=_layers(topology), look=look()).encode()


def as_image(topology: Topology) -> str:
    """Return the address of an image that holds the drawing."""
    return f"data:image/svg+xml;base64,{base64.b64encode(draw_topology(topology)).decode()}"


def _layers(topology: Topology) -> dict[str, int]:
    """Return the layer of each component: below all that it reads, the commit phase below processing."""
    layers: dict[str, int] = {}
    for phase in Phase:
        first = 1 + max(layers.values(), default=-1)
        for component in topology.components:
            if component.phase is phase:
                above = [layers[printable(grouping.component)] + 1 for grouping in component.inputs]
                layers[printable(component.id)] = max([first, *above])
    return layers


def _node(topology: Topology, component: Component) -> Node:
    bolt = component.instance
    lines = [
        describe_instance(bolt),
        f"{counted(component.parallelism, 'slot')}, {counted(component.tasks, 'task')}",
    ]
    mark = "source" if isinstance(bolt, SourceSpout) else ""
    if isinstance(bolt, DataFrameBolt):
        lines.append("Spark SQL")
    if component.phase is Phase.COMMIT:
        mark = "committer" if component.is_committer else "commit"
        lines.append("committer" if component.is_committer else "commit phase")
    if isinstance(bolt, StateCommitter):
        lines.append(f"table {bolt.state.table} ({state_semantics(topology, bolt)})")
    return Node(printable(component.id), tuple(map(printable, lines)), mark)


def _label(grouping: Grouping) -> str:
    stream = "" if grouping.stream == DEFAULT_STREAM else f"stream {grouping.stream}, "
    return printable(f"{stream}{describe_grouping(grouping)}")
