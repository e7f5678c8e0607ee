"""Batches as a matplotlib figure: records per second, the seconds of each phase, and how many records are to
come. Importers make sure that matplotlib is installed."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from math import isnan, nan

from matplotlib.figure import Figure

PHASES = ("plan", "persist", "job", "merge", "commit_bolts", "begin", "write", "commit", "advance")
"""One after the other; what is measured within one of them is left out. So are a commit's parts beside it."""
_IN_COMMIT = ("begin", "write")


class Plot(Figure):
    """A figure that a notebook shows: those that pyplot does not know are shown nowhere."""

    def _repr_png_(self) -> bytes:
        drawn = io.BytesIO()
        self.savefig(drawn, format="png")
        return drawn.getvalue()


def plot_batches(
    txids: Sequence[int],
    rates: Sequence[tuple[int, float]],
    seconds: Sequence[Mapping[str, float]],
    lag: Sequence[int | None],
) -> Plot:
    """Return the figure. `rates` are pairs of a txid and its records per second, `seconds` those of each txid
    by phase, `lag` the records that were to come after it; a gap where that is None."""
    to_come = [nan if one is None else float(one) for one in lag]
    count = 2 if all(map(isnan, to_come)) else 3
    figure = Plot(figsize=(9, 3 * count), layout="constrained")
    axes = figure.subplots(count, 1, sharex=True)
    axes[0].plot([txid for txid, _ in rates], [rate for _, rate in rates])
    axes[0].set_ylabel("records/s")
    axes[0].set_ylim(bottom=0)
    below = [0.0] * len(txids)
    for phase in PHASES:
        taken = [0.0 if phase in _IN_COMMIT and "commit" in one else one.get(phase, 0.0) for one in seconds]
        if any(taken):
            axes[1].bar(txids, taken, bottom=below, label=phase)
            below = [low + more for low, more in zip(below, taken, strict=True)]
    axes[1].set_ylabel("seconds")
    if any(below):
        axes[1].legend()
    if count == 3:
        axes[2].plot(txids, to_come, marker=".")
        axes[2].set_ylabel("lag in records")
        axes[2].set_ylim(bottom=0)
    axes[-1].set_xlabel("txid")
    return figure
