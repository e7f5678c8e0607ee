"""Runs on executors: says which Python and packages they have, and which places they reach.

It is sent by value and imports the standard library alone, so that it can answer where txstream is missing.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import socket
import sys
import time
import zoneinfo
from collections.abc import Iterable, Iterator
from typing import Any


def probe(
    modules: dict[str, str | None], places: list[tuple[str, str, int]], seconds: float, numbers: Iterable[int]
) -> Iterator[dict[str, Any]]:
    """Yield what this executor is. `modules` are import names with their distributions, where these are
    known; `places` are (what, host, port)."""
    for _ in numbers:
        pass
    missing = []
    for name in modules:
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            missing.append(name)
    versions = {}
    for name, distribution in modules.items():
        if distribution is not None and name not in missing:
            try:
                versions[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue  # it came in a zip
    unreachable = []
    for what, host, port in places:
        try:
            socket.create_connection((host, port), seconds).close()
        except (OSError, UnicodeError) as error:
            unreachable.append((what, host, port, getattr(error, "strerror", None) or str(error)))
    try:
        zoneinfo.ZoneInfo("UTC")  # which Arrow asks for, for each timestamp
    except zoneinfo.ZoneInfoNotFoundError:
        missing.append("tzdata")
    yield {
        "host": socket.gethostname(),
        "folder": os.getcwd(),  # noqa: PTH109 - an executor's own; pathlib would be one more import
        "python": platform.python_version(),
        "executable": sys.executable,
        "missing": missing,
        "versions": versions,
        "unreachable": unreachable,
        "time": time.time(),
    }
