"""Kafka's class path: from KAFKA_HOME, or from the user's cache, which is filled once from Maven Central.

Invariants of the cache, `<user cache>/txstream/kafka-VERSION`:
- A jar is there whole or not at all: it is moved into place only after it was fetched and matched the SHA-256
  in `kafka.lock`. After a fetch was killed, the next one fetches only the missing jars.
- A jar that does not match is never run: every start hashes the jars again, 44 MB in about 0.1 s.
- One process at a time changes the cache; the others wait.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from txstream.cli.java import spark_jars
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded.files import locked
from txstream.plugins.local.embedded.java import LOGGING_JARS

if TYPE_CHECKING:
    from rich.console import Console

LOCK_PATH = Path(__file__).with_name("kafka.lock")
MAVEN_CENTRAL = "https://repo1.maven.org/maven2/"

_REPOSITORY_VARIABLE = "TXSTREAM_MAVEN_REPOSITORY"
_LOCK_WAIT_SECONDS = 600.0
_STALLED_SECONDS = 60.0
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Jar:
    """One line of `kafka.lock`: file name, `group:artifact:version`, size in bytes, SHA-256 (hex)."""

    file: str
    coordinates: str
    size: int
    sha256: str

    def url(self, repository: str) -> str:
        group, artifact, version = self.coordinates.split(":")
        return f"{repository}{group.replace('.', '/')}/{artifact}/{version}/{self.file}"


@dataclass(frozen=True)
class JarLock:
    """`kafka.lock`: Kafka's version, and its jars with all their dependencies."""

    version: str
    jars: tuple[Jar, ...]


def read_lock() -> JarLock:
    lines = [line.split() for line in LOCK_PATH.read_text().splitlines() if not line.startswith("#")]
    jars = tuple(Jar(file, coordinates, int(size), sha256) for file, coordinates, size, sha256 in lines)
    (version,) = (jar.coordinates.split(":")[2] for jar in jars if jar.file.startswith("kafka_"))
    return JarLock(version, jars)


def kafka_classpath(*, cache_dir: Path | None = None, console: Console | None = None) -> list[str]:
    """Return the class path to run Kafka with. Fetches its jars if they are not there.

    KAFKA_HOME, if set, is an unpacked Kafka whose `libs` are used as they are. `cache_dir` is by default the
    user's cache. Progress is shown on `console`, or on standard error if that is a terminal. Raises
    ServiceUnavailableError when the jars cannot be fetched or one of them does not match its hash.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        return [_libraries_of(Path(home))]
    lock = read_lock()
    folder = (cache_dir or platformdirs.user_cache_path("txstream")) / f"kafka-{lock.version}"
    waiting = f"fetching or checking Kafka {lock.version}"
    with locked(folder.with_suffix(".lock"), waiting_for=waiting, timeout_seconds=_LOCK_WAIT_SECONDS):
        folder.mkdir(parents=True, exist_ok=True)
        missing = []
        for jar in lock.jars:
            if (folder / jar.file).exists():
                _check(jar, folder / jar.file)
            else:
                missing.append(jar)
        if missing:
            repository, size = maven_repository(), sum(jar.size for jar in missing)
            with _progress(console, f"Fetching Kafka {lock.version}", size) as advance:
                for jar in missing:
                    _fetch(jar, folder, repository, advance)
    # Kafka's dependencies include no logging back end. PySpark's must come before their older slf4j.
    return [str(jar) for jar in [*spark_jars(LOGGING_JARS), *(folder / jar.file for jar in lock.jars)]]


def _libraries_of(home: Path) -> str:
    if not any((home / "libs").glob("kafka_*.jar")):
        raise ServiceUnavailableError(
            f"KAFKA_HOME={home} has no libs/kafka_*.jar: set it to an unpacked Apache Kafka 4, "
            "or unset it to have Kafka fetched"
        )
    return str(home / "libs" / "*")


def maven_repository(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """Return the URL to fetch from, ending in a slash. The first found wins: TXSTREAM_MAVEN_REPOSITORY, the
    mirror of `central` in the user's Maven settings (`~/.m2/settings.xml`), Maven Central.

    Credentials in Maven's `<servers>` are not used. Raises ServiceUnavailableError for an unreadable file.
    """
    url = environment.get(_REPOSITORY_VARIABLE, "").strip()
    if not url:
        url = _mirror_of_central((home or Path.home()) / ".m2" / "settings.xml") or MAVEN_CENTRAL
    return url.rstrip("/") + "/"


def _mirror_of_central(settings: Path) -> str | None:
    if not settings.is_file():
        return None
    try:
        root = ET.parse(settings).getroot()  # noqa: S314 - the user's own Maven settings
    except (ET.ParseError, OSError) as problem:
        raise ServiceUnavailableError(
            f"{settings} cannot be read ({problem}); mend it or set {_REPOSITORY_VARIABLE}"
        ) from problem
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of, url, blocked = (
            mirror.findtext(f"{{*}}{name}", "").strip() for name in ("mirrorOf", "url", "blocked")
        )
        patterns = {part.strip() for part in of.split(",")}
        for_central = "!central" not in patterns and patterns & {"central", "*", "external:*"}
        if url and for_central and blocked != "true":
            return url
    return None


def _fetch(jar: Jar, folder: Path, repository: str, advance: Callable[[int], None]) -> None:
    """Fetch one jar into `folder`. `advance` is called with the number of bytes of each piece.

    urllib honours HTTPS_PROXY and NO_PROXY.
    """
    content = bytearray()
    try:
        # S310: the URL is the user's own setting, and what comes from it is checked by its SHA-256.
        with urllib.request.urlopen(jar.url(repository), timeout=_STALLED_SECONDS) as answer:  # noqa: S310
            while piece := answer.read(_CHUNK_BYTES):
                content += piece
                advance(len(piece))
    except (OSError, http.client.HTTPException) as problem:
        raise ServiceUnavailableError(
            f"Kafka's jars could not be fetched from {repository} ({_reason(problem, jar)}): set KAFKA_HOME "
            "to an unpacked Apache Kafka 4, or use a Kafka that already runs with --kafka host:port"
        ) from problem
    _require(jar, hashlib.sha256(content).hexdigest(), repository)
    part = folder / f"{jar.file}.part"
    part.write_bytes(content)
    part.replace(folder / jar.file)


def _reason(problem: Exception, jar: Jar) -> str:
    cause = problem.reason if isinstance(problem, urllib.error.URLError) else problem
    if isinstance(cause, FileNotFoundError) or getattr(problem, "code", None) == 404:
        return f"the repository has no {jar.coordinates}"
    return f"no network, or the repository is down: {cause or type(cause).__name__}"


def _require(jar: Jar, found: str, origin: str) -> None:
    if found != jar.sha256:
        raise ServiceUnavailableError(
            f"a jar from {origin} is not Kafka's and was removed: {jar.file} (expected {jar.sha256}, found "
            f"{found}); run the command again to fetch it; if that happens twice, suspect the repository"
        )


def _check(jar: Jar, path: Path) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != jar.sha256:
        path.unlink()
    _require(jar, found, "the cache")


@contextlib.contextmanager
def _progress(console: Console | None, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar. Yields the function that advances it by a number of bytes."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown = console is not None or sys.stderr.isatty()
    with Progress(*columns, console=console or Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(title, total=total)
        yield functools.partial(bar.advance, task)
