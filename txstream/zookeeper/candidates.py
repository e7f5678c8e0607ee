"""The znodes below `leader/`: one per driver that leads or stands by, in the order of their arrival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from txstream.batch_metas import to_json
from txstream.zookeeper.fenced_tree import describe_this_process
from txstream.zookeeper.tree import Tree

_CANDIDATE = re.compile(r"^(?P<token>[0-9a-f]{32})-(?P<sequence>-?\d{10,})$")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A driver that leads or stands by: host:pid, since when, and "warm" or "cold" as it stands by. None is
    what a driver of another version left out."""

    driver: str
    since: datetime | None = None
    standby: str | None = None


def candidate_data(standby: str | None = None) -> bytes:
    """What this driver leaves in its znode, for operators to read."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    found = {"driver": describe_this_process(), "since": since, "standby": standby}
    return to_json(found).encode()


def in_order(names: Iterable[str]) -> list[str]:
    """The candidates among `names`, first come first; what else is there does not take part."""
    matches = (match for match in map(_CANDIDATE.match, names) if match is not None)
    return [match.string for match in sorted(matches, key=lambda match: int(match["sequence"]))]


def candidate_at(tree: Tree, path: str) -> Candidate | None:
    """The candidate at `path`; None when it is gone."""
    node = tree.get(path)
    if node is None:
        return None
    try:
        found = json.loads(node.data)
        return Candidate(str(found["driver"]), datetime.fromisoformat(found["since"]), found.get("standby"))
    except (ValueError, KeyError, TypeError):
        # Only shown to people, so its name will do.
        return Candidate(f"a driver that left no address ({path})")


def candidates(tree: Tree, leader_path: str) -> Iterator[Candidate]:
    """Those that are there now: the leader, then who stands by."""
    tree.sync()
    for name in in_order(tree.children(leader_path) or []):
        found = candidate_at(tree, f"{leader_path}/{name}")
        if found is not None:
            yield found


def present_leader(tree: Tree, leader_path: str) -> str | None:
    """host:pid of the first candidate, or None."""
    return next((found.driver for found in candidates(tree, leader_path)), None)
