"""The jars that a peer needs besides its own: fetched once from Maven Central, into the user's cache."""

from __future__ import annotations

import hashlib
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import platformdirs

from txstream.plugins.local.embedded.jars import maven_repository


def fetched(jars: Mapping[str, str]) -> list[str]:
    """Return where these jars are. `jars` has the path of each in the repository, and its SHA-256."""
    folder = platformdirs.user_cache_path("txstream") / "benchmark-jars"
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for path, digest in jars.items():
        jar = folder / Path(path).name
        if not jar.exists():
            with urllib.request.urlopen(maven_repository() + path) as answer:
                content = answer.read()
            if hashlib.sha256(content).hexdigest() != digest:
                raise SystemExit(f"{jar.name} is not the jar that was measured: its SHA-256 differs")
            jar.with_suffix(".part").write_bytes(content)
            jar.with_suffix(".part").rename(jar)
        found.append(str(jar))
    return found
