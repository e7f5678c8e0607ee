"""The framework's zip: complete, importable by a Python without txstream, and the same every time."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tracked_wheel import packaged_files
from txstream.cli.packaging import holds_framework, write_package
from txstream.core.errors import UsageError


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("zip") / "txstream.zip").path


def test_it_has_all_that_is_tracked(package: Path) -> None:
    with zipfile.ZipFile(package) as archive:
        names = set(archive.namelist())
    tracked = {str(path) for path in packaged_files().values() if path.suffix == ".py"}
    assert len(tracked) > 50
    assert not tracked - names
    assert not [
        name for name in names if "__pycache__" in name or not name.startswith(("txstream/", "txstream-"))
    ]


def test_a_driver_that_runs_from_there_finds_what_comes_in_by_entry_points(
    package: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import txstream.core.entry_points as e;"
        "groups = e.TIERS, e.WATCHERS, e.VALUE_FORMATS, e.SQL_DIALECTS, e.COMMANDS;"
        "print(*(name for group in groups for name in e.names(group)))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(package)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    formats, databases = ["avro", "debezium", "protobuf"], ["mariadb", "mysql", "postgres", "postgresql"]
    found = ["tracked", "spans", *formats, *databases, "sqlite"]
    assert done.stdout.split()[:11] == [*found, "compare"]


def test_another_python_imports_it_from_there(package: Path, tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import txstream.core.transaction as t, txstream.core.errors as e;"
        "print(t.__file__); print(e.FencedError.exit_status)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(package)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [f"{package}/txstream/core/transaction.py", "3"]


def test_the_same_code_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert write_package(tmp_path / "again.zip").path.read_bytes() == package.read_bytes()


def test_it_is_recognised_as_the_framework(package: Path, tmp_path: Path) -> None:
    assert holds_framework(package)
    other = tmp_path / "mine.zip"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("mine/__init__.py", "")
    (tmp_path / "broken.zip").write_text("no zip")
    (tmp_path / "mine.py").write_text("")
    assert not any(holds_framework(tmp_path / name) for name in ("mine.zip", "broken.zip", "mine.py"))


def test_a_wheel_is_refused_with_the_name_that_works(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--out framework\.zip"):
        write_package(tmp_path / "framework.whl")


def test_a_place_that_cannot_be_written_is_told_and_nothing_left(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        write_package(tmp_path / "missing" / "txstream.zip")
    assert list(tmp_path.iterdir()) == []
