"""HTML of topologies and runs for notebooks.

Invariant: every text is escaped, because ids and errors may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from txstream.wording import shown

if TYPE_CHECKING:
    from txstream.api.topology import Topology

_LONGEST_TEXT = 500


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return rows below a title as an HTML table; numbers are aligned right."""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>" if header else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}{body}</table>"


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) else "left"
    return f'<td style="text-align:{side}">{escape(shown(value)[:_LONGEST_TEXT])}</td>'


def topology_html(topology: Topology) -> str:
    """Return the graph as SVG if matplotlib is installed, otherwise a table of its components."""
    try:
        import matplotlib.figure  # noqa: F401 - so that a fault of our own is not taken for its absence
    except ImportError:
        document = topology.to_document()
        rows = [
            [
                one["id"],
                one["class"],
                ", ".join(given["component"] for given in one["inputs"]),
                one["slots"],
                one["tasks"],
                one["phase"],
            ]
            for one in document["components"]
        ]
        title = f"topology {topology.id} ({topology.kind})"
        return html_table(title, rows, ["component", "class", "reads", "slots", "tasks", "phase"])
    from txstream.drawing.topology import draw_topology

    drawn = draw_topology(topology).decode()
    return f'<div style="overflow-x:auto">{drawn[drawn.index("<svg") :]}</div>'
