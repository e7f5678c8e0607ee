"""The tracked tuples' part of a driver. They store no progress: what was open when a driver dies comes again
from its source. ZooKeeper has the election, so that one driver at a time runs a topology, its identity, what
operators ask, and notes of how the run goes."""

from __future__ import annotations

from dataclasses import dataclass

from txstream.api.spouts import SpoutContext
from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import TopologyError
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.engine.batch.runner_contract import FedRunner
from txstream.engine.loop.report import RunProgress, TreeCounts
from txstream.engine.start.driver import Ready, Services, Tier
from txstream.engine.start.takeover import Takeover
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.plugins.tracked.loop import TrackedLoop
from txstream.plugins.tracked.report import TrackedReport
from txstream.plugins.tracked.turns import Turns


@dataclass(frozen=True)
class NoMeta:
    """The meta of a topology without partitions: no positions are stored."""


class SteeredTurns:
    """A `Steered` without txids: whether spouts are asked is looked up, not told."""

    last_open = None
    current = FIRST_TXID

    def pause(self) -> None:
        """See `Steered`."""

    resume = pause

    def drain(self, end: Txid) -> None:
        """Never called: there are no txids."""


class TrackedTier(Tier[Turns]):
    """See the module."""

    open_work = "the open trees have ended"
    topology: TrackedTopology

    @property
    def codec(self) -> MetaCodec[NoMeta]:
        return MetaCodec(NoMeta)

    def open(self, services: Services, context: SpoutContext) -> None:
        """Open nothing yet: a queue's client takes messages out of it."""

    def prepare(self, ready: Ready) -> Turns:
        runner = ready.runner
        if not isinstance(runner, FedRunner):
            raise TopologyError(f"{type(runner).__name__} cannot run tracked tuples")
        runner.slots = ready.taken.steering.slots.changed  # they decide how many spout tasks there are
        loop = TrackedLoop(
            self.topology,
            ready.plan,
            runner,
            ready.plan.context,
            ready.workers.now,
            ready.taken.epoch,
            warm_up_seconds=self.warm_up_seconds,
        )
        return Turns(loop, ready, until_caught_up=self.until_caught_up)

    def steered(self, coordinator: object) -> SteeredTurns:
        """Return what has no txids; `Turns` asks the steering before each turn."""
        return SteeredTurns()

    def report(self, taken: Takeover, seconds: float) -> TrackedReport:
        loop = self.running.loop
        counts, spouts = loop.counts, loop.spouts
        return TrackedReport(
            topology=self.topology.id,
            uuid=taken.identity.uuid,
            semantics=self.topology.kind,
            epoch=taken.epoch,
            first_txid=None,
            last_txid=0,
            batches=counts.micro_batches,
            records=sum(spout.emitted for spout in spouts),
            failed_attempts=counts.failed_micro_batches,
            replayed_attempts=0,
            recovered_batches=0,
            seconds=round(seconds, 3),
            caught_up=self.running.caught_up,
            failure_reasons=dict(counts.reasons),
            stopped_by=taken.steering.stopped_by,
            acked=sum(spout.acked for spout in spouts),
            failed=sum(spout.failed for spout in spouts),
            timed_out=sum(spout.timed_out for spout in spouts),
            open_trees=loop.open_trees,
        )

    def progress(self, seconds: float) -> RunProgress:
        turns = self.running
        loop = turns.loop
        ended = sum(spout.failed + spout.timed_out for spout in loop.spouts)
        return RunProgress(
            topology=self.topology.id,
            committed_txid=0,
            active={},
            batches=loop.counts.micro_batches,
            records=sum(spout.emitted for spout in loop.spouts),
            failed_attempts=loop.counts.failed_micro_batches,
            seconds=seconds,
            waiting_for=turns.waiting_for,
            lag_records=None,
            trees=TreeCounts(loop.open_trees, sum(spout.acked for spout in loop.spouts), ended),
        )

    def how_far(self) -> str:
        return "at once; what was open comes again from its source"
