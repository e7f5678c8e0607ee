"""The list of jars that make up Kafka, `kafka.lock`: each with its coordinates, size and SHA-256."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from txstream.api.errors import CorruptStateError

LOCK_PATH = Path(__file__).with_name("kafka.lock")


@dataclass(frozen=True)
class LockedJar:
    """One jar: its file name, where Maven repositories have it, its size in bytes and its SHA-256 (hex)."""

    file: str
    group: str
    artifact: str
    version: str
    size: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.file}  {self.group}:{self.artifact}:{self.version}  {self.size}  {self.sha256}"


@dataclass(frozen=True)
class JarLock:
    """A whole lock file. `digest` changes whenever the file does."""

    version: str
    jars: tuple[LockedJar, ...]
    digest: str

    @property
    def total_bytes(self) -> int:
        return sum(jar.size for jar in self.jars)


def read_lock(path: Path = LOCK_PATH) -> JarLock:
    """Parse a lock file. Raises CorruptStateError naming the line that is not one, or what is missing."""
    text = path.read_text(encoding="utf-8")
    jars: list[LockedJar] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            jars.append(_parse(line))
        except ValueError as problem:
            raise CorruptStateError(
                f"{path} line {number} is not `file group:artifact:version bytes SHA-256` ({problem}); "
                "install txstream again"
            ) from problem
    names = [jar.file for jar in jars]
    if len(set(names)) != len(names):
        raise CorruptStateError(f"{path} names a jar twice; install txstream again")
    versions = [jar.version for jar in jars if jar.artifact.startswith("kafka_")]
    if len(versions) != 1:
        raise CorruptStateError(
            f"{path} names {len(versions)} Kafka servers instead of one; install txstream again"
        )
    return JarLock(versions[0], tuple(jars), hashlib.sha256(text.encode()).hexdigest())


def _parse(line: str) -> LockedJar:
    file, coordinates, size, sha256 = line.split()
    group, artifact, version = coordinates.split(":")
    if file != Path(file).name or not file.endswith(".jar"):
        raise ValueError(f"{file} is not a jar's name")
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise ValueError(f"{sha256} is not a SHA-256")
    return LockedJar(file, group, artifact, version, int(size), sha256)


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
