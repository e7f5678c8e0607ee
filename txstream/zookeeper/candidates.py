"""The znodes below `leader/`: one per driver that leads or stands by, in the order of their arrival."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from txstream.metas import to_json
from txstream.zookeeper.fenced import describe_this_process
from txstream.zookeeper.tree import Tree

_CANDIDATE = re.compile(r"^(?P<token>[0-9a-f]{32})-(?P<sequence>-?\d{10,})$")


def candidate_data() -> bytes:
    """What this driver leaves in its znode, for operators to read."""
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return to_json({"driver": describe_this_process(), "since": since}).encode()


def in_order(names: Iterable[str]) -> list[str]:
    """The candidates among `names`, first come first; what else is there does not take part."""
    matches = (match for match in map(_CANDIDATE.match, names) if match is not None)
    return [match.string for match in sorted(matches, key=lambda match: int(match["sequence"]))]


def describe_candidate(tree: Tree, path: str) -> str | None:
    """host:pid of the candidate at `path`; None when it is gone."""
    node = tree.get(path)
    if node is None:
        return None
    try:
        return str(json.loads(node.data)["driver"])
    except (ValueError, KeyError, TypeError):
        # Only shown to people, so its name will do.
        return f"a driver that left no address ({path})"


def present_leader(tree: Tree, leader_path: str) -> str | None:
    """host:pid of the first candidate, or None."""
    tree.sync()
    for name in in_order(tree.children(leader_path) or []):
        described = describe_candidate(tree, f"{leader_path}/{name}")
        if described is not None:
            return described
    return None
