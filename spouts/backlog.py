"""How much of the backlog a batch takes: all of it, up to a limit that the partitions share.

Pure: no clock, no client, no memory of earlier plans.
"""

from __future__ import annotations

from collections.abc import Mapping

_FEW_PARTITIONS = 16
_PIECE = 250
"""The fewest records worth asking of one partition: a partition costs a batch about as much as this many."""


def share_limit(backlogs: Mapping[str, int], limit: int, progress: int = 0) -> dict[str, int]:
    """Share `limit` records among the partitions. Return each partition's share, at most its backlog. The
    shares use up the limit, unless the backlogs are smaller.

    Half of the limit is shared equally, so that a small partition does not starve beside a large one. The
    rest is shared in proportion to what is left of the backlogs, so that a large one catches up. If many
    partitions wait and each would get only a few records, some of them take turns to get a larger piece.
    `progress` (any number that grows with what is read, such as the sum of all positions) decides whose turn
    it is.
    """
    waiting = {name: backlog for name, backlog in sorted(backlogs.items()) if backlog > 0}
    if sum(waiting.values()) > limit:
        waiting = _in_turn(waiting, limit, progress)
    if sum(waiting.values()) <= limit:
        return waiting
    equal = max(1, limit // (2 * len(waiting)))
    given = {name: min(backlog, equal) for name, backlog in waiting.items()}
    rest = limit - sum(given.values())
    left = {name: waiting[name] - given[name] for name in waiting}
    total = sum(left.values())
    for name, backlog in left.items():
        given[name] += backlog * rest // total
    remainder = limit - sum(given.values())
    # Rounding down leaves at most one record per partition. Those with the most still waiting get it.
    for name in sorted(waiting, key=lambda name: given[name] - waiting[name]):
        if remainder == 0:
            break
        if given[name] < waiting[name]:
            given[name] += 1
            remainder -= 1
    return given


def _in_turn(waiting: Mapping[str, int], limit: int, progress: int) -> dict[str, int]:
    """The partitions whose turn it is: as many as fill the limit with pieces worth asking for, or a few."""
    names = list(waiting)
    at_once = min(limit, max(_FEW_PARTITIONS, limit // _PIECE))
    if len(names) <= at_once:
        return dict(waiting)
    piece = -(-limit // at_once)
    first = progress // piece % len(names)
    chosen: dict[str, int] = {}
    filled = 0
    for name in names[first:] + names[:first]:
        chosen[name] = waiting[name]
        filled += min(piece, waiting[name])
        if filled >= limit:
            break
    return chosen
