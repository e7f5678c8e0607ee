"""Partitions that cannot be read: a new batch goes without them, a replay of a stored plan waits for them.
Any replay waits for a service that the source needs besides, such as a schema registry."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from txstream.api.spouts import PartitionCoordinator
from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import EmitBatch
from txstream.core.errors import BatchFailedError, ServiceUnavailableError
from txstream.core.transaction import Txid, about
from txstream.core.waiting import Waiting
from txstream.core.wording import in_order
from txstream.engine.loop.leadership_watch import if_leading
from txstream.engine.loop.open_batches import Batches
from txstream.engine.loop.workers import Lane
from txstream.zookeeper import ProgressStore

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.5
_ANY = "any partition"
_NAMED_PARTITIONS = 8


class UnreadablePartitions:
    """`left_out` has the partitions that the last plan could not read, with the reasons, and `left_out_since`
    the moment when each was first left out, which `tell` gets when it changes. `recheck` has stored plans,
    recovered ones or ones that have failed, that must not begin before all partitions can be read."""

    def __init__(
        self,
        batches: Batches,
        spout: PartitionCoordinator[Any],
        store: ProgressStore,
        waiting: Waiting,
        recheck: set[Txid],
        tell: Callable[[Mapping[str, datetime]], None],
    ) -> None:
        self._tell = tell
        self.left_out: Mapping[str, str] = {}
        self.left_out_since: Mapping[str, datetime] = {}
        self.recheck = recheck
        self._batches = batches
        self._spout = spout
        self._store = store
        self._waiting = waiting

    def leave_out(self, metas: BatchMetas[Any]) -> None:
        """Note what a plan goes without. Log a partition when it is first left out and when it is back, not
        in every batch. Without a partition that can be read, the run waits. Called on the thread that plans.
        """
        unavailable = metas.unavailable
        gone, back = unavailable.keys() - self.left_out.keys(), self.left_out.keys() - unavailable.keys()
        now = datetime.now(UTC)
        self.left_out = unavailable
        self.left_out_since = {name: self.left_out_since.get(name, now) for name in unavailable}
        if gone or back:
            self._tell(self.left_out_since)
        if gone:
            reasons = "; ".join(sorted({unavailable[partition] for partition in gone}))
            they = "it" if len(gone) == 1 else "they"
            log.warning("batches go on without %s until %s can be read: %s", _listed(gone), they, reasons)
        if back:
            log.warning("batches have %s again", _listed(back))
        if unavailable and not metas.has_work and metas.carried.keys() <= unavailable.keys():
            reasons = "; ".join(sorted({*unavailable.values()}))
            self._waiting.begin(_ANY, _listed(unavailable), reasons, "no other can be read")
        else:
            self._waiting.end(_ANY)

    def wait_for(self, emit: EmitBatch[Any], start: Callable[[EmitBatch[Any]], None]) -> None:
        """Start an attempt once the services that it needs answer and, for a stored plan, all its partitions
        can be read. The attempt's time begins only then."""
        batches, key = self._batches, f"txid {emit.attempt.txid}"
        if not batches.is_active(emit.attempt):
            self._waiting.drop(key)
            return

        def ask() -> _Missing | None:
            for service, reason in self._spout.services_away().items():
                return _Missing(service, reason, f"{key} needs it")
            unreadable = self._spout.unreadable(emit.metas.partitions) if emit.stored else {}
            if not unreadable:
                return None
            reasons = sorted({one.reason for one in unreadable.values()})
            return _Missing(_listed(unreadable), "; ".join(reasons), f"{key} must hold the same tuples")

        def again(missing: _Missing) -> None:
            if self._waiting.is_waiting(key):
                wait(missing)
            else:
                if_leading(batches, self._store, lambda: wait(missing))

        def wait(missing: _Missing) -> None:
            if batches.is_active(emit.attempt):
                with about(emit.attempt):
                    self._waiting.begin(key, missing.what, missing.reason, missing.because)
            batches.workers.after(CHECK_SECONDS, lambda: self.wait_for(emit, start))

        def done(missing: _Missing | None) -> None:
            if missing is not None:
                again(missing)
            else:
                self._waiting.end(key)
                start(emit)

        def failed(error: BaseException) -> None:
            if isinstance(error, (ServiceUnavailableError, BatchFailedError)):
                again(_Missing(f"the partitions of {key}", error, f"{key} must hold the same tuples"))
            else:
                batches.fail_run(error)

        batches.workers.submit(Lane.PLAN, ask, done, failed, attempt=emit.attempt)


class _Missing(NamedTuple):
    """What an attempt waits for."""

    what: str
    reason: object
    because: str


def _listed(partitions: Collection[str]) -> str:
    """Return "partitions lines/1, 3", cut if there are many. A topic is named once: its name may be long."""
    named = sorted(partitions, key=in_order)
    topics = [name.rpartition("/")[0] for name in named]
    shown = [
        name.removeprefix(f"{topic}/") if topic and topic == before else name
        for name, topic, before in zip(named, topics, ["", *topics], strict=False)
    ]
    more = f" and {len(named) - _NAMED_PARTITIONS:,} more" if len(named) > _NAMED_PARTITIONS else ""
    return f"partition{'s' if len(named) > 1 else ''} {', '.join(shown[:_NAMED_PARTITIONS])}{more}"
