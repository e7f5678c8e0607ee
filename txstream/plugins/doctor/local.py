"""What a run needs on this machine: Java, packages, and ports that somebody listens at."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from txstream.cli.java import find_java
from txstream.plugins.doctor.checks import WrongError

_REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?")
_CONNECT_SECONDS = 5.0
_FIXED_PORTS = ("spark.driver.port", "spark.driver.blockManager.port", "spark.txstream.residents.port")


@dataclass(frozen=True)
class Place:
    """An address that drivers, and executors where `for_executors`, connect to."""

    what: str
    host: str
    port: int
    for_executors: bool = False

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"


def look_at_java() -> str:
    """Raises ServiceUnavailableError, with the remedy, without a Java that Spark can use."""
    java = find_java()
    return f"Java {java.version} at {java.path}"


def look_at_python() -> str:
    """Raises WrongError for a package of txstream's own that is missing or too old."""
    wrong = list(_unmet())
    if wrong:
        raise WrongError(
            f"{sys.executable} lacks what txstream needs: {', '.join(wrong)}",
            f"{sys.executable} -m pip install " + " ".join(f"'{one}'" for one in wrong),
        )
    return f"Python {platform.python_version()} at {sys.executable}, with all that txstream needs"


def _unmet() -> Iterator[str]:
    try:
        requirements = importlib.metadata.requires("txstream") or []
    except importlib.metadata.PackageNotFoundError:  # it runs from a zip or a folder
        return
    for requirement in requirements:
        found = _REQUIREMENT.match(requirement)
        if found is None or "extra ==" in requirement:
            continue
        name, oldest = found.groups()
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield requirement
            continue
        if oldest is not None and _numbers(version) < _numbers(oldest):
            yield requirement


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def look_at_port(place: Place) -> str:
    """Raises WrongError if nobody takes connections there."""
    try:
        socket.create_connection((place.host, place.port), _CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise WrongError(
            f"{place.what} cannot be reached at {place.shown}: {getattr(error, 'strerror', None) or error}",
            f"start {place.what} there or correct its address, and open the port in the firewall: "
            f"nc -vz {place.host} {place.port}",
        ) from error
    return f"{place.what} takes connections"


def fixed_ports(conf: Mapping[str, str]) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield a look at each port that the settings of Spark fix on this machine."""
    bind = conf.get("spark.driver.bindAddress", "")
    for name in _FIXED_PORTS:
        port = conf.get(name, "0")
        if port.isdecimal() and int(port):
            yield f"port {port} ({name})", _free(name, bind, int(port))


def _free(setting: str, bind: str, port: int) -> Callable[[], str]:
    def look() -> str:
        try:
            socket.create_server((bind, port)).close()
        except OSError as error:
            raise WrongError(
                f"port {port} cannot be listened at: {error.strerror or error}",
                f"end what uses it (ss -ltnp 'sport = :{port}'), or give {setting} another port",
            ) from error
        return "free"

    return look
