"""Loads the code of a guide as a module, so that its examples run as a reader would write them."""

from __future__ import annotations

import importlib.util
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))]

_PROGRAMS = ("txstream", "python", "python3", "make", "echo", "systemctl", "journalctl")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class ShownCommand:
    """A command line as a reader would type it, its line number, and the output that the guide shows."""

    text: str
    line: int
    shown: str = ""

    @property
    def calls(self) -> list[list[str]]:
        """The words of each program that it calls; a pipe calls several."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        found: list[list[str]] = [[]]
        for word in lexer:
            found = [*found, []] if set(word) <= set("|&;") else [*found[:-1], [*found[-1], word]]
        return found


def commands_of(guide: Path) -> list[ShownCommand]:
    """Return the commands in the guide's blocks: those after `$ `, with their output, or a block that begins
    with a command. The output of a block's last command may be a `text` block right below."""
    text = guide.read_text(encoding="utf-8")
    found: list[ShownCommand] = []
    end = 0
    for block in _BLOCK.finditer(text):
        language, code, first = block[1], block[2], text.count("\n", 0, block.start(2)) + 1
        if language == "text" and found and not text[end : block.start()].strip():
            found[-1] = ShownCommand(found[-1].text, found[-1].line, code)
        elif language in ("", "bash"):
            here = list(_commands_in(code, first))
            assert here or not re.search(r"^\$? ?txstream ", code, re.M), (
                f"{guide.name}:{first}: no commands?"
            )
            found += here
            end = block.end() if here else end
    return found


def _commands_in(code: str, first: int) -> Iterator[ShownCommand]:
    if code.startswith("$ "):
        for part in re.finditer(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", code, re.M):
            yield ShownCommand(part[1], first + code.count("\n", 0, part.start()), part[2])
    elif code.split(maxsplit=1)[0] in _PROGRAMS:
        for part in re.finditer(r"^[^#\n](?:.*\\\n)*.*$", code, re.M):
            yield ShownCommand(part[0], first + code.count("\n", 0, part.start()))


def files_of(guide: Path) -> dict[str, str]:
    """Return the blocks that begin with a file name as a comment, joined by that name."""
    found: dict[str, str] = {}
    for block in _BLOCK.finditer(guide.read_text(encoding="utf-8")):
        name = re.match(r"# ([\w./-]+\.\w+)\n", block[2])
        if name is not None:
            found[name[1]] = found.get(name[1], "") + block[2]
    return found


def python_of(guide: Path) -> str:
    """Return all Python blocks of the guide, one after the other; every line keeps its number."""
    text = guide.read_text(encoding="utf-8")
    lines: list[str] = []
    for block in re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S):
        before = text.count("\n", 0, block.start(1))
        lines += [""] * (before - len(lines)) + block[1].splitlines()
    return "\n".join(lines) + "\n"


def load(guide: Path, directory: Path) -> ModuleType:
    """Return the guide's code as a module, imported so that its bolts can be pickled by reference."""
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
    """Yield the module's test functions, each with the arguments that pytest would pass, but for fixtures."""
    for name, function in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(function):
            calls: list[dict[str, Any]] = [{}]
            for mark in getattr(function, "pytestmark", []):
                argument, values = mark.args
                calls = [{**call, argument: value} for call in calls for value in values]
            yield function, calls


def fixtures_of(function: Callable[..., Any], call: dict[str, Any]) -> set[str]:
    """Return the names of the fixtures that the function still needs."""
    return set(inspect.signature(function).parameters) - set(call)
