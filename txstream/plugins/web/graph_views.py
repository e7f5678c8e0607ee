"""What the view of the graph shows: a drawing of the code, and what passed between components."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txstream import inspect
from txstream.inspect.json_documents import document
from txstream.plugins.notebook.graph import layers_of
from txstream.plugins.notebook.topology import draw_topology

if TYPE_CHECKING:
    from txstream.plugins.web.site import Site


def graph(site: Site, topology_id: str) -> bytes:
    """Return the drawing of the topology's code, as `txstream describe --svg` makes it."""
    made = site.code_of(topology_id)
    return site.memo(("graph", topology_id), lambda: draw_topology(made), 3600.0)


def edges(site: Site, topology_id: str) -> dict[str, Any]:
    """Return the components of a recent batch with what their tasks took, and what passed between them, as
    the leader noted it. `slowest` is the component and the task that took longest."""
    from txstream.core.batch_metas import MetaCodec
    from txstream.zookeeper import ASSIGNMENT, EDGES, Paths

    with site.zookeeper() as zookeeper:
        if topology_id not in zookeeper.topologies():
            raise inspect.UnknownTopologyError(topology_id)
        notes = zookeeper.progress(topology_id, MetaCodec(Paths)).notes
        seen, passed = notes.get(ASSIGNMENT), notes.get(EDGES)
    places = () if seen is None else seen.in_order()
    found: dict[str, dict[str, Any]] = {}
    for place in places:
        row = found.setdefault(
            place.component,
            {"component": place.component, "tasks": 0, "tuples": 0, "seconds": 0.0, "longest_seconds": 0.0}
            | {"longest_task": place.task, "host": place.host},
        )
        row["tasks"] += 1
        row["tuples"] += place.tuples
        row["seconds"] = round(row["seconds"] + place.seconds, 6)
        if place.seconds > row["longest_seconds"]:
            row |= {"longest_seconds": place.seconds, "longest_task": place.task, "host": place.host}
    # Two notes, written one after the other: what is shown is of one attempt.
    is_one = seen is not None and passed is not None and seen.attempt == passed.attempt
    edges = [one._asdict() for one in passed.edges] if passed is not None and is_one else []
    pairs = [(one["source"], one["target"]) for one in edges]
    layers = layers_of([*dict.fromkeys([*found, *(name for pair in pairs for name in pair)])], pairs)
    longest = max(places, key=lambda place: place.seconds, default=None)
    return {
        "topology": topology_id,
        "txid": None if seen is None else seen.txid,
        "at": None if seen is None else document(seen.at),
        "left_out": 0 if seen is None else seen.left_out,
        "components": sorted(found.values(), key=lambda one: layers[one["component"]]),
        "slowest": None if longest is None else {"component": longest.component, "task": longest.task},
        "edges": sorted(edges, key=lambda one: (layers[one["source"]], layers[one["target"]])),
    }
