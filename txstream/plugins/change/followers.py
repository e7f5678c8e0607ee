"""Who follows a topology, by name, as its code says: who is told of a rewind, and who is not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from txstream.api.state import SqlState
from txstream.core.wording import in_order

if TYPE_CHECKING:
    from txstream.api.topology import Topology


@dataclass(frozen=True, slots=True)
class Followers:
    """`told` learn of a rewind at the next start, `untold` never do."""

    told: tuple[str, ...]
    untold: tuple[str, ...]

    @classmethod
    def of(cls, topology: Topology) -> Followers:
        found: dict[bool, set[str]] = {True: set(), False: set()}
        for one in topology.bolts:
            bolt: Any = one.instance
            found[bolt.tells_rewinds].update(f"{place} (component {one.id})" for place in bolt.writes_to)
            states = getattr(bolt, "states", None)
            kept = [getattr(bolt, "state", None), *(states.values() if isinstance(states, Mapping) else ())]
            found[True].update(
                f"topic {state.changes_to} (changes of {state.table})"
                for state in kept
                if isinstance(state, SqlState) and state.changes_to is not None
            )
        source, letters = topology.spout.source, topology.dead_letters
        if group := getattr(source, "publish_group", None):
            found[False].add(f"consumer group {group} (it goes back with the next commit)")
        if letters is not None and letters.topic is not None:
            found[False].add(f"topic {letters.topic} (dead letters)")
        return cls(*(tuple(sorted(found[is_told], key=in_order)) for is_told in (True, False)))

    def in_words(self) -> list[str]:
        told = ", ".join(self.told) or "nobody"
        untold = ", ".join(self.untold) or "nobody that its code names"
        return [f"told of it at the next start: {told}", f"not told, so tell them: {untold}"]
