"""The wheel holds what git tracks in the five folders under one import name, and nothing else."""

from __future__ import annotations

import configparser
import subprocess
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import txstream
from tracked_wheel import INSTALLS_AS, build_wheel, copy_tracked, packaged_files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[PurePosixPath]:
    with zipfile.ZipFile(wheel) as archive:
        return {PurePosixPath(name) for name in archive.namelist() if not name.endswith("/")}


def test_wheel_holds_what_git_tracks(names: set[PurePosixPath]) -> None:
    expected = set(packaged_files().values())
    assert PurePosixPath("txstream/spouts/__init__.py") in expected
    in_wheel = {name for name in names if not name.parts[0].endswith(".dist-info")}
    forgotten, surplus = sorted(expected - in_wheel), sorted(in_wheel - expected)
    assert not forgotten, "tracked but not in the wheel; see [tool.setuptools] in pyproject.toml"
    assert not surplus, "in the wheel but not tracked under the five folders"


def test_only_the_one_import_name_is_at_top_level(names: set[PurePosixPath]) -> None:
    assert {name.parts[0] for name in names} == {"txstream", f"txstream-{txstream.__version__}.dist-info"}


def test_every_folder_is_in_the_wheel(names: set[PurePosixPath]) -> None:
    for installed in INSTALLS_AS.values():
        assert PurePosixPath(installed, "__init__.py") in names


def test_wheel_carries_command_types_and_licence(wheel: Path) -> None:
    info = f"txstream-{txstream.__version__}.dist-info"
    with zipfile.ZipFile(wheel) as archive:
        assert "txstream/py.typed" in archive.namelist()
        assert b"Apache License" in archive.read(f"{info}/licenses/LICENSE")
        entry_points = configparser.ConfigParser()
        entry_points.read_string(archive.read(f"{info}/entry_points.txt").decode())
        module, _, function = entry_points["console_scripts"]["txstream"].partition(":")
        source = archive.read(module.replace(".", "/") + ".py").decode()
    assert f"def {function}(" in source


@pytest.mark.soak
def test_untracked_files_and_old_builds_do_not_reach_the_wheel(tmp_path: Path, wheel: Path) -> None:
    """Build from a copy of the checkout that has a stale build and a file that git does not know."""
    checkout = copy_tracked(tmp_path / "checkout")
    for command in (["git", "init", "-q"], ["git", "add", "--all", "--force"]):
        subprocess.run(command, cwd=checkout, check=True)
    stale = checkout / "build" / "lib" / "txstream" / "deleted.py"
    stale.parent.mkdir(parents=True)
    stale.write_text("")
    (checkout / "spouts" / "untracked.py").write_text("")
    (tmp_path / "out").mkdir()
    with (
        zipfile.ZipFile(build_wheel(tmp_path / "out", checkout)) as built,
        zipfile.ZipFile(wheel) as original,
    ):
        assert built.namelist() == original.namelist()
