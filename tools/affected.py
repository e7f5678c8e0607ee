"""Which tests of the long lane prove what the commits of the last days changed.

    python tools/affected.py [--since "2 days ago"] [--seconds 480]

A test is nearer to a change the fewer imports lie between; a guard (tools/guards) ties its file to its
test; the guides' tests go with the guides. The nearest come first, and of equally near ones the
quickest, until their recorded time is full. What is left out is printed, too.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from durations import recorded
from guards import GUARDS
from imports import imported_names, module_files
from tracked_wheel import INSTALLS_AS, ROOT

SINCE: Final = "2 days ago"
SECONDS: Final = 480.0
OF_GUIDES: Final = ("tests/unit/test_docs_site.py", "tests/acceptance/test_guides.py")
_IS_GUIDE: Final = re.compile(r"(README|docs/.*)\.md")


def changed_files(since: str, root: Path = ROOT) -> set[str]:
    """Return the files that commits since then changed and that are still there."""
    command = ["git", "log", f"--since={since}", "--name-only", "--pretty=format:"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if line and (root / line).exists()}


def import_graph() -> dict[str, set[str]]:
    """Return, by file, the files that it imports: of the product, the tests and the tools."""
    modules: dict[str, Path] = {}
    for folder, installs_as in INSTALLS_AS.items():
        modules |= module_files(ROOT / folder, installs_as.replace("/", "."))
    for folder in ("tests", "tools"):
        found = module_files(ROOT / folder, folder)
        modules |= {name.partition(".")[2]: path for name, path in found.items() if "." in name}
    graph: dict[str, set[str]] = {}
    for path in modules.values():
        names = {
            name
            for _, imported in (imported_names(path.read_text(encoding="utf-8")) if path.exists() else ())
            for name in (imported, imported.rpartition(".")[0])  # a module, or a name in one
        }
        graph[_file(path)] = {_file(modules[name]) for name in names if name in modules}
    return graph


def _file(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def distances(test: str, graph: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return how many imports away each file is that this one needs, itself included."""
    found, waiting = {test: 0}, deque([test])
    while waiting:
        file = waiting.popleft()
        for imported in graph.get(file, ()):
            if imported not in found:
                found[imported] = found[file] + 1
                waiting.append(imported)
    return found


def nearest(changed: set[str], tests: Iterable[str], graph: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """Return, by test file that a change reaches, how near it is."""
    proved = {(guard.test.partition("::")[0], guard.file) for guard in GUARDS if guard.test}
    found = {}
    for test in tests:
        near = [far for file, far in distances(test, graph).items() if file in changed]
        near += [0 for file in changed if (test, file) in proved]
        near += [0 for file in changed if test in OF_GUIDES and _IS_GUIDE.fullmatch(file)]
        if near:
            found[test] = min(near)
    return found


def chosen(near: Mapping[str, int], took: Mapping[str, float], seconds: float) -> tuple[list[str], list[str]]:
    """Return the files to run, which take `seconds` at most, and those that are left out."""
    run: list[str] = []
    left: list[str] = []
    spent = 0.0
    for file in sorted(near, key=lambda file: (near[file], took[file], file)):
        fits = spent + took[file] <= seconds
        spent += took[file] if fits else 0.0
        (run if fits else left).append(file)
    return run, left


def affected(since: str = SINCE, seconds: float = SECONDS) -> tuple[list[str], list[str]]:
    """Return the long lane's files to run for the commits since then, and those that are left out."""
    took = {file: one for file, (_, one) in recorded()["long"].items() if (ROOT / file).exists()}
    return chosen(nearest(changed_files(since), took, import_graph()), took, seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--since", default=SINCE)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args()
    run, left = affected(given.since, given.seconds)
    print(*run, sep="\n")
    print(f"{len(left)} more are left to `make soak`:", *left, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
