"""Renders the views. Every expression of a template is escaped, but what `notebook.attempt_chart` draws."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from importlib.resources import files
from shlex import join
from typing import Any
from urllib.parse import quote, urlencode

from mako.lookup import TemplateLookup
from starlette.responses import HTMLResponse, Response

import txstream
from txstream.api.tuples import DEFAULT_STREAM
from txstream.cli import remedies
from txstream.core.placement import own_seconds
from txstream.core.wording import counted, in_order, shown
from txstream.plugins.notebook import attempt_chart
from txstream.plugins.notebook.graph import Edge, Node, svg as draw
from txstream.plugins.web.timeline import STEPS
from txstream.plugins.web.views import shown_attempt

TABS = {
    "": "Now",
    "timeline": "Timeline",
    "source": "Source",
    "state": "State",
    "failures": "Failures",
    "trust": "Trust",
    "graph": "Graph",
}
"""The views of a topology by the last part of their address. One of tracked tuples has only `OF_TRACKED`."""
OF_TRACKED = ("", "trust", "graph")

_DECIMAL = re.compile(r"-?\d+(\.\d+)?")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


class Pages:
    """The templates, compiled when first used."""

    def __init__(self, *, allow_operate: bool) -> None:
        # Nothing may be written beside the templates, so that they work from a folder that is read-only.
        self._lookup = TemplateLookup(default_filters=["h"], strict_undefined=True)
        for file in files("txstream.plugins.web").joinpath("templates").iterdir():
            if file.name.endswith(".mako"):
                self._lookup.put_string(file.name, file.read_text(encoding="utf-8"))
        self._given = {
            "operate": allow_operate,
            "version": txstream.__version__,
            "address": address,
            "aligned": aligned,
            "age": age,
            "attempt": shown_attempt,
            "counted": counted,
            "remedy_of": remedies.of_words,
            "in_order": in_order,
            "moment": moment,
            "shown": shown,
            "seconds": seconds,
            "own_seconds": own_seconds,
            "told": told,
            "legend": attempt_chart.legend,
            "svg": attempt_chart.svg,
            "flow": flow,
            "join": join,
            "STEPS": STEPS,
            "TABS": TABS,
            "OF_TRACKED": OF_TRACKED,
            # What a page of one topology has, and others lack.
            "id": None,
            "tab": None,
            "tracked": False,
            "data": None,
            "live": None,
        }

    def show(self, view: str, *, status: int = 200, **values: Any) -> Response:
        """Return a page."""
        text: str = self._lookup.get_template(f"{view}.mako").render(**(self._given | values))
        return HTMLResponse(text, status)


def address(topology_id: str, *parts: str, api: bool = False, **query: Any) -> str:
    """Return the address of a topology's page or JSON. Of `query`, what is None or empty is left out."""
    path = "/".join(quote(part, safe="") for part in ("topologies", topology_id, *parts))
    asked: Mapping[str, Any] = {name: value for name, value in query.items() if value not in (None, [], "")}
    return f"{'/api' if api else ''}/{path}{'?' if asked else ''}{urlencode(asked, doseq=True)}"


def flow(graph: Mapping[str, Any]) -> str:
    """Return the drawing of `graph_views.edges`."""
    slowest, edges = graph["slowest"]["component"], graph["edges"]
    told = {one["component"]: one for one in graph["components"]}
    names = dict.fromkeys([*told, *(one[end] for one in edges for end in ("source", "target"))])
    nodes = []
    for name in names:
        lines: list[str] = []
        if name in told:
            one = told[name]
            lines = [
                f"{counted(one['tuples'], 'tuple')} in {seconds(one['seconds'])}",
                f"{counted(one['tasks'], 'task')}, longest {seconds(one['longest_seconds'])}",
            ]
        nodes.append(Node(name, tuple(lines), mark="slowest" if name == slowest else ""))
    drawn = [
        Edge(
            one["source"],
            one["target"],
            shown(one["tuples"])
            + ("" if one["stream"] == DEFAULT_STREAM else f" ({one['stream']})")
            + (
                f" in {seconds(own)}"
                if (own := (one["send_seconds"] or 0) + (one["take_seconds"] or 0))
                else ""
            ),
        )
        for one in edges
    ]
    return draw(nodes, drawn, f"{len(nodes)} components and {len(drawn)} edges, which tables below have, too")


def age(number: float | None) -> str:
    """Return a duration, short and rounded."""
    if number is None:
        return "-"
    if number < _MINUTE:
        return f"{number:.0f} s" if number >= 1 or number == 0 else f"{number:.1f} s"
    if number < 2 * _HOUR:
        return f"{number / _MINUTE:.0f} min"
    return f"{number / _HOUR:.0f} h" if number < 2 * _DAY else f"{number / _DAY:,.0f} days"


def told(value: Any) -> str:
    """Return a value of JSON in words."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {told(one)}" for name, one in value.items())
    return " ".join(map(told, value)) if isinstance(value, (list, tuple)) else shown(value)


def aligned(column: Sequence[Any]) -> list[str]:
    """Return the numbers of a column, grouped, so that their points are below each other where they are set
    to the right: what a fraction lacks is filled with spaces as wide as digits."""
    texts = [
        f"{Decimal(one):,f}" if isinstance(one, str) and _DECIMAL.fullmatch(one) else shown(one)
        for one in column
    ]
    lengths = [len(text.partition(".")[2]) for text in texts]
    most = max(lengths, default=0)
    return [
        text + ("\u2008" if most and not length else "") + "\u2007" * (most - length)
        for text, length in zip(texts, lengths, strict=True)
    ]


def seconds(number: float) -> str:
    """Return seconds as a step of a batch takes them."""
    return f"{number * 1000:.{1 if 0 < number < 0.01 else 0}f} ms" if number < 1 else f"{number:.2f} s"


def moment(time: datetime | str | None) -> str:
    """Return a time, in the server's zone."""
    if time is None:
        return "-"
    found = datetime.fromisoformat(time) if isinstance(time, str) else time
    return f"{found.astimezone():%Y-%m-%d %H:%M:%S}"
