"""Starts `txstream` commands with everything imported, which would take a processor one second each.

For each pytest process, one nursery imports all of txstream and forks every command that a test asks for, as
a process with its own arguments, folder, environment and output. It ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

_MOST_BYTES = 1 << 20
# What txstream imports only when it needs it.
_DRIVERS = ("kafka", "psycopg", "pymysql", "rich.progress", "rich.table")


class Forked:
    """A command that the nursery has forked, with as much of `subprocess.Popen` (of text) as tests use."""

    def __init__(self, args: Sequence[str], asked: socket.socket, stdout: IO[str], stderr: IO[str]) -> None:
        self.args, self.stdout, self.stderr = args, stdout, stderr
        self.returncode: int | None = None
        self._asked = asked
        self._reading = threading.Lock()
        self.pid = int(asked.recv(_MOST_BYTES))

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._wait(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def _wait(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._asked], [], [], seconds)[0]:
            with self._reading:
                if self.returncode is None:
                    self.returncode = int(self._asked.recv(_MOST_BYTES))
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks commands. Made by `nursery()`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="nursery-")
        self.address = f"{self._folder.name}/socket"
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(self.address)
        listening.listen(100)
        with listening:
            program = [sys.executable, "-P", __file__, str(listening.fileno())]
            self._process = subprocess.Popen(
                program, pass_fds=[listening.fileno()], stdin=subprocess.PIPE, text=True
            )

    def start(self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Forked:
        """Start a command without input; `arguments` are those of the interpreter, from `-m` or `-P` on."""
        (out, its_out), (err, its_err) = os.pipe(), os.pipe()
        nothing = os.open(os.devnull, os.O_RDONLY)
        asked = ask(self.address, arguments, str(folder), environment, [nothing, its_out, its_err])
        for descriptor in (nothing, its_out, its_err):
            os.close(descriptor)
        return Forked(arguments, asked, os.fdopen(out, encoding="utf-8"), os.fdopen(err, encoding="utf-8"))


@functools.cache
def nursery() -> Nursery:
    return Nursery()


def ask(
    address: str,
    arguments: Sequence[str],
    folder: str,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
) -> socket.socket:
    """Ask for a command; return the connection that brings its pid and, when it ends, its status."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(address)
    asked = json.dumps([list(arguments), folder, dict(environment)]).encode()
    socket.send_fds(connection, [asked], descriptors)
    return connection


def import_everything() -> None:
    """Import everything but pandas, which few commands need."""
    import txstream
    from txstream import bolts, spouts

    with without_pandas():
        for package in (txstream, bolts, spouts):
            for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                if not found.name.endswith("__main__"):
                    importlib.import_module(found.name)
        for name in _DRIVERS:
            importlib.import_module(name)
    importlib.import_module("txstream.cli.main").parser()
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def without_pandas() -> Iterator[None]:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.sparkless import NoPandas

    del sys.path[0]
    sys.meta_path.insert(0, NoPandas())
    yield
    del sys.meta_path[0]


def serve(listening: socket.socket) -> list[Any]:
    """Fork a process for each request. Returns only in the forked processes, with the request."""
    running: dict[int, socket.socket] = {}
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([listening.fileno(), ended, 0], [], [])
        if 0 in ready:
            sys.exit()  # pytest has ended
        if ended in ready:
            os.read(ended, _MOST_BYTES)
            while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
                with running.pop(found[0]) as connection, contextlib.suppress(OSError):
                    connection.send(str(os.waitstatus_to_exitcode(found[1])).encode())
        if listening.fileno() not in ready:
            continue
        connection, _ = listening.accept()
        asked, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
        pid = os.fork()
        if not pid:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        running[pid] = connection
        connection.send(str(pid).encode())
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for one in (listening, connection, *running.values()):
        one.close()
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
    for descriptor in (ended, wake, *descriptors):
        os.close(descriptor)
    # Made as the interpreter makes them: the nursery's own were made for another output.
    for name, target, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        by_line = 1 if name == "stderr" or os.isatty(target) else -1
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = os.fdopen(target, mode, buffering=by_line, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    request: list[Any] = json.loads(asked)
    return request


if __name__ == "__main__" and len(sys.argv) > 2:  # typed at a shell: the address, and what to start
    asked = ask(sys.argv[1], sys.argv[2:], str(Path.cwd()), os.environ, [0, 1, 2])
    asked.recv(_MOST_BYTES)
    sys.exit(int(asked.recv(_MOST_BYTES)))
elif __name__ == "__main__":
    import_everything()
    (program, *words), folder, environment = serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    target, *sys.argv[1:] = words
    if program == "-m":
        sys.path.insert(0, folder)
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = target
        runpy.run_path(target, run_name="__main__")
