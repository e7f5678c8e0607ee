"""Kafka's class path: from KAFKA_HOME, or from the user's cache, which is filled once from Maven Central.

Invariants of the cache, `<user cache>/txstream/kafka-VERSION`:
- A jar is there whole or not at all: it is fetched elsewhere, checked, and moved.
- Nothing is run from it that has not matched the SHA-256 in `kafka.lock`. `verified.json` records the sizes
  and modification times that were found right, so that later starts need not hash 43 MB; whatever differs
  from the record is hashed again.
- One process at a time changes it; the others wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from txstream.api.errors import ServiceUnavailableError
from txstream.embedded.files import locked, write_atomically
from txstream.embedded.ivy import fetch, maven_repository
from txstream.embedded.jar_lock import JarLock, LockedJar, read_lock, sha256_of
from txstream.embedded.java import LOGGING_JARS, Java, find_java, spark_jars

_FETCH_PREFIX = "fetch-"
_LOCK_WAIT_SECONDS = 600.0


def kafka_classpath(
    *, cache_dir: Path | None = None, java: Java | None = None, console: Console | None = None
) -> list[str]:
    """The class path to run Kafka with; fetches its jars when they are not there.

    KAFKA_HOME, if set, is an unpacked Kafka whose `libs` are used as they are. `cache_dir` is by default the
    user's. Progress is shown on `console`, or on standard error if that is a terminal. Raises
    ServiceUnavailableError when the jars cannot be had or one of them is not what it should be.
    """
    home = os.environ.get("KAFKA_HOME")
    if home:
        return [_libraries_of(Path(home))]
    lock = read_lock()
    folder = (cache_dir or platformdirs.user_cache_path("txstream")) / f"kafka-{lock.version}"
    if not is_verified(folder, lock):
        waiting = f"fetching or checking Kafka {lock.version}"
        with locked(folder.with_suffix(".lock"), waiting_for=waiting, timeout_seconds=_LOCK_WAIT_SECONDS):
            _fill(folder, lock, java=java, console=console)
    # Kafka's own dependencies bring no logging back end; PySpark's must come before their older slf4j.
    return [str(jar) for jar in [*spark_jars(LOGGING_JARS), *(folder / jar.file for jar in lock.jars)]]


def _libraries_of(home: Path) -> str:
    if not any((home / "libs").glob("kafka_*.jar")):
        raise ServiceUnavailableError(
            f"KAFKA_HOME={home} has no libs/kafka_*.jar: set it to an unpacked Apache Kafka 4, "
            "or unset it to have Kafka fetched"
        )
    return str(home / "libs" / "*")


def is_verified(folder: Path, lock: JarLock) -> bool:
    """Whether the jars are those that were found right for this very lock file, by size and time."""
    try:
        record = json.loads((folder / "verified.json").read_text(encoding="utf-8"))
        return bool(record == _record(folder, lock))
    except (OSError, ValueError):
        return False


def _record(folder: Path, lock: JarLock) -> dict[str, object]:
    states = {jar.file: (folder / jar.file).stat() for jar in lock.jars}
    return {
        "lock": lock.digest,
        "jars": {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()},
    }


def _fill(folder: Path, lock: JarLock, *, java: Java | None, console: Console | None) -> None:
    """Bring the folder to all jars, all of them right. Called with the lock held."""
    if is_verified(folder, lock):
        return  # another process did it while we waited
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{_FETCH_PREFIX}*"):
        shutil.rmtree(left)  # of a fetch that was killed
    present = [jar for jar in lock.jars if (folder / jar.file).exists()]
    _check(folder, present, "the cache")
    missing = [jar for jar in lock.jars if jar not in present]
    if missing:
        _fetch(missing, folder, lock, java=java or find_java(), console=console)
    write_atomically(folder / "verified.json", json.dumps(_record(folder, lock), indent=1))


def _fetch(
    missing: Sequence[LockedJar], folder: Path, lock: JarLock, *, java: Java, console: Console | None
) -> None:
    repository = maven_repository()
    wanted = [(jar.group, jar.artifact, jar.version) for jar in missing]
    with (
        tempfile.TemporaryDirectory(prefix=_FETCH_PREFIX, dir=folder) as temporary,
        _progress(console, f"Fetching Kafka {lock.version}", sum(jar.size for jar in missing)) as bar,
    ):
        jars = fetch(
            wanted, Path(temporary), java=java, repository=repository, on_bytes=lambda got: _advance(bar, got)
        )
        _check(jars, missing, repository)
        for jar in missing:
            (jars / jar.file).replace(folder / jar.file)
        _advance(bar, sum(jar.size for jar in missing))


def _check(folder: Path, jars: Sequence[LockedJar], origin: str) -> None:
    """Hash the jars; remove those that are wrong and raise ServiceUnavailableError naming them."""
    wrong = []
    for jar in jars:
        path = folder / jar.file
        if not path.exists():
            wrong.append(f"{jar.file} (missing)")
            continue
        found = sha256_of(path) if path.stat().st_size == jar.size else f"size {path.stat().st_size}"
        if found != jar.sha256:
            path.unlink()
            expected = jar.sha256 if len(found) == 64 else f"size {jar.size}"
            wrong.append(f"{jar.file} (expected {expected}, found {found})")
    if wrong:
        raise ServiceUnavailableError(
            f"{len(wrong)} jar(s) from {origin} are not Kafka's and were removed: {', '.join(wrong)}; "
            "run the command again to fetch them anew, and suspect the repository if it happens again"
        )


@contextlib.contextmanager
def _progress(console: Console | None, title: str, total: int) -> Iterator[Progress | None]:
    if console is None:
        if not sys.stderr.isatty():
            yield None
            return
        console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bar:
        bar.add_task(title, total=total)
        yield bar


def _advance(bar: Progress | None, got: int) -> None:
    if bar is not None:
        task = bar.tasks[0]
        bar.update(task.id, completed=min(got, int(task.total or got)))
