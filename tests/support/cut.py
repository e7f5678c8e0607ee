"""A proxy between a client and PostgreSQL's Unix socket that can lose the answer to COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

_SOCKET = ".s.PGSQL.5432"


class AnswerLosingProxy:
    """Listens in `directory` as PostgreSQL would; `lose_next_commit` makes it pass the next COMMIT on, wait
    for the server's answer, and hang up instead of passing that back."""

    def __init__(self, server: Path, directory: Path) -> None:
        self._server = server / _SOCKET
        self._losing = threading.Event()
        self.lost = threading.Event()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(directory / _SOCKET))
        self._listener.listen()
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
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                self._lines += [client, server]
                doomed = threading.Event()
                threading.Thread(target=self._up, args=(client, server, doomed), daemon=True).start()
                threading.Thread(target=self._down, args=(client, server, doomed), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, doomed: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self._losing.is_set() and b"COMMIT\0" in data:
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
