"""Fetching Kafka's jars from a repository on this machine, and running without jars."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from rich.console import Console

from txstream.cli.java import spark_jars
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded import EmbeddedKafka
from txstream.plugins.local.embedded.jars import Jar, JarLock, kafka_classpath, read_lock
from txstream.plugins.local.embedded.java import LOGGING_JARS
from txstream.plugins.local.embedded.kafka import cluster_view
from txstream.plugins.local.embedded.ports import HOST, free_port

FETCH = (
    "import sys; from pathlib import Path; from txstream.plugins.local.embedded.jars import kafka_classpath; "
    "kafka_classpath(cache_dir=Path(sys.argv[1]))"
)


@pytest.fixture(scope="module")
def lock() -> JarLock:
    return read_lock()


@pytest.fixture(scope="module")
def jars(lock: JarLock) -> dict[str, Path]:
    """Kafka's real jars by file name, in the user's cache; fetched if this machine has never fetched them."""
    wanted = {jar.file for jar in lock.jars}
    return {Path(path).name: Path(path) for path in kafka_classpath() if Path(path).name in wanted}


def place_of(jar: Jar, root: Path) -> Path:
    return Path(urlsplit(jar.url(f"{root.as_uri()}/")).path)


@pytest.fixture
def repository(tmp_path: Path, lock: JarLock, jars: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository in a directory, with links to the real jars."""
    root = tmp_path / "repository"
    for jar in lock.jars:
        place = place_of(jar, root)
        place.parent.mkdir(parents=True)
        place.symlink_to(jars[jar.file])
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", root.as_uri())
    return root


def test_two_processes_fetch_once_and_both_succeed(repository: Path, tmp_path: Path, lock: JarLock) -> None:
    cache = tmp_path / "cache"
    fetchers = [subprocess.Popen([sys.executable, "-c", FETCH, str(cache)]) for _ in range(2)]
    assert [fetcher.wait(timeout=120) for fetcher in fetchers] == [0, 0]
    folder = cache / f"kafka-{lock.version}"
    assert {path.name for path in folder.glob("*")} == {jar.file for jar in lock.jars}
    # Only what is missing is fetched again: the repository no longer has the other jars.
    gone, *others = lock.jars
    (folder / gone.file).unlink()
    for jar in others:
        place_of(jar, repository).unlink()
    console = Console(file=io.StringIO(), record=True, width=200)
    assert str(folder / gone.file) in kafka_classpath(cache_dir=cache, console=console)
    assert f"Fetching Kafka {lock.version}" in console.export_text()


def test_a_wrong_jar_from_the_repository_never_reaches_the_cache(
    repository: Path, tmp_path: Path, lock: JarLock
) -> None:
    victim = next(jar for jar in lock.jars if ":re2j:" in jar.coordinates)
    served = place_of(victim, repository)
    content = bytearray(served.read_bytes())
    content[len(content) // 2] ^= 1
    served.unlink()
    served.write_bytes(content)
    with pytest.raises(ServiceUnavailableError, match=rf"{victim.file} \(expected {victim.sha256}, found"):
        kafka_classpath(cache_dir=tmp_path / "cache")
    cached = {path.name for path in (tmp_path / "cache" / f"kafka-{lock.version}").iterdir()}
    assert victim.file not in cached
    assert cached <= {jar.file for jar in lock.jars}


def test_a_repository_that_lacks_a_jar_is_told(repository: Path, tmp_path: Path, lock: JarLock) -> None:
    victim = next(jar for jar in lock.jars if ":re2j:" in jar.coordinates)
    place_of(victim, repository).unlink()
    with pytest.raises(ServiceUnavailableError, match=f"the repository has no {victim.coordinates}"):
        kafka_classpath(cache_dir=tmp_path / "cache")


def test_without_network_one_sentence_names_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://{HOST}:{free_port()}/"
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", url)
    with pytest.raises(ServiceUnavailableError) as refused:
        kafka_classpath(cache_dir=tmp_path / "cache")
    sentence = str(refused.value)
    assert f"could not be fetched from {url} (no network" in sentence
    assert "KAFKA_HOME" in sentence
    assert "--kafka host:port" in sentence
    assert "\n" not in sentence
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*.jar")) == []


@pytest.mark.soak
def test_kafka_home_is_used_instead(
    tmp_path: Path, jars: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    libraries = tmp_path / "kafka" / "libs"
    libraries.mkdir(parents=True)
    for jar in [*jars.values(), *spark_jars(LOGGING_JARS)]:
        (libraries / jar.name).symlink_to(jar)
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path / "kafka"))
    monkeypatch.setenv("TXSTREAM_MAVEN_REPOSITORY", f"http://{HOST}:{free_port()}/")
    with EmbeddedKafka(tmp_path / "data") as kafka:
        identity = kafka.identities[1]
        view = cluster_view(HOST, kafka.port_of(1))
        process = identity.process()
        assert process is not None
        assert os.path.join(libraries, "*") in process.cmdline()  # noqa: PTH118 - a glob, not a path
    assert view is not None
    assert view.cluster_id == kafka.cluster_id
