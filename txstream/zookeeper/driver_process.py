"""Which process a driver is, told so that others can find out whether it has ended.

A pid alone says little: a container has pids of its own, even under the same host name, and a pid is used
again. So a driver leaves its boot, its PID namespace and its start time. Only where boot and namespace are
ours does a missing pid mean that the process has ended. Elsewhere, and on systems without Linux' /proc, that
cannot be told.
"""

from __future__ import annotations

import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class DriverProcess:
    """A process. Its pid counts within `boot` and `pid_namespace`. `started`, in clock ticks since the boot,
    tells it from a later process with the same pid."""

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: int

    @classmethod
    def this(cls) -> Self | None:
        """Return this process; None where the system does not tell."""
        pid = os.getpid()
        try:
            # A /proc that was mounted for another namespace lists other processes under our numbers.
            if str((_PROC / "self").readlink()) != str(pid):
                return None
            boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
            namespace = str((_PROC / "self/ns/pid").readlink())
            return cls(socket.gethostname(), boot, namespace, pid, _stat(pid).started)
        except (OSError, ValueError, IndexError):
            return None

    @classmethod
    def decode(cls, document: Any) -> Self | None:
        """Return the process that `to_document` described; None for anything else, as from older drivers."""
        try:
            host, boot, namespace = (str(document[name]) for name in ("host", "boot", "pid_namespace"))
            return cls(host, boot, namespace, int(document["pid"]), int(document["started"]))
        except (KeyError, TypeError, ValueError):
            return None

    def to_document(self) -> dict[str, Any]:
        return asdict(self)

    def runs(self) -> bool | None:
        """Whether this very process runs; None if that cannot be told from here."""
        here = DriverProcess.this()
        if here is None or (here.host, here.boot, here.pid_namespace) != (
            self.host,
            self.boot,
            self.pid_namespace,
        ):
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # it is somebody else's, but it is there
        except OverflowError:
            return None
        try:
            stat = _stat(self.pid)
        except (OSError, ValueError, IndexError):
            return None  # it ended just now, or /proc is hidden from us
        return stat.started == self.started and not stat.has_ended


class _Stat(NamedTuple):
    started: int
    has_ended: bool


def _stat(pid: int) -> _Stat:
    """Read /proc/<pid>/stat. The name in it, in parentheses, may hold anything."""
    fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), int(fields[19])
    return _Stat(started, state in "ZX" and threads <= 1)
