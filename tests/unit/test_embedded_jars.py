from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from txstream.api.errors import CorruptStateError, ServiceUnavailableError
from txstream.embedded import jars
from txstream.embedded.ivy import (
    MAVEN_CENTRAL,
    _failure,
    maven_repository,
    proxy_options,
)
from txstream.embedded.jar_lock import JarLock, LockedJar, read_lock, sha256_of
from txstream.embedded.jars import is_verified, kafka_classpath
from txstream.embedded.java import Java

SHA = "a" * 64
KAFKA = f"kafka_2.13-4.1.1.jar  org.apache.kafka:kafka_2.13:4.1.1  10  {SHA}"


def test_the_shipped_lock_file_pins_kafka_and_all_it_needs() -> None:
    lock = read_lock()
    assert lock.version == "4.1.1"
    assert len(lock.jars) == 45
    assert 40_000_000 < lock.total_bytes < 50_000_000
    assert {"kafka-clients-4.1.1.jar", "scala-library-2.13.16.jar"} <= {jar.file for jar in lock.jars}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("only-a-name.jar", "line 3"),
        (f"a.jar  group:artifact  10  {SHA}", "line 3"),
        (f"a.jar  g:a:1  ten  {SHA}", "line 3"),
        ("a.jar  g:a:1  10  abc", "abc is not a SHA-256"),
        (f"../a.jar  g:a:1  10  {SHA}", "not a jar's name"),
        (KAFKA, "names a jar twice"),
        (f"kafka_2.13-4.0.0.jar  org.apache.kafka:kafka_2.13:4.0.0  10  {SHA}", "names 2 Kafka servers"),
    ],
)
def test_a_damaged_lock_file_is_refused(tmp_path: Path, line: str, what: str) -> None:
    path = tmp_path / "kafka.lock"
    path.write_text(f"# a comment\n{KAFKA}\n{line}\n")
    with pytest.raises(CorruptStateError, match=what):
        read_lock(path)


@pytest.fixture
def cache(tmp_path: Path) -> tuple[Path, JarLock]:
    """A cache of two small jars and the lock file for them."""
    folder = tmp_path / "kafka-9.9"
    folder.mkdir()
    locked = []
    for name in ("kafka_2.13-9.9.jar", "b-1.jar"):
        content = name.encode() * 10
        (folder / name).write_bytes(content)
        locked.append(LockedJar(name, "g", "a", "1", len(content), hashlib.sha256(content).hexdigest()))
    return folder, JarLock("9.9", tuple(locked), "digest")


def use(monkeypatch: pytest.MonkeyPatch, lock: JarLock) -> None:
    monkeypatch.delenv("KAFKA_HOME", raising=False)
    monkeypatch.setattr(jars, "read_lock", lambda: lock)


def classpath(folder: Path) -> list[str]:
    return kafka_classpath(cache_dir=folder.parent, java=Java(Path("/nonexistent/java"), 17))


def test_right_jars_are_hashed_once_and_then_known(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    hashed: list[str] = []

    def hash_and_count(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(jars, "sha256_of", hash_and_count)
    assert not is_verified(folder, lock)
    first = classpath(folder)
    assert is_verified(folder, lock)
    assert classpath(folder) == first
    assert hashed == [jar.file for jar in lock.jars]
    assert first[-2:] == [str(folder / jar.file) for jar in lock.jars]


def test_another_lock_file_is_not_taken_for_the_checked_one(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    classpath(folder)
    assert not is_verified(folder, JarLock(lock.version, lock.jars, "another digest"))


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


def test_what_a_killed_fetch_left_is_removed(
    cache: tuple[Path, JarLock], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, lock = cache
    use(monkeypatch, lock)
    (folder / "fetch-abc" / "ivy").mkdir(parents=True)
    classpath(folder)
    assert not (folder / "fetch-abc").exists()


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


def test_proxies_of_the_environment_reach_java_but_passwords_do_not() -> None:
    assert proxy_options({}) == []
    assert proxy_options({"https_proxy": "http://p.test:3128", "NO_PROXY": ".corp, host"}) == [
        "-Dhttps.proxyHost=p.test",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|127.*|[::1]|*.corp|host",
    ]
    assert proxy_options({"HTTPS_PROXY": "http://user:secret@p.test:3128"}) == []


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "\tServer access error at url http://r/x.jar (java.net.UnknownHostException: r.test)",
            "r.test is",
        ),
        (
            "\tServer access error at url http://r/x.jar (java.net.ConnectException: Connection refused)",
            "Connection refused",
        ),
        ("\t\t:: g#a;1: not found\n\t\t:: g#b;2: not found\n", "the repository has no g#a;1, g#b;2"),
        ("something odd\n", "Apache Ivy said: something odd"),
    ],
)
def test_a_failed_fetch_gives_its_reason_and_both_remedies(log: str, reason: str) -> None:
    sentence = _failure(log, "http://r/", stalled=False)
    assert reason in sentence
    assert "http://r/" in sentence
    assert "KAFKA_HOME" in sentence
    assert "--kafka host:port" in sentence
    assert "\n" not in sentence
