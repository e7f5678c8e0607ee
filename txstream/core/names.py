"""The rules for a topology's id: it is a ZooKeeper path element, a key in SQL and a word in a shell."""

from __future__ import annotations

from txstream.core.errors import TopologyError

MAX_TOPOLOGY_ID_CHARACTERS = 100


def validate_topology_id(topology_id: str) -> str:
    """Return the id itself if it is valid. Otherwise raises TopologyError, which names what is wrong with it.

    Refused: the empty string, more than 100 characters, a slash, unprintable characters, U+FFF0 and above
    (which ZooKeeper refuses in a path; emoji are among them), blanks at either end, `.` and `..`, and a
    leading `-`, which a shell command would take for an option.
    """
    problem = _problem(topology_id)
    if problem is not None:
        raise TopologyError(
            f"{_shown(topology_id)} cannot be a topology id: {problem}; "
            f"an id has 1 to {MAX_TOPOLOGY_ID_CHARACTERS} printable characters without a slash "
            "and without emoji, for example word-count"
        )
    return topology_id


def _problem(topology_id: object) -> str | None:
    if not isinstance(topology_id, str):
        return f"it is of type {type(topology_id).__name__}, not str"
    if not topology_id:
        return "it is empty"
    if len(topology_id) > MAX_TOPOLOGY_ID_CHARACTERS:
        return f"it has {len(topology_id)} characters"
    if "/" in topology_id:
        return "it has a slash in it"
    unprintable = next((character for character in topology_id if not character.isprintable()), None)
    if unprintable is not None:
        return f"it has the unprintable character {unprintable!r} in it"
    if (last := max(topology_id)) >= "\ufff0":
        return f"ZooKeeper refuses the character {last!r} in it"
    if topology_id.strip() != topology_id:
        return "it begins or ends with a blank"
    if topology_id in (".", ".."):
        return "ZooKeeper reserves it for relative paths"
    if topology_id.startswith("-"):
        return "commands would take it for an option"
    return None


def _shown(topology_id: object) -> str:
    text = repr(topology_id)
    return text if len(text) <= 60 else f"{text[:57]}..."
