"""A server as a child process: started through the guard, identified by pid and start time, stopped.

Invariants:
- No signal is sent to a process whose start time is not the one recorded when we started it: its pid may have
  been given to another process.
- A guarded server ends with its owner, however the owner ends. A detached one ends only by `stop` or `kill`.
- A data directory has at most one server: the server process itself holds the lock on it, from before it
  starts until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

from txstream.core.errors import ServiceUnavailableError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded.files import try_lock
from txstream.settings import is_disk_full

GRACE_SECONDS = 10.0
# Servers whose owner died get less time than those that are stopped: their data survive a crash, and whoever
# starts them again at once (DATA_WAIT_SECONDS) should find the data free.
ORPHAN_GRACE_SECONDS = 3.0
DATA_WAIT_SECONDS = 5.0
# A process that another thread has just forked holds a copy of every open lock until it executes its program.
# So a lock is waited for unless the server that its file names has it.
_FORK_SECONDS = 2.0

_GUARD = Path(__file__).with_name("guard.py")
_POLL_SECONDS = 0.05
# Start times are computed from the boot time, which changes when the clock is set. A process that reused the
# pid started later than the recorded one, at least by the time that one took to become ready.
_START_TIME_TOLERANCE_SECONDS = 1.0
_LARGEST_LOG_BYTES = 10 * 1024 * 1024
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class ProcessIdentity:
    """Identifies a process for good: its pid, and when it started (seconds since the epoch)."""

    pid: int
    start_time: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that has this pid now, or None."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def process(self) -> psutil.Process | None:
        """Return the process if it still lives: not ended, not a zombie, not another one with its pid."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.start_time) > _START_TIME_TOLERANCE_SECONDS:
                return None
            # A JVM whose first thread has ended is a zombie while its other threads still hold port and lock.
            ended = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
            return None if ended else process
        except psutil.Error:
            return None

    def alive(self) -> bool:
        return self.process() is not None

    def signal_group(self, number: signal.Signals) -> bool:
        """Signal the group that this process leads. False if the process no longer lives."""
        if not self.alive():
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def wait_gone(self, timeout_seconds: float) -> bool:
        """Whether the process ended within the time."""
        return wait_until(lambda: not self.alive(), timeout_seconds)

    def stop(self, grace_seconds: float = GRACE_SECONDS) -> bool:
        """Send SIGTERM to its group, and SIGKILL after the grace time. False if it was not alive."""
        if not self.signal_group(signal.SIGTERM):
            return False
        if not self.wait_gone(grace_seconds):
            self.signal_group(signal.SIGKILL)
            self.wait_gone(grace_seconds)
        return True


def is_served(lock: Path) -> bool:
    """Whether the server that a lock file names has it open. False if that cannot be known: the server is
    another user's, or its pid is not written yet."""
    with contextlib.suppress(psutil.Error, OSError, ValueError):
        server = psutil.Process(int(lock.read_text()))
        return any(Path(one.path) == lock.resolve() for one in server.open_files())
    return False


class ServerProcess:
    """One server, guarded (ends with this process) or detached (outlives it).

    It also serves for a program that works on a server's data for a while.

    `name` is for messages. The server locks `lock_path`, if given, for as long as it lives.
    """

    def __init__(
        self,
        name: str,
        log_path: Path,
        *,
        lock_path: Path | None = None,
        detached: bool = False,
        grace_seconds: float = GRACE_SECONDS,
        identity: ProcessIdentity | None = None,
    ) -> None:
        self.name = name
        self.log_path = log_path
        self.identity = identity
        self._lock_path = lock_path
        self._detached = detached
        self._grace_seconds = grace_seconds
        self._guard: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> ProcessIdentity:
        """Start `command`; its output goes to the log file. Does not wait for it to be ready.

        Raises ServiceUnavailableError when it cannot be started or another process has its data.
        """
        if self.alive():
            raise ServiceUnavailableError(f"{self.name} is already running; stop it before starting it again")
        self._reap_guard()
        self._prepare_log()
        lock = None if self._lock_path is None else self._take_lock(self._lock_path, _FORK_SECONDS, is_served)
        try:
            mode = "detached" if self._detached else "guarded"
            grace = min(self._grace_seconds, ORPHAN_GRACE_SECONDS)
            launch = [sys.executable, "-I", "-S", str(_GUARD), mode, str(grace)]
            with self.log_path.open("ab") as log:
                guard = subprocess.Popen(
                    [*launch, str(self.log_path), str(-1 if lock is None else lock), "--", *command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=() if lock is None else (lock,),
                    env=None if env is None else dict(env),
                    cwd=cwd,
                )
        finally:
            if lock is not None:
                os.close(lock)
        self._guard = guard
        if guard.stdout is None:
            raise ServiceUnavailableError(f"{self.name} could not be started: its guard has no output")
        with guard.stdout:
            answer = guard.stdout.readline().decode(errors="replace").strip()
        kind, _, detail = answer.partition(" ")
        if kind != "pid":
            self._reap_guard()
            raise ServiceUnavailableError(
                f"{self.name} could not be started ({detail or 'its guard ended at once'}); "
                f"the command was {' '.join(command[:1])}, the log is {self.log_path}"
            )
        self.identity = ProcessIdentity.of(int(detail)) or ProcessIdentity(int(detail), 0.0)
        if self._detached:
            self._reap_guard()
        return self.identity

    def wait_for_data(self) -> None:
        """Wait until no other process has our data. An owner that was just killed leaves servers that its
        guards are still stopping. Raises ServiceUnavailableError, naming the process, if it keeps them."""
        if self._lock_path is not None and not self.alive():
            os.close(self._take_lock(self._lock_path, wait_seconds=DATA_WAIT_SECONDS))

    def alive(self) -> bool:
        return self.identity is not None and self.identity.alive()

    def stop(self) -> bool:
        """Stop the server: SIGTERM, SIGKILL after the grace time. Waits until it is gone. False: none ran."""
        if self.identity is None:
            return False
        was_alive = self.identity.stop(self._grace_seconds)
        self._reap_guard()
        return was_alive

    def kill(self) -> None:
        """Kill the server and everything that it started (SIGKILL), and wait until it is gone."""
        if self.identity is not None and self.identity.signal_group(signal.SIGKILL):
            self.identity.wait_gone(self._grace_seconds)
        self._reap_guard()

    def wait_ready(self, answered: Callable[[], bool], deadline: float) -> None:
        """Call `answered` until it returns true. Raises ServiceUnavailableError, naming the log and its last
        meaningful line, when the server ends or `deadline` (monotonic seconds) passes."""
        pause = threading.Event()
        while not (ready := answered()):
            if not self.alive():
                raise ServiceUnavailableError(f"{self.name} ended while starting; {self.last_words()}")
            if time.monotonic() >= deadline:
                raise ServiceUnavailableError(
                    f"{self.name} runs but did not answer a client in time; {self.last_words()}"
                )
            pause.wait(_POLL_SECONDS)
        if ready and not self.alive():
            # Another process answered: our own server lost the race for the port.
            raise ServiceUnavailableError(f"{self.name} ended while starting; {self.last_words()}")

    def log_since_start(self) -> str:
        """The end of what the server wrote since it was last started (at most 64 KiB)."""
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                return log.read().decode("utf-8", errors="replace")
        except OSError:
            return ""

    def last_words(self) -> str:
        """Name the log file and the line in it that most likely says why."""
        line = meaningful_line(self.log_since_start())
        said = f"its last words were: {line}" if line else "it wrote nothing"
        full = "; its disk is full" if is_disk_full(self.log_path.parent) else ""
        return f"{said} (log: {self.log_path}){full}"

    def _prepare_log(self) -> None:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        size = self.log_path.stat().st_size if self.log_path.exists() else 0
        if size > _LARGEST_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(self.log_path.suffix + ".1"))
            size = 0
        self._log_start = size

    def _take_lock(
        self, path: Path, wait_seconds: float, is_lost: Callable[[Path], bool] = lambda _: False
    ) -> int:
        taken: list[int] = []

        def take() -> bool:
            lock = try_lock(path)
            if lock is not None:
                taken.append(lock)
            return bool(taken)

        if not wait_until(lambda: take() or is_lost(path), wait_seconds) or not taken:
            holder = path.read_text(errors="replace").strip()
            raise ServiceUnavailableError(
                f"{self.name} cannot use {path.parent}: process {holder or '(unknown)'} has it; "
                "stop the command that started it (`txstream down` for detached services), "
                "or give another --data-dir"
            )
        return taken[0]

    def _reap_guard(self) -> None:
        """Close the pipe to the guard, so that it stops the server if that still runs; wait for the guard."""
        guard, self._guard = self._guard, None
        if guard is None:
            return
        if guard.stdin is not None:
            guard.stdin.close()
        try:
            guard.wait(self._grace_seconds + GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            guard.kill()
            guard.wait()
            if self.identity is not None:
                self.identity.signal_group(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def meaningful_line(log: str) -> str:
    """The last line of `log` that names an error, else its last line that is not empty."""
    lines = [
        line.strip() for line in log.splitlines() if line.strip() and not line.startswith(("\tat ", "\t..."))
    ]
    for line in reversed(lines):
        explains = any(word in line for word in ("ERROR", "FATAL", "Exception", "Error:", "Caused by"))
        if explains and "Exiting JVM" not in line:  # ZooKeeper's last error only says that there was one
            return line[:500]
    return lines[-1][:500] if lines else ""


def stop_all(processes: Sequence[ServerProcess]) -> None:
    """Stop several servers at the same time. Each gets its full grace time; waits for all."""
    threads = [threading.Thread(target=process.stop, name=f"stop {process.name}") for process in processes]
    with contextlib.ExitStack() as joined:
        for thread in threads:
            thread.start()
            joined.callback(thread.join)
