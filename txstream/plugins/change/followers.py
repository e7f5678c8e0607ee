"""Who follows a topology, by name, as its code says: who is told of a rewind, and who is not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
        states = (*(bolt.state for bolt, _ in topology.states), *(use.state for use in topology.map_states))
        found[True].update(
            f"topic {state.changes_to} (changes of {state.table})"
            for state in states
            if state.changes_to is not None and not state.keeps_versions
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
