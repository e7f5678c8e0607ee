"""Variants of a user's topology: under names of its own, and with a fixed end of what it reads."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from txstream.api.spouts import NonTransactionalSpout, PartitionCoordinator, Unavailable
from txstream.api.state_checks import check_states
from txstream.api.topology import Topology
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import PartitionUnavailableError
from txstream.core.semantics import Semantics
from txstream.engine.batch.sizing import planned_records
from txstream.spouts.ranges import RecordSpan

Positions = Mapping[str, Any]
"""The meta that marks the place of each partition."""


def under_own_names(topology: Topology, topology_id: str, prefix: str) -> Topology:
    """Return the topology under another id, with tables whose names begin with `prefix` and whose changes go
    nowhere."""
    return topology.with_id(topology_id).with_states(
        lambda state: replace(state, table=f"{prefix}{state.table}", changes_to=None)
    )


def with_batches_of(topology: Topology, records: int) -> Topology:
    """Return the topology with at most `records` records in a batch."""
    spout = copy.copy(topology.spout)
    spout.max_batch_records = min(spout.max_batch_records, records)
    first, *others = topology.components
    return replace(topology, components=(replace(first, instance=spout), *others))


def without_semantics(topology: Topology) -> Topology:
    """Return the topology over a non-transactional spout, also one with dead letters. `build` refuses that,
    since their promise does not hold for it: a baseline to compare with. Raises as `check_states`."""
    first, *others = topology.components
    spout = NonTransactionalSpout(topology.spout.source, max_batch_records=topology.spout.max_batch_records)
    components = (replace(first, instance=spout), *others)
    states, map_states = check_states(Semantics.NON_TRANSACTIONAL, components)
    return replace(topology, components=components, states=states, map_states=map_states)


def fixed_end(spout: PartitionCoordinator[Any], records: int) -> Positions:
    """Return where every partition ends, the same for all runs: after about `records` records, or where the
    log ends now.

    The limit applies to sources of numbered records, such as Kafka; other sources are read to their end.
    Raises PartitionUnavailableError for a partition that cannot be read, and what the source raises.
    """
    targets = spout.targets()
    last: Positions = {}
    taken = 0
    while not spout.reached(last, targets):
        metas = BatchMetas.from_plan(last, spout.plan(last, max(1, records - taken)))
        if metas.unavailable:
            partition, reason = next(iter(metas.unavailable.items()))
            raise PartitionUnavailableError(f"partition {partition!r} cannot be read: {reason}")
        if not metas.has_work:
            break
        last = metas.positions()
        taken += planned_records(metas) or 0
        if taken >= records and _is_limited(last):
            break
    return last


def _is_limited(positions: Positions) -> bool:
    return all(isinstance(meta, RecordSpan) for meta in positions.values())


def clipped(plan: Mapping[str, Any], end: Positions) -> dict[str, Any]:
    """Return the part of a plan before the end. Partitions that have appeared since are left out."""
    return {
        partition: replace(meta.until(end[partition].end), start=min(meta.start, end[partition].end))
        if isinstance(meta, RecordSpan) and meta.end > end[partition].end
        else meta
        for partition, meta in plan.items()
        if partition in end or isinstance(meta, Unavailable)
    }


def is_reached(last: Positions, end: Positions) -> bool:
    return all(name in last and last[name].end >= meta.end for name, meta in end.items())
