"""Fetch a schema registry for the tests: Apicurio's, unpacked into this account's cache folder.

Nothing happens if the folder exists. The archive is checked by its SHA-256. `--where` prints the folder. It
comes from where txstream fetches Kafka (the mirror in the Maven settings, or Maven Central), so txstream
must be installed.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Final

import platformdirs

from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded.jars import maven_repository

VERSION: Final = "3.0.9"
NO_REGISTRY: Final = "there is no schema registry here"
"""How the reason begins when tests on a real registry are skipped."""

_PATH: Final = f"io/apicurio/apicurio-registry-app/{VERSION}/apicurio-registry-app-{VERSION}-all.tar.gz"
_SHA256: Final = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
_STALLED_SECONDS: Final = 60.0


class FetchError(Exception):
    """The registry could not be fetched. The message says why."""


def folder() -> Path:
    """Return the folder where the unpacked registry is or will be."""
    return platformdirs.user_cache_path("txstream") / f"apicurio-registry-{VERSION}"


def program(at: Path) -> Path | None:
    """Return the jar that Java runs in the unpacked registry; None when there is none."""
    jar = at / f"apicurio-registry-app-{VERSION}-runner.jar"
    return jar if jar.is_file() else None


def fetch(at: Path) -> None:
    """Download and unpack the registry into `at`, all or nothing. Raises FetchError."""
    try:
        url = maven_repository() + _PATH
        at.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="registry-", dir=at.parent) as scratch:
            archive, root = Path(scratch) / "all.tar.gz", Path(scratch) / "root"
            # S310: the URL is the user's own setting, and what comes from it is checked by its SHA-256.
            with urllib.request.urlopen(url, timeout=_STALLED_SECONDS) as answer:  # noqa: S310
                content = answer.read()
            found = hashlib.sha256(content).hexdigest()
            if found != _SHA256:
                raise FetchError(f"what {url} gives is another file: expected {_SHA256}, found {found}")
            archive.write_bytes(content)
            with tarfile.open(archive) as opened:
                opened.extractall(root, filter="data")
            # If two fetches run at once, the second finds the folder of the first, which is as good.
            if program(at) is None:
                root.rename(at)
    except (OSError, tarfile.TarError, ServiceUnavailableError) as error:
        raise FetchError(str(error)) from error


def main(arguments: list[str]) -> int:
    at = folder()
    if arguments == ["--where"]:
        print(at)
        return 0
    if arguments:
        print("usage: get_registry.py [--where]", file=sys.stderr)
        return 2
    if program(at) is not None:
        return 0
    print(f"fetching a schema registry into {at}: a download of about 109 MB", flush=True)
    try:
        fetch(at)
    except FetchError as error:
        print(f"the schema registry could not be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
