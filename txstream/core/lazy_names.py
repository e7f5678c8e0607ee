"""Names of a package that are loaded when they are first used: its `__getattr__` and `__dir__`.

Type checkers do not follow this; the package imports the same names for them below `if TYPE_CHECKING:`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


def home_of(homes: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return the module of each name, from the names of each module."""
    return {name: module for module, names in homes.items() for name in names}


def lazily(
    package: str, home_of: Mapping[str, str], public: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a package's `__getattr__`, which loads a name from its module, and its `__dir__`, which lists
    the public names."""

    def load(name: str) -> Any:
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return load, lambda: list(public)
