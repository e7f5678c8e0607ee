"""How much of a backlog a batch takes: all of it up to a limit, which the partitions share.

Pure: no clock, no client, no memory of earlier plans.
"""

from __future__ import annotations

from collections.abc import Mapping


def share_limit(backlogs: Mapping[str, int], limit: int, progress: int = 0) -> dict[str, int]:
    """What each partition gets of `limit` records: never more than its backlog, all of it while backlogs
    last.

    Half of the limit is shared equally, so that a small partition does not starve beside a large one; the
    rest goes by what is left of the backlogs, so that a large one catches up. With fewer records than
    partitions, `progress` (any number that changes as batches are read, such as the sum of all positions)
    decides whose turn it is.
    """
    waiting = {name: backlog for name, backlog in sorted(backlogs.items()) if backlog > 0}
    if sum(waiting.values()) <= limit:
        return waiting
    if limit < len(waiting):
        names = list(waiting)
        return {names[(progress + turn) % len(names)]: 1 for turn in range(limit)}
    equal = max(1, limit // (2 * len(waiting)))
    given = {name: min(backlog, equal) for name, backlog in waiting.items()}
    rest = limit - sum(given.values())
    left = {name: waiting[name] - given[name] for name in waiting}
    total = sum(left.values())
    for name, backlog in left.items():
        given[name] += backlog * rest // total
    remainder = limit - sum(given.values())
    # What rounding down left over, at most one record for each partition, to those with most still waiting.
    for name in sorted(waiting, key=lambda name: given[name] - waiting[name]):
        if remainder == 0:
            break
        if given[name] < waiting[name]:
            given[name] += 1
            remainder -= 1
    return given
