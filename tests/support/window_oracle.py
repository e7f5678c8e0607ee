"""What a table of windows must hold, from records and metas alone. Imports nothing of txstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

DAY = 86_400_000_000


class Expected(NamedTuple):
    rows: dict[tuple[str, int], tuple[int, bool]]  # by key and start: how many, closed
    late: set[tuple[str, int]]  # partition and offset
    closed_in: dict[tuple[str, int], int]  # by key and start: the txid


def expected(
    records: Mapping[str, Sequence[tuple[int, str]]],
    metas: Mapping[int, Mapping[str, Any]],
    windows: Callable[[int], Sequence[tuple[int, int]]],
    grace: int,
    *,
    amend: bool = False,
    table: str = "clicks",
) -> Expected:
    """`records` are time (microseconds) and key by partition; `metas` are those of the ledger by txid."""
    counts: Counter[tuple[str, int, int]] = Counter()
    known: dict[int, dict[str, int]] = {0: {}}
    late: set[tuple[str, int]] = set()
    closed: dict[tuple[str, int], int] = {}
    before: int | None = None
    for txid in sorted(metas):
        note, ranges = metas[txid]["horizons"][table], metas[txid]["partitions"]
        latest, unread = known[note["through"]], {*ranges, *note["waiting"]}
        now = before
        if unread and unread <= latest.keys():
            found_now = min(latest[partition] for partition in unread) - grace
            now = found_now if before is None else max(before, found_now)
        assert (note["late"], note["watermark"]) == (before, now), txid
        told = dict(known[txid - 1])
        for partition, taken in ranges.items():
            for offset in range(taken["start"], taken["end"]):
                time, key = records[partition][offset]
                if time <= note["clock"] + DAY:
                    seen = min(time, note["clock"])
                    told[partition] = max(seen, told.get(partition, seen))
                found = windows(time)
                if not amend and before is not None and any(end <= before for _, end in found):
                    late.add((partition, offset))
                    continue
                counts.update((key, start, end) for start, end in found)
        known[txid] = told
        for key, start, end in counts:
            if now is not None and end <= now:
                closed.setdefault((key, start), txid)
        before = now
    rows = {(key, start): (n, (key, start) in closed) for (key, start, _), n in counts.items()}
    return Expected(rows, late, closed)
