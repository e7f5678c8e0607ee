"""Checks of what a source does when a partition cannot be read for a while, or never again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from txstream.api.spouts import PartitionCoordinator, PartitionEmitter, Unavailable
from txstream.core.batch_metas import BatchMetas, is_empty
from txstream.core.errors import DataLostError, PartitionUnavailableError
from txstream.plugins.proof.promises import NotApplicableError, Promises, described
from txstream.plugins.proof.spout_suite.harness import Row
from txstream.plugins.proof.spout_suite.rows import same, show
from txstream.plugins.proof.spout_suite.trial import (
    Batch,
    Metas,
    SpoutCheck,
    SpoutTrial,
    joined,
    places_after,
)

CHECKS = Promises(SpoutCheck)


def _first_and_rest(metas: Iterable[str]) -> tuple[str, list[str]]:
    """Return the partition that the check damages, and the others."""
    first, *rest = sorted(metas)
    return first, rest


Ranges = Mapping[str, tuple[Any, list[Row]]]


def _ranges(batches: Iterable[Batch]) -> Ranges:
    """Return the last range that was read of each partition, with its rows."""
    return {
        name: (meta, batch.rows[name]) for batch in batches for name, meta in batch.metas.partitions.items()
    }


def _readable(trial: SpoutTrial, ranges: Ranges) -> set[str]:
    """Return the partitions whose ranges can be read in full now."""
    found = set()
    for name, (meta, rows) in ranges.items():
        read = partial(trial.read_unguarded, trial.emitter(), name, meta)
        outcome = trial.outcome(f"{name!r} is read in an outage", read)
        if not isinstance(outcome, Exception) and same(outcome, rows):
            found.add(name)
    return found


def _plan_in_outage(
    trial: SpoutTrial, coordinator: PartitionCoordinator[Any], last: Metas, others: Ranges
) -> dict[str, Any] | PartitionUnavailableError:
    """Return a plan, or the error if none of the other partitions can be read either."""

    def plan() -> tuple[dict[str, Any] | Exception, bool]:
        answer = trial.outcome(
            "a batch is planned in an outage", lambda: dict(coordinator.plan(dict(last), 1000))
        )
        # Look only once per plan: a source that was slow for a moment may read them the next time.
        return answer, isinstance(answer, PartitionUnavailableError) and not _readable(trial, others)

    answer, all_away = trial.until(
        plan, lambda found: found[1] or not isinstance(found[0], PartitionUnavailableError)
    )
    if isinstance(answer, PartitionUnavailableError) and all_away:
        return answer
    if isinstance(answer, Exception):
        trial.fail("a plan in an outage", described(answer), cause=answer)
    return answer


def _takes_from(plan: Mapping[str, Any], partition: str) -> bool:
    meta = plan.get(partition)
    return meta is not None and not isinstance(meta, Unavailable) and not is_empty(meta)


@CHECKS.promise(
    "plans-around-an-outage",
    "Within two seconds, a plan says which partition cannot be read and takes from the others.",
    "return Unavailable(reason) for the partition; ask all partitions under one deadline",
)
def plans_around_an_outage(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    last = places_after(batches)
    trial.fill()
    hidden, others = _first_and_rest(trial.filled or last)
    readable = {name: found for name, found in _ranges(batches).items() if name != hidden}
    trial.harness.hide(hidden)

    def is_answered(plan: Mapping[str, Any] | PartitionUnavailableError) -> bool:
        return not isinstance(plan, Mapping) or (
            isinstance(plan.get(hidden), Unavailable) and all(_takes_from(plan, name) for name in others)
        )

    plan = trial.until(lambda: _plan_in_outage(trial, coordinator, last, readable), is_answered)
    if isinstance(plan, PartitionUnavailableError):
        return
    if not isinstance(plan.get(hidden), Unavailable):
        found = f"{plan[hidden]!r:.200}" if hidden in plan else "the plan leaves the partition out"
        trial.fail(f"Unavailable(reason) for partition {hidden!r}, which cannot be read", found)
    if not isinstance(plan[hidden].reason, str) or not plan[hidden].reason:
        trial.fail("a reason, as a non-empty string", f"{plan[hidden]!r}")
    for other in others:
        if not _takes_from(plan, other):
            trial.fail(f"a plan that takes from partition {other!r}, which can be read", f"{plan!r:.500}")


@CHECKS.promise(
    "an-outage-keeps-the-place",
    "After an outage, a partition continues where it was: none of its rows is skipped or comes twice.",
    "return Unavailable and nothing else for a partition that cannot be read; txstream keeps its place",
)
def an_outage_keeps_the_place(trial: SpoutTrial) -> None:
    trial.fill()
    # What the log holds, read without an outage.
    undisturbed = joined(trial.walk(limit=2))
    coordinator, emitter = trial.coordinator(), trial.emitter()
    begun = trial.walk(coordinator, limit=2, batches=2)
    if not begun:
        trial.fail("batches, because rows are waiting", "none")
    hidden = min(begun[0].metas.partitions)
    last = dict(begun[-1].metas.positions())
    others = {name: found for name, found in _ranges(begun).items() if name != hidden}
    read: list[Row] = []
    trial.harness.hide(hidden)
    for _ in range(2):
        plan = _plan_in_outage(trial, coordinator, last, others)
        if not isinstance(plan, PartitionUnavailableError):
            metas = BatchMetas.from_plan(last, plan)
            read += trial.read(emitter, metas.partitions).get(hidden, [])
            last = dict(metas.positions()) if metas.has_work else last
    trial.harness.show(hidden)
    before = [row for batch in begun for row in batch.rows.get(hidden, [])]
    expected = undisturbed.get(hidden, [])

    def more() -> bool:
        nonlocal last
        for batch in trial.walk(coordinator, last, wanted=0):
            last = dict(batch.metas.positions())
            read.extend(batch.rows.get(hidden, []))
        return len(before) + len(read) >= len(expected)

    trial.until(more, bool)
    found = (before + read)[: len(expected)] if trial.harness.endless else before + read
    trial.require_same({hidden: expected}, {hidden: found}, "read before and after an outage")


@CHECKS.promise(
    "a-read-in-an-outage-raises",
    "Reading a planned range that is unavailable raises PartitionUnavailableError; it never ends with fewer "
    "rows.",
    "raise it after `fetch_timeout_seconds` without progress; the topology takes any other error for a bug "
    "and ends after a few attempts",
)
def a_read_in_an_outage_raises(trial: SpoutTrial) -> None:
    planned = _planned_then(trial, trial.harness.hide)
    outcome = _read_until(trial, trial.emitter(), planned, PartitionUnavailableError)
    if not isinstance(outcome, PartitionUnavailableError):
        _not_told(trial, PartitionUnavailableError, planned, outcome)


@CHECKS.promise(
    "reads-again-after-an-outage",
    "After an outage, an emitter that was used during it reads the planned range in full.",
    "reopen a failed connection; do not remember a failure for longer than a moment",
)
def reads_again_after_an_outage(trial: SpoutTrial) -> None:
    planned = _planned_then(trial, trial.harness.hide)
    partition, meta, rows = planned
    emitter = trial.emitter()
    _read_until(trial, emitter, planned)  # how it must fail is the promise before this one
    trial.harness.show(partition)
    outcome = _read_until(trial, emitter, planned, list)
    if isinstance(outcome, Exception):
        trial.fail(f"the {len(rows)} rows of partition {partition!r}", described(outcome), cause=outcome)
    trial.require_same({partition: rows}, {partition: outcome}, "read after the outage", {partition: meta})


@CHECKS.promise(
    "unreadable-names-what-cannot-be-read",
    "`unreadable` names the planned partitions that cannot be read now, and no others.",
    "a transactional replay waits for the partitions that it names; without `unreadable`, "
    "every replay in an outage fails an attempt",
)
def unreadable_names_what_cannot_be_read(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()
    if type(coordinator).unreadable is PartitionCoordinator.unreadable:
        raise NotApplicableError(
            "the source has no unreadable(), so a transactional replay in an outage fails and is tried again"
        )
    _, metas = trial.next_batch(coordinator, {}, whole=True)
    rows = trial.read(trial.emitter(), metas.partitions)
    ranges = {name: (meta, rows[name]) for name, meta in metas.partitions.items()}
    hidden, _ = _first_and_rest(ranges)

    def named() -> set[str]:
        answer = trial.outcome(
            "unreadable() is called", lambda: dict(coordinator.unreadable(metas.partitions))
        )
        if isinstance(answer, PartitionUnavailableError):
            return set(metas.partitions)  # a topology takes this error to mean all of them
        if isinstance(answer, Exception):
            trial.fail("a mapping from partitions to Unavailable", described(answer), cause=answer)
        return set(answer)

    def require(away: Callable[[], set[str]], when: str, *, some: bool = False) -> None:
        # Ask both again until they agree: a readable partition may have been too slow once.
        found, expected = trial.until(
            lambda: (named(), away()), lambda both: both[0] == both[1] and bool(both[1]) >= some
        )
        if some and not expected:
            raise NotApplicableError(f"partition {hidden!r} could still be read in full")
        if found != expected:
            trial.fail(f"{sorted(expected)} {when}", f"{sorted(found)}")

    require(set, "before the outage")
    trial.harness.hide(hidden)
    require(lambda: set(ranges) - _readable(trial, ranges), "while these cannot be read", some=True)
    trial.harness.show(hidden)
    require(set, "after the outage")


@CHECKS.promise(
    "lost-rows-are-told",
    "Reading a planned range that no longer exists raises DataLostError; it never ends with fewer rows and "
    "is never taken for an outage.",
    "before the first row, compare the range with the current beginning and end of the log",
)
def lost_rows_are_told(trial: SpoutTrial) -> None:
    planned = _planned_then(trial, trial.harness.lose)
    outcome = _read_until(trial, trial.emitter(), planned, DataLostError)
    if not isinstance(outcome, DataLostError):
        _not_told(trial, DataLostError, planned, outcome)


@CHECKS.promise(
    "a-lost-place-is-told",
    "If rows are lost before they are planned, the source raises DataLostError and does not silently go on "
    "after the gap.",
    "compare the place in `last` with the current beginning of the log",
)
def a_lost_place_is_told(trial: SpoutTrial) -> None:
    trial.fill()
    trial.fill()
    coordinator = trial.coordinator()
    begun = trial.walk(coordinator, limit=2, batches=1)
    if not begun:
        trial.fail("a batch, because rows are waiting", "none")
    last = begun[0].metas.positions()
    (partition, *_) = begun[0].metas.partitions
    trial.harness.lose(partition)
    trial.fill(2)

    def go_on() -> Any:
        try:
            plan = coordinator.plan(dict(last), 1000)
            meta = plan.get(partition)
            if _takes_from(plan, partition):
                return meta, trial.read_unguarded(trial.emitter(), partition, meta)
            return meta
        except DataLostError as error:
            return error

    outcome = trial.until(
        lambda: trial.outcome("a batch is planned after rows were lost", go_on),
        lambda answer: isinstance(answer, DataLostError),
    )
    if not isinstance(outcome, DataLostError):
        found = described(outcome) if isinstance(outcome, Exception) else f"{outcome!r:.500}"
        trial.fail(
            f"DataLostError for partition {partition!r}, whose place is {last[partition]!r:.200}", found
        )


Planned = tuple[str, Any, list[Row]]
"""A partition, a planned range of it, and the rows of that range."""


def _planned_then(trial: SpoutTrial, damage: Callable[[str], None]) -> Planned:
    """Plan a range and read its rows, then damage its partition."""
    trial.fill()
    _, metas = trial.next_batch(trial.coordinator(), {}, whole=True)
    partition, _ = _first_and_rest(metas.partitions)
    meta = metas.partitions[partition]
    rows = trial.read_one(trial.emitter(), partition, meta)
    damage(partition)
    return partition, meta, rows


def _read_until(
    trial: SpoutTrial, emitter: PartitionEmitter[Any], planned: Planned, kind: type = object
) -> list[Row] | Exception:
    """Read a planned range until the rows or the error are of this kind, or `settle_seconds` have passed.
    Returns the last outcome."""
    partition, meta, _ = planned
    read = partial(trial.read_unguarded, emitter, partition, meta)
    return trial.until(
        lambda: trial.outcome(f"{partition!r} is read", read), lambda answer: isinstance(answer, kind)
    )


def _not_told(
    trial: SpoutTrial, kind: type[Exception], planned: Planned, outcome: list[Row] | Exception
) -> None:
    """Fail because the outcome is not the error. If it is all the rows, the check does not apply: the harness
    did not prevent the read."""
    partition, meta, rows = planned
    expected = f"{kind.__name__} from partition {partition!r}"
    if isinstance(outcome, Exception):
        trial.fail(expected, described(outcome), cause=outcome)
    if same(rows, outcome):
        raise NotApplicableError(f"partition {partition!r} could still be read in full")
    last = show(outcome[-1]) if outcome else "none"
    trial.fail(
        f"{expected} for the planned range {meta!r:.200}, which had {len(rows)} rows",
        f"{len(outcome)} rows and no error; the last row is {last}",
    )
