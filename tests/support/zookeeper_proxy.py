"""A connection to ZooKeeper that can be cut, or lose one request or one answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

MULTI = 14


class Proxy:
    """A TCP proxy in front of one server. `lose_next_multi` cuts the connection before ("request") or after
    ("answer") the server gets the next multi, and with `stay_cut` refuses every connection after it; `cut`
    refuses every connection at once. Both last until `restore`."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._is_cut = False
        self._lose: str | None = None
        self._stays_cut = False
        self.lost = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_next_multi(self, what: str, *, stay_cut: bool = False) -> None:
        self._lose, self._stays_cut = what, stay_cut

    def cut(self) -> None:
        with self._lock:
            self._is_cut = True
            for connection in self._connections:
                _close(connection)
            self._connections.clear()

    def restore(self) -> None:
        self._is_cut = False

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if self._is_cut:
                        _close(client)
                        continue
                    try:
                        server = socket.create_connection(self._target)
                    except OSError:
                        _close(client)
                        continue
                    self._connections += [client, server]
                answer_lost = threading.Event()
                for pump in (self._to_server, self._to_client):
                    threading.Thread(target=pump, args=(client, server, answer_lost), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket, answer_lost: threading.Event) -> None:
        first = True
        with suppress(OSError):
            while frame := _read_frame(client):
                # The first frame opens the session; every other one begins with a number and a type.
                if not first and int.from_bytes(frame[8:12]) == MULTI and self._lose is not None:
                    what, self._lose = self._lose, None
                    self.lost += 1
                    self._is_cut = self._stays_cut
                    if what == "request":
                        break
                    answer_lost.set()
                first = False
                server.sendall(frame)
        _close(client)
        _close(server)

    def _to_client(self, client: socket.socket, server: socket.socket, answer_lost: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and not answer_lost.is_set():
                client.sendall(data)
        _close(client)
        _close(server)


def _read_frame(connection: socket.socket) -> bytes:
    frame = b""
    wanted = 4
    while len(frame) < wanted:
        piece = connection.recv(wanted - len(frame))
        if not piece:
            return b""
        frame += piece
        if len(frame) == 4:
            wanted = 4 + int.from_bytes(frame)
    return frame


def _close(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
