"""`--as ID`: a topology beside the one that its code describes; neither touches what is the other's."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from txstream.core.errors import UsageError

if TYPE_CHECKING:
    from txstream.api.topology import Topology


def shadow(table: str, topology_id: str) -> str:
    """Return the table that the topology beside has for a state table of the code's."""
    return f"{table}__{topology_id}"


def beside(topology: Topology, topology_id: str) -> Topology:
    """Return the topology under another id, over tables of its own.

    It tells nobody else what it does: no consumer group gets its places, no topic its dead letters or its
    changes. Raises UsageError if a bolt writes to a topic, which would get everything twice, and for tracked
    tuples.
    """
    from txstream.api.bolts import StateCommitter
    from txstream.api.topology import BATCHES

    if topology.tier != BATCHES:
        raise UsageError(f"topology {topology.id!r} is of tracked tuples, which keep no state: use --id")
    for one in topology.bolts:
        bolt: Any = one.instance
        if bolt.writes_to or (isinstance(bolt, StateCommitter) and bolt.state.transient):
            where = ", ".join(bolt.writes_to) or "another place"
            raise UsageError(
                f"component {one.id!r} writes to {where}, which would get everything a second time from "
                f"{topology_id!r}; let the factory leave it out, by a parameter for example (-p)"
            )
    spout = copy.copy(topology.spout)
    spout.source = spout.source.unpublished()
    first, *others = topology.components
    letters = topology.dead_letters
    own = replace(
        topology.with_id(topology_id),
        components=(replace(first, instance=spout), *others),
        dead_letters=None if letters is None else replace(letters, topic=None),
    )
    return own.with_states(
        lambda state: replace(state, table=shadow(state.table, topology_id), changes_to=None)
    )
