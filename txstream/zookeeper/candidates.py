"""The znodes below `leader/`: one per driver that leads or stands by, in the order of their arrival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from txstream.batch_metas import to_json
from txstream.zookeeper.driver_process import DriverProcess
from txstream.zookeeper.fenced_tree import describe_this_process
from txstream.zookeeper.tree import Tree

_CANDIDATE = re.compile(r"^(?P<token>[0-9a-f]{32})-(?P<sequence>-?\d{10,})$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A driver that leads or stands by: host:pid, since when, how it stands by ("warm" or "cold"), which
    process it is, and how long its session may outlive that. None stands for what a driver of another version
    left out, or could not tell."""

    driver: str
    since: datetime | None = None
    standby: str | None = None
    process: DriverProcess | None = None
    session_seconds: float | None = None

    def runs(self) -> bool | None:
        """Whether its process runs; None if that cannot be told from here."""
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
        # Whether it runs cannot be told, and people are shown the path.
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
