"""The deadline of a database that stops answering: one thread watches all connections of a process."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from txstream.state.sql.server_timeouts import Watchdog

LONG = 60.0


@pytest.fixture
def line() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair()
    with near, far:
        far.settimeout(LONG)
        yield near, far


def watchers() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "txstream-database-deadline"]


def test_a_line_that_stays_silent_is_shut_down(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    with Watchdog(near.fileno(), 0.05) as dog:
        assert far.recv(1) == b""  # the end of the line
        assert dog.bitten


def test_a_shorter_deadline_counts_beside_a_longer_one(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    others = socket.socketpair()
    with others[0], others[1], Watchdog(others[0].fileno(), LONG) as patient:
        with Watchdog(near.fileno(), 0.05) as dog:
            assert far.recv(1) == b""
            assert dog.bitten
        assert not patient.bitten
        others[0].sendall(b"x")
        assert others[1].recv(1) == b"x"


def test_a_line_that_answers_is_left_alone(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    with Watchdog(near.fileno(), 2.0) as dog:
        began = time.monotonic()
        while time.monotonic() - began < 2.5:
            dog.touch()
            far.settimeout(0.01)
            with pytest.raises(TimeoutError):  # nothing comes, not even the end
                far.recv(1)
        assert not dog.bitten
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_nothing_is_shut_down_after_the_end(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    with Watchdog(near.fileno(), 0.05):
        pass
    others = socket.socketpair()
    with others[0], others[1], Watchdog(others[0].fileno(), 0.2):  # by then the first would have been due
        others[1].settimeout(LONG)
        assert others[1].recv(1) == b""
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_all_transactions_share_one_thread(line: tuple[socket.socket, socket.socket]) -> None:
    seen: set[int | None] = set()
    for _ in range(50):
        with Watchdog(line[0].fileno(), LONG), Watchdog(line[0].fileno(), LONG):
            seen.update(one.ident for one in watchers())
    assert len(seen) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_watches_with_a_thread_of_its_own(line: tuple[socket.socket, socket.socket]) -> None:
    near, far = line
    with Watchdog(near.fileno(), LONG):
        child = os.fork()
        if not child:  # nothing of pytest may run here
            status = 1
            try:
                mine = socket.socketpair()
                with Watchdog(mine[0].fileno(), 0.05):
                    mine[1].settimeout(LONG)
                    status = 0 if mine[1].recv(1) == b"" else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    near.sendall(b"x")
    assert far.recv(1) == b"x"
