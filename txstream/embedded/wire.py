"""The smallest Kafka client: asks one broker which brokers it knows.

Used to tell when a broker is ready. A client library would do, but all of them log every refused
connection of a server that is still starting, to the user's standard error.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_METADATA = 3
_METADATA_VERSION = 7  # the last one without tagged fields; Kafka 2.1 to 4.x answer it
_CLIENT_ID = b"txstream-embedded"
_CORRELATION = 1
_LARGEST_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True)
class ClusterView:
    """What a broker says of its cluster: its id, and the ids of the brokers that serve clients."""

    cluster_id: str
    brokers: frozenset[int]


def cluster_view(host: str, port: int, timeout_seconds: float = 2.0) -> ClusterView | None:
    """The broker's answer to a metadata request, or None when it gives none (yet)."""
    header = struct.pack(">hhih", _METADATA, _METADATA_VERSION, _CORRELATION, len(_CLIENT_ID)) + _CLIENT_ID
    request = header + struct.pack(">i?", 0, False)  # no topics, and create none
    try:
        with socket.create_connection((host, port), timeout=timeout_seconds) as connection:
            connection.settimeout(timeout_seconds)
            connection.sendall(struct.pack(">i", len(request)) + request)
            (size,) = struct.unpack(">i", _read(connection, 4))
            if not 0 < size <= _LARGEST_ANSWER_BYTES:
                return None
            return _decode(_Answer(_read(connection, size)))
    except (OSError, EOFError, struct.error):
        return None


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise EOFError("the broker closed the connection within its answer")
        data += piece
    return bytes(data)


class _Answer:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        """A nullable string; null reads as empty."""
        size = max(0, self.number(">h"))
        self._at += size
        return self._data[self._at - size : self._at].decode()


def _decode(answer: _Answer) -> ClusterView | None:
    if answer.number(">i") != _CORRELATION:
        return None
    answer.number(">i")  # throttle time
    brokers = set()
    for _ in range(answer.number(">i")):
        brokers.add(answer.number(">i"))
        answer.text()  # host
        answer.number(">i")  # port
        answer.text()  # rack
    return ClusterView(answer.text(), frozenset(brokers))
