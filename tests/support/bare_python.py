"""An interpreter as executors have it: with what they need, but without txstream."""

from __future__ import annotations

import importlib.metadata
import subprocess
import venv
from pathlib import Path

EXECUTORS_NEED = ("pyarrow", "numpy", "kafka-python", "crc32c")


def make_bare_python(directory: Path) -> Path:
    """Make a virtual environment in the directory, with links to the installed files of `EXECUTORS_NEED` and
    nothing else; return its interpreter."""
    venv.create(directory, symlinks=True)
    python = directory / "bin" / "python"
    (site_packages,) = (directory / "lib").glob("python*/site-packages")
    for name in EXECUTORS_NEED:
        distribution = importlib.metadata.distribution(name)
        # Entry points have paths that lead out of site-packages; nobody calls them here.
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            (site_packages / top).symlink_to(Path(str(distribution.locate_file(top))).resolve())
    _check(python, "import pyarrow, numpy, kafka, crc32c", works=True)
    _check(python, "import txstream", works=False)
    return python


def _check(python: Path, statement: str, *, works: bool) -> None:
    done = subprocess.run([python, "-I", "-c", statement], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is works, f"{python} -c {statement!r}: {done.stderr}"
