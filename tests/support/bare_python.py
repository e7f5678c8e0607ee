"""An interpreter as executors have it: with what the guide says that they need, but without txstream."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

_GUIDE = Path(__file__).parents[2] / "docs" / "standalone.md"
_NEEDS = re.compile(r"^Workers need Python with (.*?)\. (To write states.*?):$", re.DOTALL | re.MULTILINE)


def executors_need(*, to_write_states: bool = False) -> list[str]:
    """Return the packages that the guide lists, as pip takes them."""
    found = _NEEDS.search(_GUIDE.read_text(encoding="utf-8"))
    assert found is not None, f"{_GUIDE} has no list of what workers need"
    listed = [re.findall(r"`([a-z\d-]+(?:\[[a-z,]+\])?)`", part) for part in found.groups()]
    assert all(listed), listed
    return [*listed[0], *(listed[1] if to_write_states else [])]


def make_bare_python(directory: Path, *, to_write_states: bool = False) -> Path:
    """Make a virtual environment in the directory, with links to the installed files of `executors_need`, of
    what these require, and nothing else; return its interpreter."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    (site_packages,) = (directory / "lib").glob("python*/site-packages")
    for distribution in _installed(executors_need(to_write_states=to_write_states)):
        # Entry points have paths that lead out of site-packages; nobody calls them here.
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            (site_packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    _check(python, "import pyarrow, numpy, kafka, crc32c", works=True)
    _check(python, "import sqlalchemy, psycopg", works=to_write_states)
    for name in ("txstream", "psutil"):
        _check(python, f"import {name}", works=False)
    return python


def _installed(requirements: list[str]) -> Iterator[importlib.metadata.Distribution]:
    """Yield the distributions that pip would install for these, as they are installed here."""
    pending, seen = [Requirement(one) for one in requirements], set[str]()
    while pending:
        wanted = pending.pop()
        distribution = importlib.metadata.distribution(wanted.name)
        if distribution.name not in seen:
            seen.add(distribution.name)
            yield distribution
        for line in distribution.requires or ():
            needed = Requirement(line)
            extras = ("", *wanted.extras)
            is_needed = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in extras
            )
            if is_needed and needed.name not in seen:
                pending.append(needed)


def _check(python: Path, statement: str, *, works: bool) -> None:
    done = subprocess.run([python, "-I", "-c", statement], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is works, f"{python} -c {statement!r}: {done.stderr}"
