"""`txstream init`: a folder that works at once, or none."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import Any

import pytest
from support.guide import DOCS
from support.lists import each

from tracked_wheel import ROOT, build_wheel
from txstream.cli.factory import load_topology
from txstream.cli.main import main
from txstream.plugins.local.project.new_project import TEMPLATES, make_project
from txstream.plugins.local.project.what_to_install import Installs, what_to_install
from txstream.settings import Settings


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bare_environment() -> dict[str, str]:
    """Return an environment in which nothing of this checkout's test run is left."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "TXSTREAM"))}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("template", "right", "wrong"),
    [
        ("counts", ".lower()", ""),
        ("mirror", "op = 'd'", "op = 'x'"),
        ("windows", 'grace="10m"', 'grace="1h"'),
    ],
)
def test_its_own_tests_pass_and_fail_with_the_code(here: Path, template: str, right: str, wrong: str) -> None:
    assert main(["init", "counts", "--template", template]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=here / "counts", env=bare_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    code = here / "counts" / "counts.py"
    code.write_text(code.read_text(encoding="utf-8").replace(right, wrong), encoding="utf-8")
    done = subprocess.run(
        command, cwd=here / "counts", env=bare_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert ("1 failed, 1 passed" if template == "counts" else "2 failed") in done.stdout


@pytest.mark.parametrize("template", TEMPLATES)
def test_all_files_are_there_and_are_what_they_say(
    here: Path, capsys: pytest.CaptureFixture[str], template: str
) -> None:
    assert main(["init", "counts", "--json", "--template", template]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["folder"] == str(here / "counts")
    found = sorted(str(p.relative_to(here / "counts")) for p in (here / "counts").rglob("*") if p.is_file())
    assert document["files"] == found
    assert {"counts.py", "test_counts.py", "txstream.toml", "compose.yaml", "README.md"} < set(found)
    assert len((here / "counts" / "README.md").read_text(encoding="utf-8").splitlines()) <= 20
    for file in found:
        text = (here / "counts" / file).read_text(encoding="utf-8")
        assert "${" not in text.replace("${NAME}", "")  # which is for the reader to fill in
        assert "${{" not in text
    assert (here / "counts").stat().st_mode & 0o777 == 0o777 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_topology_and_the_settings_are_understood(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_project(here, "counts")
    monkeypatch.chdir(here / "counts")
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    try:
        topology = load_topology("counts:topology", ["topic=clicks"])
    finally:
        sys.modules.pop("counts", None)
    assert topology.id == "counts"
    assert [state.table for state in (bolt.state for bolt, _ in topology.states)] == ["counts"]
    file = here / "counts" / "txstream.toml"
    assert Settings().resolve_given().zookeeper is None  # so `txstream up` is found
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(line.removeprefix("# ") for line in lines if " = " in line), encoding="utf-8")
    given = Settings().resolve_given()
    compose = (here / "counts" / "compose.yaml").read_text(encoding="utf-8")
    for address in (given.zookeeper, given.kafka):
        assert f'"{address}:{str(address).rpartition(":")[2]}"' in compose
    assert tomllib.loads(file.read_text(encoding="utf-8"))["database"] == given.database


@pytest.mark.parametrize("template", TEMPLATES)
def test_its_code_passes_this_projects_own_lint(here: Path, template: str) -> None:
    make_project(here, "counts", template=template)
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
    ignored = ["--ignore", "S101"]  # a test asserts
    for command in (["check", *config, *ignored, "."], ["format", "--check", *config, "."]):
        done = subprocess.run(
            [*ruff, *command], cwd=here / "counts", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def installed(folder: Path, origin: dict[str, Any] | None) -> Distribution:
    """Install the wheel of this checkout, as pip does from a folder, without its dependencies."""
    with zipfile.ZipFile(build_wheel(folder)) as wheel:
        wheel.extractall(folder / "site")
    (about,) = (folder / "site").glob("txstream-*.dist-info")
    if origin is not None:
        (about / "direct_url.json").write_text(json.dumps(origin))
    record = about / "RECORD"
    more = "../../../bin/txstream,,\ntxstream/__pycache__/x.pyc,,\ntxstream-0.dist-info/direct_url.json,,\n"
    record.write_text(record.read_text() + more)
    return PathDistribution(about)


@pytest.mark.soak
def test_what_was_installed_from_a_folder_goes_along_as_the_very_same_wheel(tmp_path: Path) -> None:
    found = installed(tmp_path, {"url": "file:///somewhere/txstream", "dir_info": {}})
    installs = what_to_install(found)
    made = make_project(tmp_path, "counts", installs)
    name = f"wheels/txstream-{found.version}-py3-none-any.whl"
    assert name in made
    requirements = (tmp_path / "counts" / "requirements.txt").read_text().splitlines()
    assert requirements == [f"./{name}", "pytest"]
    (original,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(original) as one, zipfile.ZipFile(tmp_path / "counts" / name) as other:
        assert other.testzip() is None
        assert sorted(one.namelist()) == sorted(other.namelist())
        for file in one.namelist():
            same = set(one.read(file).splitlines()) == set(other.read(file).splitlines())
            assert same, file
    target = ["--target", str(tmp_path / "again"), "--no-deps", "--no-index", "--quiet"]
    pip = [sys.executable, "-m", "pip", "install", *target, "-r", "requirements.txt"]
    (tmp_path / "counts" / "requirements.txt").write_text(f"./{name}\n")
    subprocess.run(pip, cwd=tmp_path / "counts", check=True)
    assert (tmp_path / "again" / "txstream" / "examples" / "word_count.py").is_file()


@each(
    ("origin", "requirement"),
    [
        (None, "txstream==0.1.0"),
        (
            {"url": "https://example.org/t.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "txstream @ git+https://example.org/t.git@abc",
        ),
        ({"url": "https://example.org/t.whl", "archive_info": {}}, "txstream @ https://example.org/t.whl"),
        ({"url": "file:///src/t", "dir_info": {"editable": True}}, "-e file:///src/t"),
    ],
)
def test_what_an_index_or_a_repository_has_is_named(
    origin: dict[str, Any] | None, requirement: str, tmp_path: Path
) -> None:
    (tmp_path / "METADATA").write_text("Name: txstream\nVersion: 0.1.0\n")
    (tmp_path / "direct_url.json").unlink(missing_ok=True)
    if origin is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(origin))
    assert what_to_install(PathDistribution(tmp_path)) == Installs(requirement)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("class", "a word of Python's own"),
        ("json", "there is a module json already"),
        ("kafka", "there is a module kafka already"),
        ("conftest", "there is a module conftest already"),
        ("word-count", "for example word_count"),
        ("9lives", "begins with a letter"),
        ("zähler", "not a name that `import` takes"),
        ("", "not a name"),
        ("..", "not a name"),
        ("below/counts", "it is a path"),
        ("txstream_batch", "the framework's own"),
        ("a" * 101, "101 characters"),
    ],
)
def test_a_name_that_cannot_be(here: Path, name: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--", name]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert "cannot be the name of a project" in told
    assert list(here.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "counts").mkdir()
    (here / "counts" / "mine.txt").write_text("mine")
    assert main(["init", "counts"]) == 2
    assert "has something in it" in capsys.readouterr().err
    assert [p.name for p in here.rglob("*")] == ["counts", "mine.txt"]


def test_an_empty_folder_is_filled_and_a_file_is_not_replaced(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "counts").mkdir()
    assert main(["init", "counts"]) == 0
    assert (here / "counts" / "counts.py").is_file()
    (here / "totals").write_text("mine")
    assert main(["init", "totals"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    assert (here / "totals").read_text() == "mine"


def test_a_full_disk_leaves_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write = Path.write_bytes

    def fails(path: Path, content: bytes) -> int:
        if path.name == "README.md":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fails)
    assert main(["init", "counts"]) == 2
    assert "no space left on device" in capsys.readouterr().err
    assert list(here.iterdir()) == []


def test_its_guide_shows_the_files_that_it_makes(here: Path) -> None:
    made = make_project(here, "counts")
    guide = (DOCS / "first-project.md").read_text(encoding="utf-8")
    for file in made:
        assert f"`{file}`" in guide or f"counts/{file}" in guide
