"""`Overlay`: a transaction over dictionaries, for stores that hold everything in memory and write changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from txstream.state.store.merging import Key

Spaces = dict[str, dict[Key, Any]]


class Overlay:
    """One transaction's view: `below` is what is committed, its own changes are above. Nothing is put below
    before `apply`."""

    def __init__(self, below: Spaces) -> None:
        self._below = below
        self._changed: Spaces = {}

    def get(self, space: str, key: Key) -> Any:
        changed = self._changed.get(space)
        if changed is not None and key in changed:
            return changed[key]
        return self._below.get(space, {}).get(key)

    def put(self, space: str, key: Key, value: Any) -> None:
        self._changed.setdefault(space, {})[key] = value

    def scan(self, space: str) -> Iterable[tuple[Key, Any]]:
        changed = self._changed.get(space, {})
        # Copied in one step, which other threads cannot come between.
        below = list(self._below.get(space, {}).items())
        found = [item for item in below if item[0] not in changed]
        return found + [item for item in changed.items() if item[1] is not None]

    def changes(self) -> Iterator[tuple[str, Key, Any]]:
        """What was put: space, key and value, None for what was removed."""
        for space, changed in self._changed.items():
            for key, value in changed.items():
                yield space, key, value

    def apply(self) -> None:
        """Put the changes below."""
        for space, key, value in self.changes():
            apply_to(self._below, space, key, value)


def apply_to(spaces: Spaces, space: str, key: Key, value: Any) -> None:
    """One change to what is committed."""
    if value is None:
        spaces.get(space, {}).pop(key, None)
    else:
        spaces.setdefault(space, {})[key] = value
