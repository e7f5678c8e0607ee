"""Which error has which remedy: the guide about errors. The page of `txstream ui` shows it, the log and the
command line name it. It comes with the package, since a reader may have no guide at hand.

`errors.md` is a link to docs/errors.md.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from txstream.core.errors import TxstreamError

_ROW = re.compile(r"^\| (`\w+`(?:, `\w+`)*) \| (.*) \| (.*) \|$")
_RAISED = re.compile(r"\b[A-Z]\w+(?:Error|Exception)\b")
_OF_USER_CODE = "BoltError"
_AWAY = "ServiceUnavailableError"
_SAYS_ALL = "as the message says"


@dataclass(frozen=True)
class Part:
    """Errors of one kind: what holds for all, in HTML; of each its names, what it means, and what helps."""

    told: str
    rows: tuple[tuple[tuple[str, ...], str, str], ...]


@cache
def parts() -> tuple[Part, ...]:
    """Return the guide, but for its title."""
    text = files("txstream.cli").joinpath("errors.md").read_text(encoding="utf-8").partition("\n\n")[2]
    found = []
    for part in re.split(r"\n(?=\*\*)", text):
        lines = part.splitlines()
        rows = [row for line in lines if (row := _ROW.match(line))]
        told = " ".join(line for line in lines if line and not line.startswith("|"))
        named = [
            (tuple(re.findall(r"\w+", names)), _html(means), _html(help_))
            for names, means, help_ in (row.groups() for row in rows)
        ]
        found.append(Part(_html(told), tuple(named)))
    return tuple(found)


@cache
def known() -> frozenset[str]:
    """Return the classes that the section has a row of."""
    return frozenset(name for part in parts() for names, _, _ in part.rows for name in names)


def of_error(error: TxstreamError) -> str | None:
    """Return the class by whose name an error stands in the guide."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in known()), None)


def of_words(words: str) -> str | None:
    """Return the class of an error that is known by its words alone, as ZooKeeper and ledgers keep them."""
    named = next((name for name in _RAISED.findall(words) if name in known()), None)
    if named is None and re.search(r"\bcomponent '", words):
        return _OF_USER_CODE
    is_away = re.search(r"not answer|cannot be reached|was left out|waiting for", words) is not None
    return named or (_AWAY if is_away else None)


def pointer(name: str | None) -> str:
    """Return where the guide has this error, in brackets; nothing if it has no more than the message."""
    helps = {name: help_ for part in parts() for names, _, help_ in part.rows for name in names}
    return "" if helps.get(name or "", _SAYS_ALL) == _SAYS_ALL else f" (guide: errors.md, {name})"


def _html(text: str) -> str:
    """Return a line of Markdown as HTML. A link's target is in the guide, which this page has no more of."""
    shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", html.escape(text))
    return re.sub(r"\*\*(.*?)\*\*", r"<strong>\1</strong>", re.sub(r"`([^`]*)`", r"<code>\1</code>", shown))
