"""Loopback ports: finds a free one, and says who has a taken one."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from txstream.core.errors import ServiceUnavailableError

HOST = "127.0.0.1"

_LOWEST = 20_000
_HIGHEST = 32_000
_TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As the JVM does: connections that are still closing do not make a port taken.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen(1)
        except OSError:
            return False
    return True


def free_port(avoid: frozenset[int] = frozenset()) -> int:
    """Return a loopback port that is free now, not in `avoid`, and outside the range of outgoing connections.

    Binding port 0 would give an ephemeral port. While a server on such a port is down, a client that keeps
    reconnecting may be given that very port as its own source port. It then talks to itself, and the server
    cannot come back to its address. Raises ServiceUnavailableError when no port is found.
    """
    highest = min(_HIGHEST, _first_ephemeral_port() - 1)
    lowest = _LOWEST if highest - _LOWEST >= _TRIES else 1024
    choose = random.SystemRandom()
    for _ in range(_TRIES):
        port = choose.randint(lowest, max(highest, lowest + _TRIES))
        if port not in avoid and is_free(port):
            return port
    raise ServiceUnavailableError(
        f"no free port was found on {HOST} between {lowest} and {highest} in {_TRIES} tries; give one"
    )


def require_free(port: int, service: str) -> None:
    """Raise ServiceUnavailableError, naming the port and its likely holder, if `port` is taken or invalid."""
    if not 1 <= port <= 65535:
        raise ServiceUnavailableError(f"{service} cannot listen on port {port}: ports are 1 to 65535")
    if not is_free(port):
        raise ServiceUnavailableError(
            f"{service} cannot listen on {HOST}:{port}: the port is taken by {_holder(port)}; "
            "stop that process or give another port"
        )


def _first_ephemeral_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def _holder(port: int) -> str:
    names = sorted(set(_listeners(port)))
    return " and ".join(names) if names else "a process of another user, or one that is just closing it"


def _listeners(port: int) -> Iterator[str]:
    for connection in psutil.net_connections(kind="tcp"):
        if connection.laddr and connection.laddr.port == port and connection.pid:
            with contextlib.suppress(psutil.Error):
                yield f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
