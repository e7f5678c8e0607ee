"""Host names, asked about before a client tries one again and again until its time is up."""

from __future__ import annotations

import socket
from collections.abc import Iterable


def unresolved(hosts: Iterable[str]) -> str | None:
    """Return why none of these names has an address: a mistyped name will not get one by waiting. None if one
    of them has."""
    reason = None
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            reason = f"{host!r} cannot be resolved: {error.strerror or error}"
        except UnicodeError:
            reason = f"{host!r} cannot be resolved: it is no host name"
        else:
            return None
    return reason
