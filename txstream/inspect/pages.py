"""What an installed package adds to the page (`txstream ui`): pages of a topology, and what their buttons do.

An object of the group `txstream.pages` is called in the server, with the settings, its ZooKeeper and a
topology's id, whenever that topology or one of these pages is shown: it must be quick, and change nothing.
What takes long is for a `Button`, whose functions run in a thread. All that they return is plain text and
numbers, which the page escapes. They raise TxstreamErrors, as commands do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Told:
    """What a page shows: sentences, and below their headings the rows of tables, by column."""

    words: Sequence[str] = ()
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Button:
    """`done` is called once for each press, with who has pressed: "page from ADDRESS".

    With `asked` it changes something: the button is there only for those who may operate, `asked` tells first
    what would be done or raises why it cannot be, and `done` follows when that is confirmed. It may be called
    long after `asked`, or twice at once, and sees for itself whether it still can be done. Without `asked`
    it only looks, and everybody may press it.
    """

    words: str
    done: Callable[[str], Told]
    asked: Callable[[], str] | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """`name` is the last part of its address, other than those of the topology's other pages; `words` is what
    leads there; `buttons` are by the last part of their addresses."""

    name: str
    words: str
    told: Told
    buttons: Mapping[str, Button] = field(default_factory=dict)
