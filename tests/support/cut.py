"""A proxy between a client and a database server that can lose the answer to COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

_COMMITS = (b"COMMIT\0", b"\x03COMMIT")  # what PostgreSQL and what MySQL is sent

Address = str | tuple[str, int]
"""The path of a Unix socket, or a host and a port."""


class AnswerLosingProxy:
    """A proxy that listens at `here`, its port at `address`. `lose_next_commit` makes it pass the next COMMIT
    on, wait for the server's answer, and hang up instead of passing the answer back."""

    def __init__(self, server: Address, here: Address) -> None:
        self._server = server
        self._losing = threading.Event()
        self.lost = threading.Event()
        self._listener = _socket_for(here)
        self._listener.bind(here)
        self._listener.listen()
        self.address: Any = self._listener.getsockname()
        self._lines: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_commit(self) -> None:
        self._losing.set()

    def close(self) -> None:
        for line in [self._listener, *self._lines]:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = _socket_for(self._server)
                server.connect(self._server)
                self._lines += [client, server]
                doomed = threading.Event()
                threading.Thread(target=self._up, args=(client, server, doomed), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, doomed), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._losing.is_set() and any(commit in data for commit in _COMMITS):
                    self._losing.clear()
                    doomed.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _down(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                if doomed.is_set():
                    client.shutdown(socket.SHUT_RDWR)
                    self.lost.set()
                    return
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def _socket_for(address: Address) -> socket.socket:
    return socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
