from __future__ import annotations

from pathlib import Path

import pytest
from support.lists import each

from txstream.cli.java import parse_java_version, spark_jars
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded import find_java


def fake_java(folder: Path, version_line: str, status: int = 0) -> Path:
    """A launcher that only reports a version, as `java -version` does: on standard error."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{version_line}' >&2\nexit {status}\n")
    path.chmod(0o755)
    return folder


@each(
    ("report", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('openjdk version "25" 2025-09-16', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Dx=y\nopenjdk version "21.0.2" 2024-01-16', 21),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_what_java_prints(report: str, version: int | None) -> None:
    assert parse_java_version(report) == version


def test_java_home_decides_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = fake_java(tmp_path / "path", 'openjdk version "21.0.2"')
    monkeypatch.setenv("PATH", f"{on_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", 'openjdk version "17.0.1"')))
    assert find_java().path == tmp_path / "home" / "bin" / "java"
    assert find_java().version == 17
    monkeypatch.delenv("JAVA_HOME")
    assert find_java().path == on_path / "bin" / "java"
    assert find_java().version == 21


def test_a_java_that_is_too_old_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path, 'openjdk version "11.0.22"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ServiceUnavailableError, match="openjdk-17-jre-headless") as refused:
        find_java()
    assert f"JAVA_HOME={home} is Java 11, older than 17" in str(refused.value)


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailableError, match=r"no Java was found.*openjdk-17-jre-headless"):
        find_java()


def test_a_java_home_without_java_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ServiceUnavailableError, match="has no bin/java"):
        find_java()


def test_a_stub_that_is_no_java_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path, "Unable to locate a Java Runtime", status=1)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ServiceUnavailableError, match="said: Unable to locate a Java Runtime"):
        find_java()


def test_a_jar_that_pyspark_lacks_is_named() -> None:
    assert spark_jars(["zookeeper-[0-9]*.jar"])[0].name.startswith("zookeeper-")
    with pytest.raises(ServiceUnavailableError, match=r"no-such-\*\.jar"):
        spark_jars(["no-such-*.jar"])
