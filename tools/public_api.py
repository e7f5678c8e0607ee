"""Lists what is public in Python: every public name with its methods and arguments, a line each.

docs/reference/public_api.txt holds the list as it was agreed on; a test compares it with the code.
`python tools/public_api.py --write` writes it again.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any, Final

from tracked_wheel import ROOT
from txstream.core.errors import TxstreamError

WRITTEN: Final = ROOT / "docs" / "reference" / "public_api.txt"
MODULES: Final = ("txstream", "txstream.inspect", "txstream.reading", "txstream.testing")
FURTHER: Final = (
    ("txstream.api.declarer", "BoltDeclarer"),  # what `set_bolt` returns
    ("txstream.engine.spark.session", "create_session"),
)


def lines() -> list[str]:
    """Return the list, sorted by module and name."""
    found: list[str] = []
    for name in MODULES:
        module = importlib.import_module(name)
        for public in sorted(module.__all__):
            if public != "__version__":
                found += _described(f"{name}.{public}", getattr(module, public))
    for home, public in FURTHER:
        found += _described(f"{home}.{public}", getattr(importlib.import_module(home), public))
    return found


def _described(path: str, thing: Any) -> Iterator[str]:
    if not inspect.isclass(thing):
        yield f"{path}{_arguments(thing)}" if callable(thing) else path
        return
    if issubclass(thing, enum.Enum):
        yield path
        yield from (f"{path}.{member.name} = {str(member.value)!r}" for member in thing)
        return
    yield f"{path}{'' if issubclass(thing, BaseException) else _arguments(thing)}"
    for name, member in sorted(_members(thing).items()):
        is_method = inspect.isfunction(member) or isinstance(member, (classmethod, staticmethod))
        yield f"{path}.{name}{_arguments(getattr(thing, name)) if is_method else ''}"


def _members(thing: type) -> dict[str, Any]:
    """Return the public attributes of a class that txstream defines, those of its bases among them. What all
    errors have is listed once, for their root."""
    found: dict[str, Any] = {}
    for base in reversed(thing.__mro__):
        is_listed_above = issubclass(thing, TxstreamError) and base is TxstreamError is not thing
        if base.__module__.partition(".")[0] == "txstream" and not is_listed_above:
            found |= dict.fromkeys(inspect.get_annotations(base))
            found |= vars(base)
    return {name: member for name, member in found.items() if not name.startswith("_")}


def _arguments(thing: Any) -> str:
    """Return the arguments by name, with `=` where one may be left out. Types and values are left out: they
    are in the reference, and a better type is no other API."""
    try:
        signature = inspect.signature(thing)
    except (TypeError, ValueError):  # of a class written in C
        return "(...)"
    shown: list[str] = []
    is_keyword = False
    for one in signature.parameters.values():
        if one.name in ("self", "cls"):
            continue
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            shown.append("*")
        if one.kind is one.VAR_POSITIONAL:
            is_keyword = True
        star = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        optional = "=" if one.default is not one.empty else ""
        shown.append(f"{star}{one.name}{optional}")
    return f"({', '.join(shown)})"


def main(arguments: list[str]) -> int:
    text = "\n".join(lines()) + "\n"
    if arguments == ["--write"]:
        WRITTEN.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
