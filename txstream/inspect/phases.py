"""Where the time of a committed batch went, in steps that add up to all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txstream.inspect.ledgers import failed_attempts

if TYPE_CHECKING:
    from txstream.inspect.records import Batch

FAILED, WAIT = "failed attempts", "wait"


def phases(batch: Batch) -> dict[str, float]:
    """Return the seconds of each step of a batch, from the beginning of its plan to its end. `failed
    attempts` are those before the committed one with the pauses after them; `wait` is what no step explains,
    such as the turn of the batches before it. Steps that did not happen are left out; empty for a batch that
    is not committed."""
    row, timings = batch.first, batch.timings
    if row.committed_at is None:
        return {}
    found = {step: timings.get(step, 0.0) for step in ("plan", "persist")}
    ended = [one.failed_at for entry in batch.entries for one in failed_attempts(entry) if one.failed_at]
    if ended:
        found[FAILED] = (max(ended) - row.planned_at).total_seconds() - found["persist"]
    found |= {step: timings.get(step, 0.0) for step in ("search", "job", "merge")}
    # Of the newest batch the ledger has these two parts of the commit at most.
    parts = ("commit",) if "commit" in timings else ("begin", "write")
    committing = {"commit_bolts": timings.get("commit_bolts", 0.0)}
    committing["commit"] = sum(timings.get(part, 0.0) for part in parts)
    lasted = found["plan"] + (row.committed_at - row.planned_at).total_seconds()
    found[WAIT] = lasted - sum(found.values()) - sum(committing.values())
    found |= committing | {"advance": timings.get("advance", 0.0)}
    return {step: seconds for step, seconds in found.items() if seconds > 0.0}
