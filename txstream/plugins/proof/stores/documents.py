"""Keys and values of a `StoreBackend` as text, for stores that keep text or bytes.

Invariant: `from_text(to_text(value)) == value`, types included, for every tree that a `Transaction` is given;
tuples come back as tuples. The text is JSON. A type that JSON lacks is an object with one member, `$` + type.
"""

from __future__ import annotations

import base64
import json
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from txstream.core.wording import a


def to_text(value: Any) -> str:
    """Return a key or value as one line of ASCII. Raises TypeError for what no `Transaction` is given."""
    return json.dumps(_plain(value), separators=(",", ":"), sort_keys=True)


def from_text(text: str) -> Any:
    """Return the key or value that `to_text` was given. Raises ValueError for text that it did not write."""
    return _tree(json.loads(text))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        plain = {name: _plain(item) for name, item in value.items()}
        # A user's document may have names that begin with `$`.
        return {"$dict": list(plain.items())} if any(name.startswith("$") for name in plain) else plain
    if isinstance(value, tuple):
        return {"$tuple": [_plain(item) for item in value]}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, Decimal):
        return {"$decimal": str(value)}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat()}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    raise TypeError(f"{a(type(value).__name__)} cannot be kept: {value!r:.100}")


def _tree(plain: Any) -> Any:
    if isinstance(plain, list):
        return [_tree(item) for item in plain]
    if not isinstance(plain, dict):
        return plain
    kind: str
    content: Any
    kind, content = next(iter(plain.items()), ("", None))
    if len(plain) != 1 or not kind.startswith("$"):
        return {name: _tree(item) for name, item in plain.items()}
    match kind:
        case "$dict":
            return {name: _tree(item) for name, item in content}
        case "$tuple":
            return tuple(_tree(item) for item in content)
        case "$bytes":
            return base64.b64decode(content)
        case "$decimal":
            return Decimal(content)
        case "$datetime":
            return datetime.fromisoformat(content)
        case "$date":
            return date.fromisoformat(content)
        case _:
            raise ValueError(f"there is no type {kind!r}")
