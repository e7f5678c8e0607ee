"""A topology as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from txstream.plugins.notebook.topology import as_image

if TYPE_CHECKING:
    from txstream.api.topology import Topology


def topology_html(topology: Topology) -> str:
    """Return the graph as an image, so that its styles are not the page's; in words, it is what `describe`
    says."""
    words = escape(topology.describe(), quote=True)
    return f'<div style="overflow-x:auto"><img src="{as_image(topology)}" alt="{words}"></div>'
