"""HTML of topologies and runs for notebooks, and what is shown there while a run goes on.

Invariant: every text is escaped, because ids and errors may hold anything.
"""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from txstream.core.errors import UsageError
from txstream.core.wording import shown

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.api.topology import Topology
    from txstream.drawing.batches import Plot

_LONGEST_TEXT = 500
_UPDATE_SECONDS = 0.5


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook: then a display can be changed after it was shown."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def show_live(html: Callable[[], str], shown_run: threading.Thread) -> threading.Thread:
    """Show what `html` returns below the cell, and replace it there while `shown_run` lives, by the thread
    that is returned. It makes the last replacement as soon as the run has ended, and ends."""
    ipython: Any = import_module("IPython.display")  # the kernel has it, whatever is installed here
    shown = html()
    handle = ipython.display(ipython.HTML(shown), display_id=True)

    def follow() -> None:
        nonlocal shown
        goes_on = True
        while goes_on:
            shown_run.join(_UPDATE_SECONDS)
            goes_on = shown_run.is_alive()
            now = html()
            if now != shown:
                shown = now
                handle.update(ipython.HTML(now))

    follower = threading.Thread(target=follow, name="txstream-notebook", daemon=True)
    follower.start()
    return follower


class Tabular(ABC):
    """What inspection answers, as a table: in a notebook, in Arrow and in pandas."""

    __slots__ = ()

    @abstractmethod
    def as_table(self) -> tuple[str, list[str], list[Sequence[object]]]:
        """Return a title, the names of the columns, and the rows."""

    def _repr_html_(self) -> str:
        title, names, rows = self.as_table()
        return html_table(title, ([_plain(value) for value in row] for row in rows), names)

    def to_arrow(self) -> pa.Table:
        """Return the table's rows as an Arrow table. Values of types that Arrow lacks are text."""
        import pyarrow as pa

        _, names, rows = self.as_table()
        columns = [[row[place] for row in rows] for place in range(len(names))]
        return pa.table([_arrow(pa, column) for column in columns], names=names)

    def to_pandas(self) -> Any:
        """Return the table's rows as a DataFrame. Needs pandas, which the extra `dataframe` installs."""
        return self.to_arrow().to_pandas()


def _plain(value: object) -> object:
    return value.isoformat(sep=" ", timespec="seconds") if isinstance(value, datetime) else value


def _arrow(pa: Any, column: list[object]) -> Any:
    try:
        return pa.array(column)
    except (pa.ArrowException, TypeError):
        return pa.array([None if value is None else str(value) for value in column], pa.string())


def load_plot() -> Callable[..., Plot]:
    """Return `plot_batches`. Raises UsageError without matplotlib."""
    try:
        from txstream.drawing.batches import plot_batches
    except ImportError as error:
        raise UsageError(
            f"plots are drawn with matplotlib, which cannot be imported ({error}); "
            "type pip install 'txstream[svg]'"
        ) from error
    return plot_batches


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return rows below a title as an HTML table; numbers are aligned right."""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>" if header else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}{body}</table>"


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) else "left"
    return f'<td style="text-align:{side}">{escape(shown(value)[:_LONGEST_TEXT])}</td>'


def topology_html(topology: Topology) -> str:
    """Return the graph as an image, so that its styles are not the page's; in words, it is what `describe`
    says."""
    from txstream.drawing.topology import as_image

    words = escape(topology.describe(), quote=True)
    return f'<div style="overflow-x:auto"><img src="{as_image(topology)}" alt="{words}"></div>'
