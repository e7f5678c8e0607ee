"""Starts one server and makes sure that it does not outlive its owner.

`process.py` runs it as `python -I -S guard.py MODE GRACE_SECONDS LOG_PATH LOCK_FD -- COMMAND...`. It uses
only the standard library, because it must start fast and run without the caller's path.

Invariants:
- The server leads its own session and process group: a terminal's Ctrl-C does not reach it, and one signal to
  the group also reaches everything that it has started.
- In mode `guarded`, standard input is a pipe whose writing end only the owner holds. When it closes (the
  owner stopped us, ended, or was killed), or when our parent changes (the owner was killed while one of its
  forked children still holds the pipe), the group gets SIGTERM and, after the grace time, SIGKILL.
- In mode `detached`, we exit as soon as the server runs. It then belongs to nobody and outlives the owner.
- LOCK_FD (-1 for none) carries an flock on the server's data. The server inherits it and we close ours, so
  the data stay locked exactly as long as the server lives. The server's pid is written into the file.

The guard prints one line on standard output: `pid N` or `error TEXT`.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_PR_SET_PDEATHSIG = 1
_PARENT_CHECK_SECONDS = 0.5


def _die_with_guard() -> None:
    """Run in the new server process before exec: if the guard itself is killed, the server dies too."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _has_ended(pid: int) -> bool:
    """Whether our child has ended. It is not reaped here: its process group id must not be reused yet."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # nobody is left
        os.killpg(pid, number)


def _watch(pid: int, owner: int, grace_seconds: float) -> None:
    wake_reader, wake_writer = os.pipe()
    for end in (wake_reader, wake_writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake_writer, warn_on_full_buffer=False)
    asked_to_stop = []
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: asked_to_stop.append(True))

    while not _has_ended(pid):
        ready, _, _ = select.select([0, wake_reader], [], [], _PARENT_CHECK_SECONDS)
        if wake_reader in ready:
            os.read(wake_reader, 4096)
        if asked_to_stop or os.getppid() != owner or (0 in ready and not os.read(0, 1)):
            break

    if not _has_ended(pid):
        _signal_group(pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_seconds
        while not _has_ended(pid) and time.monotonic() < deadline:
            # SIGCHLD ends the wait early through the wakeup pipe.
            select.select([wake_reader], [], [], max(0.0, min(0.1, deadline - time.monotonic())))
    # Even if the server ended by itself, nothing that it started may be left over.
    _signal_group(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(arguments: list[str]) -> int:
    owner = os.getppid()
    mode, grace_seconds, log_path, lock_text = arguments[:4]
    command = arguments[arguments.index("--") + 1 :]
    lock_fd = int(lock_text)
    guarded = mode == "guarded"
    server = None
    try:
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock_fd,) if lock_fd >= 0 else (),
            preexec_fn=_die_with_guard if guarded else None,
        )
        if lock_fd >= 0:
            os.ftruncate(lock_fd, 0)
            os.pwrite(lock_fd, f"{server.pid}\n".encode(), 0)
            os.close(lock_fd)
    except OSError as problem:
        if server is not None:  # the disk is full; nobody would know of this server
            _signal_group(server.pid, signal.SIGKILL)
            server.wait()
        os.write(1, f"error {problem}\n".encode())
        return 1
    os.write(1, f"pid {server.pid}\n".encode())
    os.close(1)
    if guarded:
        _watch(server.pid, owner, float(grace_seconds))
    # Skip the interpreter's own cleanup, which would complain about a child that still runs.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
