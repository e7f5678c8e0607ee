"""The Java that runs Spark and embedded servers, and the jars that come with PySpark."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from txstream.core.errors import ServiceUnavailableError

OLDEST_JAVA = 17
_REMEDY = (
    "install Java 17 or 21 (Debian and Ubuntu: apt-get install openjdk-17-jre-headless) "
    "or point JAVA_HOME at one"
)
_VERSION_SECONDS = 30
_LAUNCHER_PATTERN = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True)
class Java:
    """A Java launcher and its major version (17 for 17.0.15)."""

    path: Path
    version: int


def find_java() -> Java:
    """Return the Java of JAVA_HOME if that is set, else the one on PATH. It must be 17 or newer.

    If JAVA_HOME is set, it alone decides, as it does for Spark: a Java from elsewhere would run the servers
    here, and Spark would fail a moment later. Raises ServiceUnavailableError, whose one sentence says what
    was found and what to install.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        path, place = Path(home) / "bin" / "java", f"JAVA_HOME={home}"
        if not os.access(path, os.X_OK):
            raise ServiceUnavailableError(f"{place} has no bin/java: {_REMEDY}")
    else:
        found = shutil.which("java")
        if found is None:
            raise ServiceUnavailableError(f"no Java was found (JAVA_HOME is unset, PATH has none): {_REMEDY}")
        path, place = Path(found), found
    report = _version_report(path, path.stat().st_mtime_ns)
    version = parse_java_version(report)
    if version is None:
        said = " ".join(report.split())[:200] or "nothing"
        raise ServiceUnavailableError(
            f"{place} is not a working Java (`java -version` said: {said}): {_REMEDY}"
        )
    if version < OLDEST_JAVA:
        raise ServiceUnavailableError(f"{place} is Java {version}, older than {OLDEST_JAVA}: {_REMEDY}")
    return Java(path, version)


def parse_java_version(report: str) -> int | None:
    """Return the major version that `java -version` prints, or None: 8 for `1.8.0_392`, 21 for `21-ea`."""
    match = _LAUNCHER_PATTERN.search(report)
    return int(match.group(1)) if match else None


@functools.cache
def _version_report(path: Path, _modified_ns: int) -> str:
    try:
        answer = subprocess.run(
            [str(path), "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    return answer.stderr + answer.stdout


def spark_home() -> Path:
    """Return the folder of the installed PySpark package. Raises ServiceUnavailableError if there is none."""
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ServiceUnavailableError("PySpark is not installed in this Python: pip install 'pyspark>=4.3.0'")
    return Path(found.submodule_search_locations[0])


def spark_jars(patterns: Sequence[str]) -> list[Path]:
    """Return PySpark's jars that match the glob `patterns`, sorted for each pattern.

    Raises ServiceUnavailableError for a pattern that nothing matches. A PySpark without Hadoop, for example,
    lacks ZooKeeper.
    """
    folder = spark_home() / "jars"
    found: list[Path] = []
    for pattern in patterns:
        matches = sorted(folder.glob(pattern))
        if not matches:
            raise ServiceUnavailableError(
                f"PySpark's jars in {folder} have no {pattern}: install the complete package, "
                "pip install --force-reinstall 'pyspark>=4.3.0'"
            )
        found.extend(matches)
    return found
