"""How far time has come in a topology that counts by windows, as the metas of its last batch say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from txstream.core.wording import in_order

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Watermark:
    """`at`: windows that end at that time or before are closed; None if none is. `held_by` are the partitions
    that held it back when the batch was planned."""

    at: datetime | None
    held_by: tuple[str, ...]


def watermarks_in(horizons: Mapping[str, Any]) -> dict[str, Watermark]:
    """Return the watermarks in a batch's horizons, by table."""
    found = {}
    for table, one in horizons.items():
        if isinstance(one, Mapping) and "watermark" in one:
            at = one["watermark"]
            moment = None if at is None else _EPOCH + timedelta(microseconds=at)
            found[table] = Watermark(moment, tuple(sorted(one["held_by"], key=in_order)))
    return found


def least_of(watermarks: Mapping[str, Watermark]) -> Watermark:
    """Return the watermark that is behind all others."""
    times = [one.at for one in watermarks.values()]
    least = None if None in times else min((one for one in times if one is not None), default=None)
    held = {partition for one in watermarks.values() if one.at == least for partition in one.held_by}
    return Watermark(least, tuple(sorted(held, key=in_order)))
