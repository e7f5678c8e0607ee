"""Builds the wheel as git would release it: from the tracked files alone.

The list of packages in `pyproject.toml` is kept by hand, because four folders at the root install below
`txstream`. So the wheel is compared with what git tracks in the five folders.

Invariants. Nothing is built inside the checkout, where a `build/` left by an earlier build would put deleted
modules back into the wheel. Files that git does not track never count, present or not.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

INSTALLS_AS: Final = {
    "txstream": "txstream",
    "spouts": "txstream/spouts",
    "bolts": "txstream/bolts",
    "examples": "txstream/examples",
    "migrations": "txstream/migrations",
}
"""Folder at the root -> folder of its files in the wheel."""


class CheckError(Exception):
    """The check could not be made, or it failed. The message is printed to the terminal as it is."""


def tracked_files(root: Path = ROOT) -> list[PurePosixPath]:
    """Return every file that git tracks and the working tree still has, relative to `root`, sorted."""
    listed = _git_names(root)
    deleted = set(_git_names(root, "--deleted"))
    return sorted(PurePosixPath(name) for name in listed if name not in deleted)


def packaged_files(root: Path = ROOT) -> dict[PurePosixPath, PurePosixPath]:
    """Return what git tracks in the five folders, as path in the checkout -> path in the wheel."""
    return {
        path: PurePosixPath(INSTALLS_AS[path.parts[0]], *path.parts[1:])
        for path in tracked_files(root)
        if path.parts[0] in INSTALLS_AS
    }


def copy_tracked(into: Path, root: Path = ROOT) -> Path:
    """Copy what git tracks to the folder `into`, and return `into`."""
    for path in tracked_files(root):
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
    return into


def build_wheel(into: Path, root: Path = ROOT) -> Path:
    """Build the wheel below the empty folder `into` and return its path.

    The build is not isolated, so that it needs no network: the environment that runs this has setuptools (the
    `dev` extra).
    """
    source = copy_tracked(into / "source", root)
    dist = into / "dist"
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", dist, source],
        capture_output=True,
        text=True,
        check=False,
        cwd=into,
    )
    if built.returncode != 0:
        raise CheckError(
            f"the wheel cannot be built from what git tracks:\n{built.stdout}{built.stderr}\n"
            "A missing file that exists here needs `git add`; a missing tool needs `make test`, "
            "which installs the `dev` extra."
        )
    (wheel,) = dist.glob("*.whl")
    return wheel


def unpack(wheel: Path, into: Path) -> None:
    """Lay out the wheel's files below `into`, as an installer does for a pure Python wheel."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)


def _git_names(root: Path, *options: str) -> list[str]:
    try:
        answer = subprocess.run(
            ["git", "ls-files", "-z", *options], cwd=root, capture_output=True, text=True, check=True
        )
    except FileNotFoundError as error:
        raise CheckError("git was not found; install it (Debian: apt-get install git)") from error
    except subprocess.CalledProcessError as error:
        raise CheckError(f"git cannot list the files of {root}: {error.stderr.strip()}") from error
    return [name for name in answer.stdout.split("\0") if name]
