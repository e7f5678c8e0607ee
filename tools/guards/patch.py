"""One change of the product's text, and the product with such changes in force while it runs.

Functions are changed in place, so it does not matter who has imported them, and objects that were made before
are changed too. A change outside of functions, of a constant for example, cannot be put in force in this way.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True)
class Patch:
    """`new` in place of `old`, which is in `file` exactly once. `file` is relative to the repository."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """Return the file's text with the patch. Raises ValueError unless its code is there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.file} has the code {found} times, it must be there once: {self.old}")
        return text.replace(self.old, self.new)

    def around(self, text: str) -> list[ast.stmt]:
        """Return the classes, functions and assignments that contain the code, from the outermost on."""
        code = self.old.lstrip()
        line = text[: text.index(self.old) + len(self.old) - len(code)].count("\n") + 1
        around = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Assign)
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        return sorted(around, key=lambda node: node.lineno)

    @property
    def module(self) -> Any:
        path = self.file if self.file.startswith("txstream/") else f"txstream/{self.file}"
        return importlib.import_module(path.removesuffix(".py").replace("/", "."))

    def function(self, text: str) -> str:
        """Return the name of the outermost function that contains the code, with its classes."""
        names = []
        for node in self.around(text):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.append(node.name)
            if isinstance(node, ast.FunctionDef):
                return ".".join(names)
        raise ValueError(f"{self.file}: this is not in a function: {self.old}")


@contextlib.contextmanager
def in_force(patches: Sequence[Patch]) -> Iterator[None]:
    """Run the block with these patches."""
    changed = _changed(tuple(patches))
    before = [(function, function.__code__) for function, _ in changed]
    try:
        for function, code in changed:
            function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


@functools.cache
def _changed(patches: tuple[Patch, ...]) -> list[tuple[FunctionType, CodeType]]:
    changed = []
    for module in {patch.module: None for patch in patches}:
        path = Path(module.__file__)
        patched = text = path.read_text(encoding="utf-8")
        names = set()
        for patch in (patch for patch in patches if patch.module is module):
            names.add(patch.function(text))
            patched = patch.applied(patched)
        codes = _codes(compile(patched, path, "exec", dont_inherit=True))
        changed += [(_function(module, name), codes[name]) for name in names]
    return changed


def _codes(code: CodeType) -> dict[str, CodeType]:
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= {constant.co_qualname: constant, **_codes(constant)}
    return found


def _function(module: Any, name: str) -> FunctionType:
    found = functools.reduce(inspect.getattr_static, name.split("."), module)
    if isinstance(found, property):
        found = found.fget
    found = inspect.unwrap(getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), name
    return found
