"""A pooler as PgBouncer is in transaction mode, in which each transaction of a client may have another server
connection. It has no state of a session, and mixes as much as it can."""

from __future__ import annotations

import random
import selectors
import socket
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass, field

_STARTUP, _HEADER = struct.Struct("!ii"), struct.Struct("!ci")
_PROTOCOL_3 = 196608
_QUERY, _SYNC, _TERMINATE, _READY = b"Q", b"S", b"X", b"Z"


@dataclass
class _Line:
    """One end, and what it has sent that is not yet a whole message."""

    socket: socket.socket
    received: bytes = b""

    def messages(self) -> list[bytes]:
        """Wait for bytes and return the messages that are whole; raise OSError when the line has ended."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("closed")
        self.received += data
        found = []
        while len(self.received) >= _HEADER.size:
            end = 1 + _HEADER.unpack_from(self.received)[1]
            if len(self.received) < end:
                break
            found.append(self.received[:end])
            self.received = self.received[end:]
        return found


@dataclass
class TransactionPooler:
    """Listens on `port` of loopback in front of the server with this Unix socket. The `size` connections to a
    database are opened for its first client; which of the free ones a transaction gets is chance. A client is
    told the key of the first one, so it cannot see by that key that there is a pooler."""

    path: str
    size: int
    seed: int = 0
    only: int | None = None
    """The server connection that every transaction gets instead."""
    given: list[int] = field(default_factory=list)
    """Which server connection each transaction got."""

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._chance = random.Random(self.seed)
        self._changed = threading.Condition()
        self._free: dict[bytes, list[tuple[int, _Line]]] = {}  # by database
        self._greetings: dict[bytes, bytes] = {}
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._sockets.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            while True:
                length, code = _STARTUP.unpack(client.recv(_STARTUP.size, socket.MSG_WAITALL))
                rest = client.recv(length - _STARTUP.size, socket.MSG_WAITALL)
                if code == _PROTOCOL_3:
                    break
                client.sendall(b"N")  # neither TLS nor GSSAPI here
            names = iter(rest.rstrip(b"\0").split(b"\0"))
            pool = dict(zip(names, names, strict=True))[b"database"]
            startup = _STARTUP.pack(length, code) + rest
            with self._changed:
                if pool not in self._free:
                    self._free[pool] = [(number, self._open(pool, startup)) for number in range(self.size)]
            client.sendall(self._greetings[pool])
            self._relay(_Line(client), pool)

    def _open(self, pool: bytes, startup: bytes) -> _Line:
        server = socket.socket(socket.AF_UNIX)
        server.connect(self.path)
        self._sockets.append(server)
        server.sendall(startup)
        line, greeting = _Line(server), b""
        while not greeting.endswith(_READY + struct.pack("!ic", 5, b"I")):
            greeting += b"".join(line.messages())
        self._greetings.setdefault(pool, greeting)
        return line

    def _relay(self, client: _Line, pool: bytes) -> None:
        while True:
            waiting = client.messages()
            number, server = self._take(pool)
            try:
                if not self._transaction(client, server, waiting):
                    return
            finally:
                with self._changed:
                    self._free[pool].append((number, server))
                    self._changed.notify()

    def _take(self, pool: bytes) -> tuple[int, _Line]:
        with self._changed:
            while True:
                free = self._free[pool]
                wanted = [place for place, (number, _) in enumerate(free) if self.only in (None, number)]
                if wanted:
                    number, server = free.pop(self._chance.choice(wanted))
                    self.given.append(number)
                    return number, server
                self._changed.wait()

    @staticmethod
    def _transaction(client: _Line, server: _Line, messages: list[bytes]) -> bool:
        """Pass on what both say until the transaction has ended. Return whether the client is still there."""
        open_requests, is_idle = 0, True
        with selectors.DefaultSelector() as either:
            either.register(client.socket, selectors.EVENT_READ)
            either.register(server.socket, selectors.EVENT_READ)
            while True:
                for message in messages:
                    if message[:1] == _TERMINATE:
                        assert is_idle, "the client went within a transaction"
                        return False
                    is_idle = False
                    open_requests += message[:1] in (_QUERY, _SYNC)
                server.socket.sendall(b"".join(messages))
                messages = []
                ready = {key.fileobj for key, _ in either.select()}
                if server.socket in ready:
                    answers = server.messages()
                    for answer in answers:
                        if answer[:1] == _READY:
                            open_requests -= 1
                            is_idle = answer[5:6] == b"I"
                    client.socket.sendall(b"".join(answers))
                    if is_idle and not open_requests and not client.received:
                        return True
                if client.socket in ready:
                    messages = client.messages()
