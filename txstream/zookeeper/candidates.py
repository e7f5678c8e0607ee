"""The znodes below `leader/`: one per driver that leads or stands by, in the order of their arrival."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self

from txstream.core.batch_metas import to_json
from txstream.zookeeper.fenced_tree import describe_this_process
from txstream.zookeeper.tree import Tree

_PROC = Path("/proc")

_CANDIDATE = re.compile(r"^(?P<token>[0-9a-f]{32})-(?P<sequence>-?\d{10,})$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A driver that leads or stands by: host:pid, since when, how it stands by ("warm" or "cold"), which
    process it is, and how long its session may outlive that. None stands for what a driver of another version
    left out, or did not know."""

    driver: str
    since: datetime | None = None
    standby: str | None = None
    process: DriverProcess | None = None
    session_seconds: float | None = None

    def runs(self) -> bool | None:
        """Whether its process runs; None if that is not known here."""
        return None if self.process is None else self.process.runs()


def candidate_data(standby: str | None = None, session_seconds: float | None = None) -> bytes:
    """Return what this driver leaves in its znode."""
    process = DriverProcess.this()
    found = {
        "driver": describe_this_process(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "standby": standby,
        "process": None if process is None else process.to_document(),
        "session_seconds": session_seconds,
    }
    return to_json(found).encode()


def in_order(names: Iterable[str]) -> list[str]:
    """Return the candidates among `names`, in the order of their arrival. Other names do not take part."""
    matches = (match for match in map(_CANDIDATE.match, names) if match is not None)
    return [match.string for match in sorted(matches, key=lambda match: int(match["sequence"]))]


def candidate_at(tree: Tree, path: str) -> Candidate | None:
    """Return the candidate at `path`; None if it is gone."""
    node = tree.get(path)
    if node is None:
        return None
    try:
        found = json.loads(node.data)
        seconds = found.get("session_seconds")
        return Candidate(
            str(found["driver"]),
            datetime.fromisoformat(found["since"]),
            found.get("standby"),
            DriverProcess.decode(found.get("process")),
            None if seconds is None else float(seconds),
        )
    except (ValueError, KeyError, TypeError):
        # Whether it runs is not known; the path is what can be shown.
        return Candidate(f"a driver that left no address ({path})")


def candidates(tree: Tree, leader_path: str) -> Iterator[Candidate]:
    """Yield the present candidates: the leader, then those that stand by."""
    tree.sync()
    for name in in_order(tree.children(leader_path) or []):
        found = candidate_at(tree, f"{leader_path}/{name}")
        if found is not None:
            yield found


def present_leader(tree: Tree, leader_path: str) -> str | None:
    """Return host:pid of the first candidate, or None."""
    return next((found.driver for found in candidates(tree, leader_path)), None)


def first_living(tree: Tree, leader_path: str) -> Candidate | None:
    """Return the first candidate that is not known to have ended, or None."""
    return next((found for found in candidates(tree, leader_path) if found.runs() is not False), None)


@dataclass(frozen=True, slots=True)
class DriverProcess:
    """A process, described so that others can find out whether it has ended.

    A pid alone says little: a container has pids of its own, even under the same host name, and a pid is used
    again. So it counts within `boot` and `pid_namespace`, and `started`, in clock ticks since the boot, tells
    the process from a later one. Only where boot and namespace are ours does a missing pid mean that it has
    ended. Elsewhere, and on systems without Linux' /proc, that is not known.
    """

    host: str
    boot: str
    pid_namespace: str
    pid: int
    started: int

    @classmethod
    def this(cls) -> Self | None:
        """Return this process; None where the system does not say."""
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
        """Whether this very process runs; None if that is not known here."""
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
