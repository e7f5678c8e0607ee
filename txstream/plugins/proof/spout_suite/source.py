"""Checks of the source as a whole: its identity, whether it is ready and caught up, and closing it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from txstream.api.spouts import PartitionCoordinator, PartitionedSpout, PartitionEmitter
from txstream.core.batch_metas import BatchMetas, to_json
from txstream.core.errors import TopologyError
from txstream.plugins.proof.promises import NotApplicableError, Promises
from txstream.plugins.proof.spout_suite.process import pickled
from txstream.plugins.proof.spout_suite.trial import SpoutCheck, SpoutTrial, attempt

CHECKS = Promises(SpoutCheck)


def _identity(source: PartitionedSpout[Any]) -> str:
    return to_json(source.identity())


def _shipped(source: PartitionedSpout[Any]) -> PartitionedSpout[Any]:
    unpickled: PartitionedSpout[Any] = pickle.loads(pickled(source))  # noqa: S301 - pickled just now
    return unpickled


@CHECKS.promise(
    "identity-is-stable",
    "`identity()` is JSON, and is always the same for every source over one log.",
    "name what is read (topics, a folder) and nothing that changes from run to run",
)
def identity_is_stable(trial: SpoutTrial) -> None:
    source = trial.source()
    first = trial.ask("identity() is called", _identity, source)
    trial.fill()
    trial.walk(trial.coordinator(source))
    shipped = trial.ask("the source is pickled", _shipped, trial.source())
    for how, other in (
        ("after reading", source),
        ("from a new source", trial.source()),
        ("unpickled", shipped),
    ):
        again = trial.ask("identity() is called", _identity, other)
        if again != first:
            trial.fail(f"{first:.300}", f"{again:.300}, {how}")


@CHECKS.promise(
    "ready-when-rows-wait",
    "`is_ready` is true while there are rows that no batch has taken yet.",
    "no transaction is opened while it is false; when in doubt, return True and let `plan` find nothing new",
)
def ready_when_rows_wait(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()
    ready = trial.until(lambda: trial.ask("is_ready() is called", coordinator.is_ready), bool)
    if ready is not True:
        trial.fail("True, because rows are waiting", repr(ready))


def _targets(trial: SpoutTrial, coordinator: Any) -> Mapping[str, Any]:
    def ask() -> Mapping[str, Any]:
        try:
            targets: Mapping[str, Any] = coordinator.targets()
        except TopologyError as error:
            raise NotApplicableError(f"the source has no end: {error}") from error
        return targets

    return trial.ask("targets() is called", ask)


@CHECKS.promise(
    "any-thread-may-ask",
    "A coordinator works on any thread, one call at a time.",
    "the topology's thread opens and closes it, and another thread calls it: use no client that belongs to "
    "the thread that opened it",
)
def any_thread_may_ask(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()

    def plan() -> BatchMetas[Any]:
        return BatchMetas.from_plan({}, coordinator.plan({}, 3))

    def ask() -> BatchMetas[Any]:
        trial.elsewhere("is_ready() is called on another thread", coordinator.is_ready)
        return trial.elsewhere("a batch is planned on another thread", plan)

    metas = trial.until(ask, lambda found: found.has_work)
    if not metas.has_work:
        trial.fail("a plan with work, because rows are waiting", "nothing, on another thread")
    trial.elsewhere(
        "unreadable() is called on another thread", lambda: coordinator.unreadable(metas.partitions)
    )
    trial.shut(coordinator)


@CHECKS.promise(
    "caught-up-in-the-end",
    "`reached` is false until all rows before the targets are read, and true from then on, whatever rows "
    "come later.",
    "compare the places with the given targets, not with the current end of the log",
)
def caught_up_in_the_end(trial: SpoutTrial) -> None:
    if trial.harness.endless:
        raise NotApplicableError("the source is endless")
    early = trial.coordinator()
    if not BatchMetas.from_plan({}, trial.plan(early, {})).has_work:
        nothing = _targets(trial, early)
        if trial.ask("reached() is called", early.reached, {}, nothing) is not True:
            trial.fail("reached is True while the log is empty", f"it is not; targets {nothing!r:.300}")
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    if not batches:
        trial.fail("batches, because rows are waiting", "none")
    targets = _targets(trial, coordinator)

    def require(expected: bool, last: Mapping[str, Any], when: str) -> None:
        found = trial.ask("reached() is called", coordinator.reached, dict(last), targets)
        if found is not expected:
            trial.fail(
                f"reached is {expected} {when}", f"{found!r}; places {last!r:.300}, targets {targets!r:.300}"
            )

    require(False, {}, "before the first batch")
    for batch in batches:
        if any(batch.rows.values()):
            require(False, batch.last, f"before batch {batch.txid}, which holds rows")
    last = batches[-1].metas.positions()
    require(True, last, "after the last batch")
    trial.fill()
    trial.next_batch(coordinator, last, whole=True)
    require(True, last, "after the last batch, although more rows came after the targets were taken")


@CHECKS.promise(
    "lag-goes-to-zero",
    "Before the first batch, `lag_records` is at least the number of waiting rows; no batch makes it "
    "larger, and it ends at 0. If a plan sets `untaken_records`, that is the lag behind it.",
    "add up what lies between the places and the targets, 0 where a place is past its target; return None "
    "if it cannot be told",
)
def lag_goes_to_zero(trial: SpoutTrial) -> None:
    if trial.harness.endless:
        raise NotApplicableError("the source is endless")
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    if not batches:
        trial.fail("batches, because rows are waiting", "none")
    targets = _targets(trial, coordinator)
    before: int | None = None
    for last in (*(batch.last for batch in batches), batches[-1].metas.positions()):
        lag = trial.ask("lag_records() is called", coordinator.lag_records, dict(last), targets)
        if lag is None:
            raise NotApplicableError("the source does not know its lag (lag_records is None)")
        least = sum(map(len, trial.log.values())) if before is None else 0
        most = lag if before is None else before
        if isinstance(lag, bool) or not isinstance(lag, int) or not least <= lag <= most:
            trial.fail(
                f"a whole number, at least {least}" + ("" if before is None else f" and at most {most}"),
                f"{lag!r} at the places {last!r:.300}",
            )
        before = lag
    another = trial.coordinator()
    places = dict(BatchMetas.from_plan({}, trial.plan(another, {}, 3)).positions())
    lag = trial.ask("lag_records() is called", another.lag_records, places, targets)
    untaken = another.untaken_records
    if untaken not in (None, lag):
        trial.fail(f"untaken_records is {lag}, or None", f"{untaken!r} behind {places!r:.300}")
    if before != 0:
        trial.fail("a lag of 0 when everything is read", repr(before))


@CHECKS.promise(
    "closing-is-private",
    "Closing a coordinator or an emitter leaves the others working.",
    "share no connection between them, or count its users",
)
def closing_is_private(trial: SpoutTrial) -> None:
    trial.fill()
    source = trial.source()
    coordinators = [trial.coordinator(source), trial.coordinator(source)]
    _, metas = trial.next_batch(coordinators[0], {}, whole=True)
    emitters = [trial.emitter(source), trial.emitter(source), trial.emitter()]
    first = [trial.read(emitter, metas.partitions) for emitter in emitters]
    trial.shut(emitters[0])
    trial.shut(coordinators[0])
    for emitter, rows in zip(emitters[1:], first[1:], strict=True):
        again = trial.read(emitter, metas.partitions)
        trial.require_same(rows, again, "read after another emitter was closed", metas.partitions)
    trial.next_batch(coordinators[1], {}, whole=True)
    late = trial.read(trial.emitter(source), metas.partitions)
    trial.require_same(first[0], late, "read by an emitter opened after another was closed", metas.partitions)


@CHECKS.promise(
    "closes",
    "`close` works after use, without use, in the middle of a read, and twice.",
    "it is called after failures too: it must not rely on anything having been opened",
)
def closes(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator, emitter, reading = trial.coordinator(), trial.emitter(), trial.emitter()
    _, metas = trial.next_batch(coordinator, {}, whole=True)
    trial.read(emitter, metas.partitions)
    partition, meta = next(iter(metas.partitions.items()))

    def begin() -> Any:
        rows = iter(reading.emit(attempt(), partition, meta))
        return rows, next(rows, None)

    _begun = trial.ask(f"{partition!r} is read", begin)  # kept, because dropping the iterator ends the read
    opened: dict[str, PartitionCoordinator[Any] | PartitionEmitter[Any]] = {
        "a coordinator that was used": coordinator,
        "a coordinator that was not used": trial.coordinator(),
        "an emitter that was used": emitter,
        "an emitter that was not used": trial.emitter(),
        "an emitter in the middle of a read": reading,
    }
    for what, closing in opened.items():
        trial.ask(f"{what} is closed", closing.close)
        trial.ask(f"{what} is closed a second time", closing.close)
