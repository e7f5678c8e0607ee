"""Tables of values as HTML, for notebooks.

Invariant: every text is escaped, because ids and errors may hold anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from txstream.core.wording import shown

_LONGEST_TEXT = 500


def html_table(title: str, rows: Iterable[Sequence[object]], header: Sequence[str] = ()) -> str:
    """Return rows below a title as an HTML table; numbers are aligned right."""
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in header)}</tr>" if header else ""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption>{head}{body}</table>"


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) else "left"
    return f'<td style="text-align:{side}">{escape(shown(value)[:_LONGEST_TEXT])}</td>'
