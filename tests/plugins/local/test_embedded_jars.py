from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded import jars
from txstream.plugins.local.embedded.jars import (
    MAVEN_CENTRAL,
    Jar,
    JarLock,
    kafka_classpath,
    maven_repository,
    read_lock,
)


def test_the_shipped_lock_file_pins_kafka_and_all_it_needs() -> None:
    lock = read_lock()
    assert lock.version == "4.1.1"
    assert len(lock.jars) == 45
    assert 40_000_000 < sum(jar.size for jar in lock.jars) < 50_000_000
    assert {"kafka-clients-4.1.1.jar", "scala-library-2.13.16.jar"} <= {jar.file for jar in lock.jars}


@pytest.fixture
def cache(tmp_path: Path) -> tuple[Path, JarLock]:
    """A cache of two small jars and the lock file for them."""
    folder = tmp_path / "kafka-9.9"
    folder.mkdir()
    locked = []
    for name in ("kafka_2.13-9.9.jar", "b-1.jar"):
        content = name.encode() * 10
        (folder / name).write_bytes(content)
        locked.append(Jar(name, "g:a:1", len(content), hashlib.sha256(content).hexdigest()))
    return folder, JarLock("9.9", tuple(locked))


def use(monkeypatch: pytest.MonkeyPatch, lock: JarLock) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setattr(jars, "read_lock", lambda: lock)


def classpath(folder: Path) -> list[str]:
    return kafka_classpath(cache_dir=folder.parent)


def test_right_jars_are_used_without_a_repository(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", (folder / "nothing").as_uri())
    assert classpath(folder)[-2:] == [str(folder / jar.file) for jar in lock.jars]


@pytest.mark.parametrize("same_size", [True, False])
def test_a_jar_changed_after_the_check_is_named_and_removed(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch, same_size: bool
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    classpath(folder)
    victim = folder / "b-1.jar"
    victim.write_bytes(b"x" * (victim.stat().st_size - (0 if same_size else 1)))
    with pytest.raises(ServiceUnavailableError, match=r"b-1\.jar \(expected .*, found ") as refused:
        classpath(folder)
    assert "kafka_2.13" not in str(refused.value)
    assert not victim.exists()
    assert (folder / "kafka_2.13-9.9.jar").exists()


def test_a_fetch_goes_on_with_the_jars_that_came_before_it_failed(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    repository = folder.parent / "repository"
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", repository.as_uri())
    (repository / "g" / "a" / "1").mkdir(parents=True)
    for jar in lock.jars:
        (folder / jar.file).rename(repository / "g" / "a" / "1" / jar.file)
    first, last = (repository / "g" / "a" / "1" / jar.file for jar in lock.jars)
    content = last.read_bytes()
    last.write_bytes(content[:-1])  # the connection broke
    with pytest.raises(ServiceUnavailableError, match=r"b-1\.jar \(expected .*, found "):
        classpath(folder)
    assert [path.name for path in folder.iterdir()] == [first.name]
    first.unlink()  # not asked for again
    last.write_bytes(content)
    assert classpath(folder)[-2:] == [str(folder / jar.file) for jar in lock.jars]


def test_a_kafka_home_without_kafka_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    with pytest.raises(ServiceUnavailableError, match=r"KAFKA_HOME=.* has no libs/kafka_\*\.jar"):
        kafka_classpath()
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "kafka_2.13-4.1.1.jar").touch()
    assert kafka_classpath() == [str(tmp_path / "libs" / "*")]


def settings(home: Path, mirrors: str) -> Path:
    (home / ".m2").mkdir(parents=True)
    (home / ".m2" / "settings.xml").write_text(
        f'<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors>{mirrors}</mirrors></settings>'
    )
    return home


def mirror(of: str, url: str, more: str = "") -> str:
    return f"<mirror><id>m</id><mirrorOf>{of}</mirrorOf><url>{url}</url>{more}</mirror>"


def test_the_repository_is_maven_central_unless_told(tmp_path: Path) -> None:
    assert maven_repository({}, tmp_path) == MAVEN_CENTRAL


def test_the_environment_names_the_repository_first(tmp_path: Path) -> None:
    home = settings(tmp_path, mirror("central", "http://mirror.test/m2"))
    environment = {"TXSTREAM_MAVEN_REPOSITORY": "http://mine.test/maven"}
    assert maven_repository(environment, home) == "http://mine.test/maven/"


@pytest.mark.parametrize("of", ["central", "*", "external:*", "other, central"])
def test_a_mirror_of_central_in_mavens_settings_is_used(tmp_path: Path, of: str) -> None:
    home = settings(tmp_path, mirror("other", "http://no.test/") + mirror(of, "http://mirror.test/m2"))
    assert maven_repository({}, home) == "http://mirror.test/m2/"


@pytest.mark.parametrize(
    "mirrors",
    [
        mirror("other", "http://no.test/"),
        mirror("*,!central", "http://no.test/"),
        mirror("external:http:*", "http://no.test/"),
        mirror("central", "http://no.test/", "<blocked>true</blocked>"),
    ],
)
def test_mirrors_of_something_else_are_not_used(tmp_path: Path, mirrors: str) -> None:
    assert maven_repository({}, settings(tmp_path, mirrors)) == MAVEN_CENTRAL


def test_unreadable_maven_settings_are_named(tmp_path: Path) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text("<settings>")
    with pytest.raises(ServiceUnavailableError, match=r"settings\.xml cannot be read"):
        maven_repository({}, tmp_path)
