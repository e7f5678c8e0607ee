"""tools/release.py and tools/other_pythons.py, as far as they can be tested without installing."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import other_pythons
import release
from tracked_wheel import ROOT, CheckError, packaged_files


def checkout(folder: Path, *, version: str, module: str, changelog: str) -> Path:
    """Return a clean checkout with what `problems` looks at."""
    (folder / "txstream").mkdir(parents=True)
    (folder / "tests" / "releases" / "0.1").mkdir(parents=True)
    (folder / "tests" / "releases" / "0.1" / "state.sql").write_text("")
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "txstream" / "__init__.py").write_text(f'__version__ = "{module}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "--all"], [*identity, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def test_a_checkout_that_is_ready_has_no_problem(tmp_path: Path) -> None:
    ready = checkout(tmp_path / "a", version="0.1.3", module="0.1.3", changelog="## [0.1.3] - 2027-01-01\n")
    assert release.problems(ready) == []
    (ready / "new.py").write_text("")
    (found,) = release.problems(ready)
    assert found == "the checkout is not clean (1 files, ?? new.py among them)"


def test_what_keeps_a_checkout_from_being_released(tmp_path: Path) -> None:
    unready = checkout(tmp_path / "a", version="0.2.0", module="0.1.0", changelog="## [Unreleased]\n")
    assert [problem.partition(" has ")[0] for problem in release.problems(unready)] == [
        "pyproject.toml",
        "CHANGELOG.md",
        "tests/releases",
    ]


def test_a_step_that_fails_says_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(CheckError, match=r"(?s)the demo failed with status 3.*no room"):
        release._run(["sh", "-c", "echo no room >&2; exit 3"], tmp_path, "the demo")


@pytest.mark.soak
def test_the_wheel_that_is_built_from_the_sdist_is_complete_and_its_metadata_passes(tmp_path: Path) -> None:
    wheel, sdist = release.build(tmp_path, isolated=False)
    with zipfile.ZipFile(wheel) as archive:
        held = {PurePosixPath(name) for name in archive.namelist()}
    assert set(packaged_files().values()) <= held
    with tarfile.open(sdist) as files:
        names = {
            PurePosixPath(name).relative_to(f"{sdist.name[: -len('.tar.gz')]}") for name in files.getnames()
        }
    assert set(packaged_files()) <= names


def test_the_versions_of_python_are_those_that_the_package_names() -> None:
    assert other_pythons.supported()[0] == "3.11"
    assert all((ROOT / "tests" / f"{name}.py").is_file() for name in other_pythons.TESTS)
    assert "tools/other_pythons.py" in (ROOT / "Makefile").read_text(encoding="utf-8")


def test_an_interpreter_that_is_another_version_or_no_python_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shims, pyenv = tmp_path / "shims", tmp_path / "pyenv"
    for path, body in {
        shims / "python3.12": "exit 127",  # as pyenv's shim for a version that is not selected
        pyenv / "versions" / "3.12.9" / "bin" / "python": "echo 3.12",
        shims / "python3.13": "echo 3.11",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(shims))
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    assert other_pythons.find("3.12") == pyenv / "versions" / "3.12.9" / "bin" / "python"
    assert other_pythons.find("3.13") is None
