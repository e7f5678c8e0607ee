"""Builds a release and tries it: `make release`.

The wheel and the sdist are built from what git tracks, in that order: the sdist, and the wheel from the
unpacked sdist, so that the sdist is known to be complete. Their metadata is checked as PyPI would. Then the
wheel is installed into an empty environment and the demo is run from there, far from the checkout. What is in
dist/ at the end has passed; nothing is uploaded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tracked_wheel import ROOT, CheckError, copy_tracked

DIST: Final = ROOT / "dist"


def problems(root: Path = ROOT) -> list[str]:
    """Return what keeps this checkout from being released."""
    found: list[str] = []
    version = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    module = (root / "txstream" / "__init__.py").read_text(encoding="utf-8")
    if f'__version__ = "{version}"' not in module:
        found.append(f"pyproject.toml has version {version}, txstream/__init__.py another one")
    if f"## [{version}]" not in (root / "CHANGELOG.md").read_text(encoding="utf-8"):
        found.append(f"CHANGELOG.md has no section [{version}]: name the section [Unreleased] so")
    if not (root / "tests" / "releases" / version.rpartition(".")[0]).is_dir():
        found.append(f"tests/releases has nothing of {version}: run tools/release_fixture.py")
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.splitlines()
    if changed:
        found.append(f"the checkout is not clean ({len(changed)} files, {changed[0].strip()} among them)")
    return found


def build(scratch: Path, *, isolated: bool = True) -> tuple[Path, Path]:
    """Build both below `scratch`; return wheel and sdist. Without isolation no network is needed."""
    dist = scratch / "dist"
    options = [] if isolated else ["--no-isolation"]
    source = copy_tracked(scratch / "source")
    _run([sys.executable, "-m", "build", *options, "--outdir", dist, source], scratch, "building")
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist], scratch, "the metadata")
    return wheel, sdist


def install(wheel: Path, scratch: Path) -> Path:
    """Install the wheel with what it requires into an empty environment; return its `txstream`."""
    environment = scratch / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    _run([python, "-m", "pip", "install", "--quiet", wheel], scratch, "installing the wheel")
    return environment / "bin" / "txstream"


def try_it(txstream: Path, scratch: Path, demo: Sequence[str]) -> None:
    """Run the demo of the installed wheel in an empty folder."""
    folder = scratch / "elsewhere"
    folder.mkdir()
    _run([txstream, "--version"], folder, "the installed command")
    _run([txstream, "demo", *demo], folder, "the demo", shows=True)


def _run(command: Sequence[str | Path], folder: Path, what: str, *, shows: bool = False) -> None:
    """Run a command that sees nothing of this checkout. Raises CheckError with what it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TXSTREAM_")}
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=None if shows else subprocess.PIPE,
        stderr=None if shows else subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise CheckError(f"{what} failed with status {done.returncode}\n{done.stdout or ''}")


def main(arguments: Sequence[str]) -> int:
    options = argparse.ArgumentParser(description="Build a release, check it and try it.")
    options.add_argument("--rehearse", action="store_true", help="whatever keeps it from being released")
    options.add_argument("demo", nargs="*", help="options of the demo, after --")
    given = options.parse_args(arguments)
    found = problems()
    for problem in found:
        print(f"release: {problem}", file=sys.stderr)
    if found and not given.rehearse:
        return 1
    with tempfile.TemporaryDirectory(prefix="txstream-release-") as folder:
        scratch = Path(folder)
        try:
            wheel, sdist = build(scratch)
            print(f"built and checked {wheel.name} and {sdist.name}", flush=True)
            try_it(install(wheel, scratch), scratch, given.demo)
        except CheckError as error:
            print(f"release: {error}", file=sys.stderr)
            return 1
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        for file in (wheel, sdist):
            shutil.copy2(file, DIST)
    print(f"{DIST} has a {'rehearsal' if found else 'release'}: {wheel.name}, {sdist.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
