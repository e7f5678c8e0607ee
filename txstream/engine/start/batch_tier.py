"""The batches' part of a driver: their source, their loop, and what a run of them reports."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from txstream.api.spouts import PartitionCoordinator, SpoutContext
from txstream.core.batch_metas import MetaCodec
from txstream.core.entry_points import EXPLAINERS, every
from txstream.core.errors import CorruptStateError, TxstreamError
from txstream.core.fault_points import PointListener, nobody_listens
from txstream.core.transaction import Epoch, Txid
from txstream.core.wording import counted
from txstream.engine.commit.committer import BatchCommitter
from txstream.engine.commit.horizon_keepers import HorizonKeepers
from txstream.engine.letters.retries import Retries
from txstream.engine.letters.rows import LetterReader
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.log_end import LogEnd
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.parts import LoopParts
from txstream.engine.loop.read_before import ReadBefore
from txstream.engine.loop.report import BatchTiming, RunProgress, RunReport, shown_reasons
from txstream.engine.start.driver import Ready, Services, Tier
from txstream.engine.start.takeover import Takeover
from txstream.zookeeper import ENDED, ProgressStore

log = logging.getLogger(__name__)

_SHOWN_REASONS = 3


@dataclass(eq=False)
class BatchTier(Tier[EventLoop]):
    """See the module. While there is little to read, a batch gathers for `gather_seconds` at most.
    `committer` is the class that commits."""

    gather_seconds: float = field(default=0.0, kw_only=True)
    listener: PointListener = field(default=nobody_listens, kw_only=True)
    watcher: Watcher | None = field(default=None, kw_only=True)
    committer: type[BatchCommitter] = field(default=BatchCommitter, kw_only=True)
    _source: PartitionCoordinator[Any] | None = field(init=False, default=None)
    _lag: int | None = field(init=False, default=None)

    @property
    def codec(self) -> MetaCodec[Any]:
        return MetaCodec(self.topology.spout.source.meta_type)

    def open(self, services: Services, context: SpoutContext) -> None:
        self._source = services.open_source(context)

    def prepare(self, ready: Ready) -> EventLoop:
        assert self._source is not None
        taken, targets, source = ready.taken, ready.targets, self.topology.spout.source
        log_end = LogEnd(self._source, ready.waiting)
        if self.until_caught_up:
            log_end.ask()
        progress = taken.resume.progress
        states = [target.of(self.topology, taken.identity.uuid) for target in targets]
        committer = self.committer(
            self.topology,
            taken.identity.uuid,
            targets,
            wait_for=ready.waiting.until,
            committed_by={Txid(progress.current - 1): progress.committed_by},
            ended_before=_ended_before(ready.store),
            waits=ready.waiting.take_ended,
            keepers=HorizonKeepers(self.topology, states, progress.current - 1),
        )
        parts = LoopParts(
            topology=self.topology,
            coordinator=taken.coordinator,
            spout=self._source,
            store=ready.store,
            runner=ready.runner,
            committer=committer,
            workers=ready.workers,
            waiting=ready.waiting,
            steering=taken.steering,
            log_end=log_end,
            letters=LetterReader(source, ready.plan.context),
            retries=Retries(states, taken.steering.retries),
            read_before=ReadBefore(states),
            until_txid=self.until_txid,
            warm_up_seconds=self.warm_up_seconds,
            gather_seconds=self.gather_seconds,
            listener=self.listener,
            watcher=self.watcher or Watcher(),
        )
        return EventLoop(parts)

    def explain(self, error: TxstreamError) -> None:
        """Have installed packages add to a batch's error what they find out. Nothing of it is committed."""
        if self.running.failures.ended_by is not None and error is self.running.failure:
            for explain in every(EXPLAINERS, "explainer"):
                explain(self, error)

    def report(self, taken: Takeover, seconds: float) -> RunReport:
        topology, loop = self.topology, self.running
        statistics = loop.statistics
        return RunReport(
            topology=topology.id,
            uuid=taken.identity.uuid,
            semantics=str(topology.semantics),
            epoch=taken.epoch,
            first_txid=statistics.first_txid,
            last_txid=taken.coordinator.current - 1,
            batches=statistics.batches,
            records=statistics.records,
            failed_attempts=statistics.failed_attempts,
            replayed_attempts=statistics.replayed_attempts,
            recovered_batches=statistics.recovered_batches,
            seconds=round(seconds, 3),
            caught_up=loop.caught_up,
            failure_reasons=dict(statistics.failure_reasons),
            stopped_by=taken.steering.stopped_by,
            timings=tuple(statistics.timings),
            dead_letters=statistics.dead_letters,
            waiting_for=loop.waiting_for,
        )

    def progress(self, seconds: float) -> RunProgress:
        loop = self.running
        statistics = loop.statistics
        return RunProgress(
            topology=self.topology.id,
            committed_txid=loop.coordinator.current - 1,
            active=loop.open_batches(),
            batches=statistics.batches,
            records=statistics.records,
            failed_attempts=statistics.failed_attempts,
            seconds=seconds,
            waiting_for=loop.waiting_for,
            lag_records=self._lag_records(loop),
            dead_letters=statistics.dead_letters,
            waits=loop.waiting.waits,
            failing=loop.failures.failing,
            left_out=statistics.left_out,
        )

    def _lag_records(self, loop: EventLoop) -> int | None:
        """The number of records between what is committed and the goal, if it is known."""
        goal = loop.log_end.targets
        if goal is not None:
            # KeyError: the loop's thread has just dropped that batch. The previous figure will do.
            with contextlib.suppress(KeyError):
                self._lag = loop.spout.lag_records(loop.coordinator.committed_metas().positions(), goal)
        return self._lag

    def how_far(self) -> str:
        if self.loop is None:
            return "before its first batch"
        statistics, last = self.loop.statistics, self.loop.coordinator.current - 1
        committed = statistics.first_txid is not None
        far = f"after txid {last}" if committed else "before it committed a batch"
        reasons = "; ".join(shown_reasons(statistics.failure_reasons)[:_SHOWN_REASONS])
        failed = (
            f"; {counted(statistics.failed_attempts, 'attempt')} had failed: {reasons}" if reasons else ""
        )
        return f"at once, {far}; the next run recovers what is open{failed}"

    @property
    def timings(self) -> list[BatchTiming]:
        return [] if self.loop is None else list(self.loop.statistics.timings)

    @property
    def story(self) -> Sequence[str]:
        return () if self.loop is None else self.loop.coordinator.story.lines()


def _ended_before(store: ProgressStore) -> Epoch | None:
    """Return the epoch of the last driver that ended well, if one has noted that. It is only shown."""
    try:
        return store.notes.get(ENDED)
    except CorruptStateError as error:
        log.warning("%s", error)
        return None
