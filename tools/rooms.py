"""The rooms of the house: lines, floors and arrows. `python tools/rooms.py` prints them.

A room is a folder of `txstream/`, a plug-in, or a folder at the root. An arrow is a room that imports another
one, be it in a function or for the type checker. A room stands one floor above the highest that it imports.
Doors count as no arrows: they give names of other rooms to users, and load none before.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from graphlib import CycleError, TopologicalSorter
from pathlib import PurePosixPath
from types import FrameType
from typing import Final

from imports import imported_names
from tracked_wheel import INSTALLS_AS, ROOT, tracked_files

KERNEL: Final = ("core", "api", "settings", "zookeeper", "state", "engine")
"""What exactly-once state needs. Beside it stands what everybody uses: Kafka, bolts, the command line."""
DOORS: Final = frozenset(
    {
        PurePosixPath("txstream/__init__.py"),
        PurePosixPath("txstream/__main__.py"),
        PurePosixPath("txstream/inspect/__init__.py"),
        PurePosixPath("txstream/testing/__init__.py"),
        PurePosixPath("spouts/files/__init__.py"),
    }
)
"""Paths that users import from, wherever the code lies."""


def module_of(path: PurePosixPath) -> str:
    """Return the name by which a file of the product is imported."""
    parts = [*INSTALLS_AS[path.parts[0]].split("/"), *path.with_suffix("").parts[1:]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: PurePosixPath) -> str:
    """Return the room of a file of the product: `engine`, `plugins/web`, `spouts`, or `hall`."""
    if path.parts[0] != "txstream":
        return path.parts[0]
    inner = path.parts[1:-1]
    if inner[:1] == ("plugins",):
        return "/".join(inner[:2]) if inner[1:] else "hall"
    return inner[0] if inner else "hall"


def product() -> dict[PurePosixPath, str]:
    """Return the product's Python files and their sources."""
    return {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in tracked_files()
        if path.parts[0] in INSTALLS_AS and path.suffix == ".py"
    }


def imports_between(sources: Mapping[PurePosixPath, str]) -> list[tuple[PurePosixPath, int, PurePosixPath]]:
    """Return each import of one file by another: who imports, in which line, what."""
    files = {module_of(path): path for path in sources}
    found = []
    for path, source in sources.items():
        for line, name in imported_names(source, for_checkers=True):
            target = files.get(name) or files.get(name.rpartition(".")[0])  # a module, or a name in one
            if target is not None and target != path:
                found.append((path, line, target))
    return found


def arrows_of(
    imports: Iterable[tuple[PurePosixPath, int, PurePosixPath]], rooms: Iterable[str]
) -> dict[str, set[str]]:
    """Return, by room, the rooms that it imports."""
    arrows: dict[str, set[str]] = {room: set() for room in rooms}
    for path, _, target in imports:
        if path not in DOORS and target not in DOORS and room_of(path) != room_of(target):
            arrows[room_of(path)].add(room_of(target))
    return arrows


def floors_of(arrows: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return each room's floor, from 1. Raises CycleError if rooms import each other in a circle."""
    floors: dict[str, int] = {}
    for room in TopologicalSorter(arrows).static_order():
        floors[room] = 1 + max((floors[below] for below in arrows[room]), default=0)
    return floors


@contextmanager
def called_files() -> Iterator[set[PurePosixPath]]:
    """Yield the files of the product of which a function is called, in this thread and in those that start
    meanwhile, without those of plug-ins."""
    found: set[PurePosixPath] = set()

    @functools.cache
    def ours(name: str) -> PurePosixPath | None:
        path = PurePosixPath(name)
        inner = path.relative_to(ROOT) if path.is_relative_to(ROOT) else PurePosixPath()
        is_ours = inner.parts[:1] and inner.parts[0] in INSTALLS_AS and "plugins" not in inner.parts
        return inner if is_ours else None

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and (path := ours(code.co_filename)) is not None:
            found.add(path)

    before = sys.getprofile()
    sys.setprofile(note)
    threading.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def main() -> int:
    sources = product()
    lines: Counter[str] = Counter()
    for path, source in sources.items():
        lines[room_of(path)] += len(source.splitlines())
    arrows = arrows_of(imports_between(sources), lines)
    try:
        floors = floors_of(arrows)
    except CycleError as error:
        print(f"rooms that import each other in a circle: {' -> '.join(error.args[1])}")
        return 1
    for room in sorted(lines, key=lambda room: (floors[room], room)):
        kind = "kernel" if room in KERNEL else "plug-in" if room.startswith("plugins/") else ""
        print(f"{floors[room]:2}  {room:20} {lines[room]:6,}  {kind:7}  {', '.join(sorted(arrows[room]))}")
    print(
        f"kernel {sum(lines[room] for room in KERNEL):,} lines, product {sum(lines.values()):,}; "
        f"{len(lines)} rooms, {max(floors.values())} floors, {sum(map(len, arrows.values()))} arrows"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
