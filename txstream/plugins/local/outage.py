"""An outage in the middle of a batch: a word count holds a batch until partitions go away, then fails it.

For demonstrations and tests on one machine. The driver, the tasks and the script that plays the outage share
a folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txstream import (
    CountBolt,
    SqlState,
    SqlStateBolt,
    Sum,
    Topology,
    TopologyContext,
    TransactionalTopologyBuilder,
)
from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.coordinator import BatchPhase
from txstream.core.errors import BatchFailedError
from txstream.core.fault_points import At
from txstream.examples.word_count import SPOUTS, SplitLine
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator

_HOLD_SECONDS = 25.0  # less than a message timeout
_POLL_SECONDS = 0.05
_SECOND = At(BatchPhase.PROCESSING, 2)


@dataclass(frozen=True)
class Outage:
    """An outage that fails a batch. Files in `folder` say how far it has got."""

    folder: Path
    at: At = _SECOND

    @property
    def is_due(self) -> bool:
        """Whether the first attempt of the batch is being processed."""
        return (self.folder / "due").exists()

    @property
    def has_begun(self) -> bool:
        return (self.folder / "begun").exists()

    @property
    def is_on(self) -> bool:
        return self.has_begun and not (self.folder / "over").exists()

    def begin(self) -> None:
        """Say that the partitions are away. The batch that is held fails now."""
        (self.folder / "begun").touch()

    def end(self) -> None:
        (self.folder / "over").touch()

    def fail(self) -> None:
        """Block until the outage has begun, then raise. Called in a task."""
        (self.folder / "due").touch()
        deadline = time.monotonic() + _HOLD_SECONDS
        while not self.has_begun and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        raise BatchFailedError(f"txid {self.at.txid} was to fail in the outage")


class SplitInOutage(SplitLine):
    """Splits lines. The first attempt of the outage's txid fails."""

    def __init__(self, outage: Outage) -> None:
        self.outage = outage

    def prepare(self, context: TopologyContext) -> None:
        super().prepare(context)
        if At(BatchPhase.PROCESSING, context.attempt.txid) == self.outage.at and not self.outage.has_begun:
            self.outage.fail()


class OutageSource(KafkaSource):
    """A topic that reports some partitions as unreadable during the outage, though their brokers are up.

    Nothing reads those partitions meanwhile: with one batch at a time, every plan is made either before or
    after the outage begins.
    """

    def __init__(self, topic: str, outage: Outage, partitions: Iterable[str], **options: Any) -> None:
        super().__init__(topic, **options)
        self.outage = outage
        self.partitions = frozenset(partitions)

    def away(self, planned: Iterable[str]) -> dict[str, Unavailable]:
        """Return those of these partitions that cannot be read now."""
        here = sorted(self.partitions.intersection(planned)) if self.outage.is_on else []
        return dict.fromkeys(here, Unavailable("the outage was injected"))

    def coordinator(self, context: SpoutContext) -> KafkaPartitionCoordinator:
        return _Coordinator(self, context)


class _Coordinator(KafkaPartitionCoordinator):
    def __init__(self, source: OutageSource, context: SpoutContext) -> None:
        super().__init__(source, context)
        self._outage_source = source

    def plan(self, last: Mapping[str, KafkaRange], limit: int) -> Mapping[str, KafkaRange | Unavailable]:
        return {**super().plan(last, limit), **self._outage_source.away(self._outage_source.partitions)}

    def unreadable(self, metas: Mapping[str, KafkaRange]) -> Mapping[str, Unavailable]:
        return {**super().unreadable(metas), **self._outage_source.away(metas)}


def outage_topology(
    topology_id: str,
    topic: str,
    table: str,
    semantics: str,
    outage: Outage,
    max_records_per_partition: int,
    hidden: Iterable[str] = (),
) -> Topology:
    """Build a word count that runs one batch at a time. `hidden` are partitions that cannot be read in the
    outage, for an outage in which no broker goes away."""
    source = OutageSource(topic, outage, hidden, max_records_per_partition=max_records_per_partition)
    builder = TransactionalTopologyBuilder(
        topology_id, "lines", SPOUTS[semantics](source), 2, max_spout_pending=1
    )
    builder.set_bolt("split", SplitInOutage(outage), 2).local_or_shuffle_grouping("lines")
    builder.set_bolt("count", CountBolt("word"), 2).fields_grouping("split", "word")
    state = SqlState(table, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Sum("n")), 2).fields_grouping("count", "word")
    return builder.build()
