"""Runs unit tests on the Pythons that txstream names and the main test run does not use.

They are looked for on the path and among pyenv's. Each gets an environment with the wheel and what it
requires; PySpark, which is large and pure Python, is linked from the environment that runs this. The tests
are those of the pure core and of SQLite: they need no server and no Spark, and show what a release of Python
breaks (dataclasses, enums, annotations, pickles, the wheels of Arrow and NumPy).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tracked_wheel import ROOT, CheckError, build_wheel

TESTS: Final = (
    "unit/test_coordinator",
    "unit/test_semantics",
    "unit/test_transaction",
    "unit/test_metas",
    "unit/test_schema",
    "unit/test_rows",
    "unit/test_reducers",
    "unit/test_topology",
    "unit/test_function_bolts",
    "unit/test_json_values",
    "unit/test_wire",
    "plugins/tracked/test_acker_ids",
    "unit/test_state_sqlite",
    "unit/test_recovery",
    "unit/test_zookeeper_progress",
    "plugins/testing/test_testing_bolts",
    "unit/test_releases",
)
EXTRAS: Final = "metrics,mysql,postgresql"  # tests/conftest.py imports the drivers
NEEDED: Final[Sequence[str]] = ("hypothesis", "pytest", "pytest-timeout", "pytest-xdist")
LINKED: Final = ("pyspark", "py4j")
MINUTES: Final = 10


def supported() -> list[str]:
    """Return the versions that pyproject.toml names, such as "3.12"."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", one) for one in project["classifiers"]
    )
    return [found[1] for found in named if found]


def find(version: str) -> Path | None:
    """Return an interpreter of this version that can make environments, or None."""
    roots = sorted(Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob(f"versions/{version}.*"))
    candidates = [
        shutil.which(f"python{version}"),
        *(str(root / "bin" / "python") for root in reversed(roots)),
    ]
    asks = "import sys, ensurepip, venv; print(*sys.version_info[:2], sep='.')"
    for candidate in filter(None, candidates):
        done = subprocess.run([candidate, "-c", asks], capture_output=True, text=True, check=False)
        if done.stdout.strip() == version:  # pyenv's shims exist for versions that it would not run
            return Path(candidate)
    return None


def run(python: Path, wheel: Path, scratch: Path) -> int:
    """Run the tests with this interpreter; return pytest's exit status. Raises CheckError."""
    environment = scratch / "environment"
    _call([python, "-m", "venv", environment])
    own = environment / "bin" / "python"
    (packages,) = (environment / "lib").glob("python*/site-packages")
    for found in _linked():
        (packages / found.name).symlink_to(found)
    _call([own, "-m", "pip", "install", "--quiet", f"{wheel}[{EXTRAS}]", *NEEDED])
    tests = [f"tests/{name}.py" for name in TESTS]
    pytest = [
        str(own),
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "-p",
        "no:cacheprovider",
        "-m",
        "not soak",
    ]
    clean = {
        name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "PYTHONPATH")
    }
    # Otherwise ./txstream would come first, which lacks the folders that install below it.
    clean["PYTHONSAFEPATH"] = "1"
    try:
        return subprocess.run(
            [*pytest, *tests], cwd=ROOT, env=clean, check=False, timeout=MINUTES * 60
        ).returncode
    except subprocess.TimeoutExpired as error:
        raise CheckError(f"the tests took more than {MINUTES} minutes") from error


def _linked() -> Iterator[Path]:
    """Yield the folders of the packages that are linked, with their metadata."""
    import pyspark

    packages = Path(pyspark.__file__).parents[1]
    for name in LINKED:
        yield packages / name
        yield from packages.glob(f"{name}-*.dist-info")


def _call(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CheckError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")


def main() -> int:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    found = {version: find(version) for version in supported() if version != here}
    failed = []
    with tempfile.TemporaryDirectory(prefix="txstream-pythons-") as folder:
        wheel = build_wheel(Path(folder))
        for version, python in found.items():
            if python is None:
                print(f"Python {version}: NOT TESTED, there is none on this machine", flush=True)
                continue
            print(f"Python {version}: {python}", flush=True)
            scratch = Path(folder) / version
            scratch.mkdir()
            try:
                status = run(python, wheel, scratch)
            except CheckError as error:
                print(f"Python {version}: {error}", file=sys.stderr)
                status = 1
            if status != 0:
                failed.append(version)
    if failed:
        print(f"the unit tests fail on Python {', '.join(failed)}", file=sys.stderr)
    elif not any(found.values()):
        print(f"only Python {here} was tested: no other that pyproject.toml names is on this machine")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
