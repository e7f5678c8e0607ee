"""Makes `kafka.lock`: `python -m txstream.embedded.lock 4.1.1` resolves that version with all it needs.

For the maintainer, when Kafka's version changes: running Kafka only reads the file.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from txstream.embedded.files import write_atomically
from txstream.embedded.ivy import fetch, maven_repository
from txstream.embedded.jar_lock import LOCK_PATH, JarLock, LockedJar, read_lock, sha256_of
from txstream.embedded.java import find_java

_HEADER = """\
# Apache Kafka {version} and all it needs at run time: {count} jars, {total} bytes.
# Made by `python -m txstream.embedded.lock {version}`: Apache Ivy resolved
# org.apache.kafka:kafka_2.13:{version} with its transitive dependencies; sizes and hashes are those of
# the files it got. Do not edit by hand.
# file  group:artifact:version  bytes  SHA-256
"""


def make_lock(version: str, path: Path = LOCK_PATH) -> JarLock:
    """Resolve Kafka `version` from the Maven repository in use and write the lock file."""
    with tempfile.TemporaryDirectory() as folder:
        pattern = "[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
        root = Path(folder)
        wanted = [("org.apache.kafka", "kafka_2.13", version)]
        fetch(wanted, root, java=find_java(), repository=maven_repository(), pattern=pattern, transitive=True)
        jars = []
        for found in sorted((root / "jars").rglob("*.jar"), key=lambda jar: jar.name):
            group, artifact, revision, file = found.relative_to(root / "jars").parts
            jars.append(LockedJar(file, group, artifact, revision, found.stat().st_size, sha256_of(found)))
    total = sum(jar.size for jar in jars)
    header = _HEADER.format(version=version, count=len(jars), total=total)
    write_atomically(path, header + "".join(f"{jar}\n" for jar in jars))
    return read_lock(path)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m txstream.embedded.lock KAFKA_VERSION\n")
        return 2
    lock = make_lock(arguments[0])
    sys.stdout.write(f"{LOCK_PATH}: Kafka {lock.version}, {len(lock.jars)} jars, {lock.total_bytes} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
