"""Run mypy --strict over txstream as it installs, then over the tests, tools and benchmarks.

From the repository's root mypy silently sees only `./txstream`, because the four folders that install below
it do not have that name there. So it runs from an empty folder on an unpacked wheel. The check fails unless
mypy checked as many files as git tracks in the five folders.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Final

from tracked_wheel import INSTALLS_AS, ROOT, CheckError, build_wheel, packaged_files, tracked_files, unpack

CACHE: Final = ROOT / ".mypy_cache"

_CHECKED = re.compile(
    r"^(?:Success: no issues found in|Found .*checked) (\d+) source files?\)?$", re.MULTILINE
)


def files_checked(output: str) -> int:
    """Return how many source files mypy's last line says it checked. Raises CheckError if it does not say."""
    found = _CHECKED.search(output)
    if found is None:
        raise CheckError("mypy ended without saying how many source files it checked")
    return int(found.group(1))


def compare(checked: int, tracked: list[PurePosixPath], installed: list[PurePosixPath]) -> None:
    """Raise CheckError unless mypy checked as many files as there are `tracked` Python files. `tracked` and
    `installed` are paths inside the wheel, according to git and as unpacked."""
    if checked == len(tracked):
        return
    missing = sorted(set(tracked) - set(installed))
    if missing:
        names = ", ".join(map(str, missing))
        remedy = f"the wheel lacks {names}: list the package under [tool.setuptools] in pyproject.toml"
    else:
        remedy = "all are in the wheel: look for a folder without __init__.py or a name that is no identifier"
    raise CheckError(f"mypy checked {checked} files, git tracks {len(tracked)} in the five folders; {remedy}")


def check(scratch: Path) -> int:
    """Check the package, then what is not in the wheel. Returns the first exit status that is not 0."""
    empty = scratch / "empty"
    empty.mkdir()
    # Always the same place: mypy repeats a cached error with the path that it had in an earlier run.
    installed = CACHE / "installed"
    shutil.rmtree(installed, ignore_errors=True)
    unpack(build_wheel(scratch), installed)
    package_status, output = _mypy(["-p", "txstream"], run_in=empty, path=[installed])
    tracked = [path for path in packaged_files().values() if path.suffix == ".py"]
    unpacked = [PurePosixPath(path.relative_to(installed)) for path in installed.rglob("*.py")]
    compare(files_checked(output), tracked, unpacked)

    others = [
        str(ROOT / path)
        for path in tracked_files()
        if path.suffix == ".py" and path.parts[0] in ("tests", "tools", "benchmarks")
    ]
    # Tests and tools import each other as plain modules. The unpacked wheel comes first, as txstream.
    others_status, _ = _mypy(
        ["--explicit-package-bases", *others],
        run_in=empty,
        path=[installed, ROOT / "tools", ROOT / "tests", ROOT / "benchmarks"],
    )
    return package_status or others_status


def _mypy(arguments: list[str], *, run_in: Path, path: list[Path]) -> tuple[int, str]:
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml")]
    command += ["--cache-dir", str(CACHE), *arguments]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, cwd=run_in, env=environment, capture_output=True, text=True, check=False)
    print(_as_in_checkout(done.stdout, path[0]), end="")
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode, done.stdout


def _as_in_checkout(output: str, installed: Path) -> str:
    """Return mypy's output with paths that an editor can open, instead of those in the unpacked wheel."""
    for folder, installs_as in reversed(INSTALLS_AS.items()):
        output = output.replace(f"{installed / installs_as}{os.sep}", f"{folder}{os.sep}")
    return output.replace(f"{ROOT}{os.sep}", "")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="txstream-types-") as scratch:
        try:
            return check(Path(scratch))
        except CheckError as error:
            print(f"types: {error}", file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
