"""The wheel as git would release it: built from the tracked files alone.

The list of packages in `pyproject.toml` is kept by hand, because four folders at the root install below
`txstream`. What git tracks in the five folders is the truth that the wheel is compared with.

Invariants: nothing is built inside the checkout, where a `build/` left by an earlier build would put deleted
modules back into the wheel; files that git does not track never count, present or not.
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
"""Folder at the root -> where its files are in the wheel."""


class CheckError(Exception):
    """The check could not be made, or it failed; the message is meant for the terminal as it is."""


def tracked_files(root: Path = ROOT) -> list[PurePosixPath]:
    """Every file that git tracks and the working tree still has, relative to `root`, sorted."""
    listed = _git_names(root)
    deleted = set(_git_names(root, "--deleted"))
    return sorted(PurePosixPath(name) for name in listed if name not in deleted)


def packaged_files(root: Path = ROOT) -> dict[PurePosixPath, PurePosixPath]:
    """What git tracks in the five folders: path in the checkout -> path in the wheel."""
    return {
        path: PurePosixPath(INSTALLS_AS[path.parts[0]], *path.parts[1:])
        for path in tracked_files(root)
        if path.parts[0] in INSTALLS_AS
    }


def copy_tracked(into: Path, root: Path = ROOT) -> Path:
    """A checkout of what git tracks below `into`; `into`."""
    for path in tracked_files(root):
        target = into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
    return into


def build_wheel(into: Path, root: Path = ROOT) -> Path:
    """Build the wheel below the empty folder `into` and return its path.

    The build is not isolated: the environment that runs this has setuptools (the `dev` extra), so that
    no network is needed.
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
    """Lay the wheel's files out below `into`, as an installer does for a wheel in pure Python."""
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
