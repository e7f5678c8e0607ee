"""What runs beside a leader's batches, from before the first one until its databases are closed.

The kernel prunes ledgers there; what else does comes in by an entry point.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from txstream.api.spouts import SpoutContext
from txstream.api.topology import Topology
from txstream.core.entry_points import COMPANIONS, every
from txstream.core.transaction import Txid
from txstream.state import StateBackend
from txstream.zookeeper import ProgressStore


@dataclass(frozen=True, slots=True)
class Leading:
    """What a companion is given of a run. `current` returns the txid that commits next."""

    topology: Topology
    context: SpoutContext
    databases: Sequence[StateBackend]
    store: ProgressStore
    current: Callable[[], Txid]


class Companion(Protocol):
    """Works in a thread of its own, on the driver. What fails there delays no batch and ends no run."""

    def start(self) -> None:
        """Begin. Called once, after the takeover; returns at once."""

    def stop(self, timeout_seconds: float) -> None:
        """End. Called once, after the last batch, or when the run has failed. Waits for `timeout_seconds` at
        most for what does not answer; databases are closed after that."""


def installed_companions(leading: Leading) -> list[Companion]:
    """Return those that installed packages bring for this run. Raises what `load` does."""
    makers: list[Any] = every(COMPANIONS, "companion")
    return [companion for make in makers if (companion := make(leading)) is not None]
