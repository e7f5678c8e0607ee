"""The code of a guide as a module, so that its examples are run as a reader would write them."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"


def python_of(guide: Path) -> str:
    """All its Python blocks, one after the other; every line stays on its number."""
    text = guide.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
        before = text.count("\n", 0, block.start(1))
        lines += [""] * (before - len(lines)) + block[1].splitlines()
    return "\n".join(lines) + "\n"


def load(guide: Path, directory: Path) -> ModuleType:
    """The module; bolts of it are pickled by reference, as those of any test module are."""
    name = f"guide_{guide.stem}"
    path = directory / f"{name}.py"
    path.write_text(python_of(guide), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def examples(module: ModuleType) -> Iterator[tuple[Callable[..., Any], list[dict[str, Any]]]]:
    """Its test functions, each with the arguments that pytest would call it with, fixtures left out."""
    for name, function in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(function):
            calls: list[dict[str, Any]] = [{}]
            for mark in getattr(function, "pytestmark", []):
                argument, values = mark.args
                calls = [{**call, argument: value} for call in calls for value in values]
            yield function, calls


def fixtures_of(function: Callable[..., Any], call: dict[str, Any]) -> set[str]:
    """The fixtures that it still needs."""
    return set(inspect.signature(function).parameters) - set(call)
