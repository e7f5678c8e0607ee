"""Topics that are read to their ends before any other: the tables of a `LookupBolt`, for example.

Pure. What was decided is in the metas: until the first topics are read to their ends, no plan has a range of
another one; once one has, later plans read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from txstream.spouts.backlog import share_limit
from txstream.spouts.kafka import KafkaRange


def share_first(
    is_first: Callable[[str], bool],
    backlogs: Mapping[str, int],
    last: Mapping[str, KafkaRange],
    unavailable: Collection[str],
    whole: Mapping[str, int],
    limit: int,
    progress: int,
) -> tuple[dict[str, int], set[str]]:
    """Share the limit among partitions as `share_limit`. Return the shares and, until a record of others than
    the first ones is planned, those others: none has a share as long as it has to wait. `whole` is how much
    waits of each partition, `backlogs` how much of that one batch may take.

    The batch that reads the first ones to their ends may read others, too. As long as one of the first ones
    cannot be asked, nobody knows where it ends, and the others wait.
    """
    others = {name for name in (*backlogs, *last, *unavailable) if not is_first(name)}
    if any(name in last and last[name].first_place is None for name in others):
        return share_limit(backlogs, limit, progress), set()
    first = {name: backlog for name, backlog in backlogs.items() if name not in others}
    shares = share_limit(first, limit, progress)
    rest = limit - sum(shares.values())
    if rest > 0 and others.issuperset(unavailable) and all(shares.get(one, 0) == whole[one] for one in first):
        waiting = {name: backlog for name, backlog in backlogs.items() if name in others}
        shares |= share_limit(waiting, rest, progress)
    return shares, others
