"""The tracked tuples' part of a driver. They store no progress: what was open when a driver dies comes again
from its source. ZooKeeper has the election, so that one driver at a time runs a topology, its identity, what
operators ask, and notes of how the run goes."""

from __future__ import annotations

from dataclasses import dataclass

from txstream.api.errors import TopologyError
from txstream.api.spouts import SpoutContext
from txstream.api.tracked_builder import TrackedTopology
from txstream.batch_metas import MetaCodec
from txstream.engine.batch.runner_contract import FedRunner
from txstream.engine.report import RunProgress, TreeCounts
from txstream.engine.start.driver import Ready, Services, Tier
from txstream.engine.start.takeover import Takeover
from txstream.engine.tracked.loop import TrackedLoop
from txstream.engine.tracked.report import TrackedReport, report_of
from txstream.engine.tracked.turns import Turns


@dataclass(frozen=True)
class NoMeta:
    """The meta of a topology without partitions: no positions are stored."""


class TrackedTier(Tier[Turns]):
    """See the module. `until_caught_up` ends the run once the spouts have nothing more."""

    topology: TrackedTopology
    codec = MetaCodec(NoMeta)

    def __init__(
        self, topology: TrackedTopology, *, until_caught_up: bool = False, warm_up_seconds: float = 0.0
    ) -> None:
        super().__init__(topology)
        self._until_caught_up = until_caught_up
        self._warm_up_seconds = warm_up_seconds

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
            warm_up_seconds=self._warm_up_seconds,
        )
        return Turns(loop, ready, until_caught_up=self._until_caught_up)

    def report(self, taken: Takeover, seconds: float) -> TrackedReport:
        turns = self._running
        return report_of(
            turns.loop,
            taken.identity.uuid,
            taken.epoch,
            seconds,
            caught_up=turns.caught_up,
            stopped_by=taken.steering.stopped_by,
        )

    def progress(self, seconds: float) -> RunProgress:
        turns = self._running
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

    @property
    def _running(self) -> Turns:
        assert self.loop is not None
        return self.loop
