"""Fetching a schema registry: a folder on the disk stands in for Maven's repository."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

import get_registry


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository's archive, which holds the registry's jar."""
    jar = tmp_path / f"apicurio-registry-app-{get_registry.VERSION}-runner.jar"
    jar.write_text("Java")
    made = tmp_path / "repository" / get_registry._PATH
    made.parent.mkdir(parents=True)
    with tarfile.open(made, "w:gz") as opened:
        opened.add(jar, jar.name)
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", (tmp_path / "repository").as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(get_registry, "_SHA256", hashlib.sha256(made.read_bytes()).hexdigest())
    return made


def test_it_is_fetched_once(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = get_registry.folder()
    assert get_registry.program(at) is None
    assert get_registry.main([]) == 0
    assert str(at) in capsys.readouterr().out
    jar = get_registry.program(at)
    assert jar is not None
    assert jar.read_text() == "Java"
    assert [path.name for path in at.parent.iterdir()] == [at.name]
    archive.unlink()
    assert get_registry.main([]) == 0
    assert capsys.readouterr().out == ""


def test_what_fails_is_told_and_leaves_nothing(archive: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive.write_bytes(archive.read_bytes() + b"!")
    assert get_registry.main([]) == 1
    assert "gives is another file: expected " in capsys.readouterr().err
    archive.unlink()
    assert get_registry.main([]) == 1
    assert capsys.readouterr().err.startswith("the schema registry could not be fetched: ")
    assert list(get_registry.folder().parent.iterdir()) == []
