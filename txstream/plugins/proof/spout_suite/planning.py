"""Checks of planning: each plan follows from the stored places alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from txstream.api.spouts import PartitionedSpout
from txstream.core.batch_metas import BatchMetas, MetaCodec, to_json
from txstream.core.transaction import Txid
from txstream.core.wording import a
from txstream.plugins.proof.promises import NotApplicableError, Promises
from txstream.plugins.proof.spout_suite.trial import (
    MANY,
    Batch,
    Metas,
    Reading,
    SpoutCheck,
    SpoutTrial,
    joined,
    places_after,
)

CHECKS = Promises(SpoutCheck)

_MEANWHILE = 40
"""How many records come between the death of a driver and the next one: more than any other check writes."""

# --- one plan ----------------------------------------------------------------------------------------------


def _stored(trial: SpoutTrial, source: PartitionedSpout[Any], metas: BatchMetas[Any]) -> tuple[str, Metas]:
    """Return the metas as they are stored, and the places read back from that."""
    codec = trial.ask("meta_type is read", lambda: MetaCodec(source.meta_type))
    stored = trial.ask("metas are stored as JSON", lambda: to_json(codec.encode(metas)))
    again = trial.ask("metas are read from JSON", lambda: codec.decode(json.loads(stored), "the store"))
    return stored, again.positions()


@CHECKS.promise(
    "metas-survive-json",
    "A plan maps partition names to `Unavailable` or to instances of `meta_type`, a frozen dataclass; a "
    "meta that is stored as JSON reads back equal.",
    "use only field types that JSON has: numbers, strings, booleans, None, lists, objects",
)
def metas_survive_json(trial: SpoutTrial) -> None:
    trial.fill()
    source = trial.source()
    for batch in trial.walk(trial.coordinator(source), batches=2):
        places = batch.metas.positions()
        for partition, meta in places.items():
            if not isinstance(partition, str):
                trial.fail("partition names that are strings", f"{partition!r}")
            if not isinstance(meta, source.meta_type):
                trial.fail(
                    f"{a(source.meta_type.__name__)} or Unavailable", f"{meta!r:.200} for {partition!r}"
                )
        stored, again = _stored(trial, source, batch.metas)
        for partition, meta in places.items():
            if again.get(partition) != meta:
                trial.fail(
                    f"{meta!r:.300} for {partition!r}, as planned",
                    f"{again.get(partition)!r:.300}, read from {stored:.300}",
                )


@CHECKS.promise(
    "limit-respected",
    "A batch holds at most `limit` records, all partitions together.",
    "subtract what each partition gets from what is left for the others",
)
def limit_respected(trial: SpoutTrial) -> None:
    harness = trial.harness
    if not harness.limits:
        raise NotApplicableError("the source cannot keep to a limit (limits is False)")
    trial.fill()
    for limit in (1, 3, 7):
        most = max(limit, harness.unit_records)
        for batch in trial.walk(limit=limit):
            rows = {name: len(part) for name, part in batch.rows.items()}
            records = {name: getattr(meta, "records", None) for name, meta in batch.metas.partitions.items()}
            for what, counts in (("rows", rows), ("records", records)):
                total = sum(count for count in counts.values() if isinstance(count, int))
                if total > most:
                    allowed = "" if most == limit else f" (or one unit of {most}, which cannot be divided)"
                    trial.fail(
                        f"at most {limit} {what}{allowed} in batch {batch.txid}", f"{total}: {counts!r:.300}"
                    )


@CHECKS.promise(
    "a-small-limit-goes-on",
    "With a limit of 1, batches continue until everything is read.",
    "round a partition's share up to the smallest piece that can be read, never down to nothing",
)
def a_small_limit_goes_on(trial: SpoutTrial) -> None:
    if trial.harness.endless:
        raise NotApplicableError("the source is endless")
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator, limit=1)
    last = places_after(batches)
    rest = trial.walk(coordinator, last, MANY, batches=1, wanted=0)
    if rest:
        trial.fail(
            "batches until nothing is left",
            f"none after {len(batches)} batches; a larger limit takes {rest[0].metas.partitions!r:.300}",
        )


@CHECKS.promise(
    "last-is-not-changed",
    "`plan` does not change the places that it is given.",
    "other batches need these places: build a new mapping",
)
def last_is_not_changed(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator, emitter = trial.coordinator(), trial.emitter()
    last: Metas = {}
    for _ in range(3):
        given = dict(last)
        plan = trial.ask("a batch is planned", coordinator.plan, given, 3)
        if given != last:
            trial.fail(f"the places {last!r:.300}, as they were given", f"{given!r:.300}")
        metas = BatchMetas.from_plan(last, plan)
        trial.read(emitter, metas.partitions)
        last = metas.positions()


# --- one plan after the other ------------------------------------------------------------------------------


@CHECKS.promise(
    "plans-from-last-alone",
    "From the same places, a plan begins at the same rows, whatever was planned before.",
    "after a failed attempt an earlier batch is planned again: remember nothing between plans",
)
def plans_from_last_alone(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator, batches=3)
    for number in reversed(range(len(batches))):
        batch, onward = batches[number], joined(batches[number:])
        metas = BatchMetas.from_plan(batch.last, trial.plan(coordinator, batch.last, 3))
        how = f"planned again from the places before batch {batch.txid}, {dict(batch.last)!r:.200}"
        if not metas.has_work:
            trial.fail(f"what batch {batch.txid} held, {batch.metas.partitions!r:.300}", f"nothing, {how}")
        trial.require_prefix(onward, trial.read(trial.emitter(), metas.partitions, batch.txid), how)


@CHECKS.promise(
    "plans-ahead",
    "Batches can be planned before the earlier ones are read, and can be read in any order.",
    "several batches are in flight at once: plan from the places in `last`, not from what has been read",
)
def plans_ahead(trial: SpoutTrial) -> None:
    trial.fill()
    ahead: list[BatchMetas[Any]] = []
    coordinator = trial.coordinator()
    last: Metas = {}
    for _ in range(3):
        metas = BatchMetas.from_plan(last, trial.plan(coordinator, last, 2))
        if metas.has_work:
            ahead.append(metas)
            last = metas.positions()
    backwards = [
        Batch(number, {}, metas, trial.read(trial.emitter(), metas.partitions, number))
        for number, metas in reversed(list(enumerate(ahead, 1)))
    ]
    in_turn = trial.walk(limit=2, batches=3)
    if len(ahead) < len(in_turn):
        trial.fail(
            f"{len(in_turn)} batches, as when each is read before the next is planned",
            f"{len(ahead)} batches when none is read in between",
        )
    trial.require_prefix(joined(in_turn), joined(backwards[::-1]), "planned ahead and read backwards")


@CHECKS.promise(
    "resumes",
    "A new source resumes from stored places exactly where the old one stopped.",
    "put everything that defines the place into the meta; a restart loses the coordinator's memory",
)
def resumes(trial: SpoutTrial) -> None:
    trial.fill()
    source = trial.source()
    coordinator = trial.coordinator(source)
    begun = trial.walk(coordinator, batches=2)
    if not begun:
        trial.fail("batches, because rows are waiting", "none")
    stored, places = _stored(trial, source, begun[-1].metas)
    onward = joined(trial.walk(coordinator, begun[-1].metas.positions()))
    trial.shut(coordinator)
    resumed = joined(trial.walk(trial.coordinator(), places))
    how = f"read by a new source from the stored places {stored:.300}"
    if trial.harness.endless:
        trial.require_prefix(onward, resumed, how)
    else:
        trial.require_same(onward, resumed, how)
        trial.require_same(resumed, onward, f"read by the old source, to compare with rows {how}")


@CHECKS.promise(
    "begins-where-it-began",
    "A new source begins where the old one did, even if that had committed nothing but its first places.",
    "answer a place that the log cannot tell again, such as its end, with an empty meta whose "
    "`is_first_place` is true: it is committed before anything is read; a restart loses what is in memory",
)
def begins_where_it_began(trial: SpoutTrial) -> None:
    if trial.harness.endless:
        raise NotApplicableError("the source is endless")
    trial.fill()
    source = trial.source()
    coordinator = trial.coordinator(source)
    metas = BatchMetas.from_plan({}, trial.plan(coordinator, {}))
    # All that is committed if the driver dies before its first records are.
    stored, places = _stored(trial, source, metas) if metas.begun else ("no places", {})
    first = Batch(1, {}, metas, trial.read(trial.emitter(), metas.partitions))
    trial.fill(_MEANWHILE)
    wanted = _MEANWHILE * len(trial.filled) or 1
    onward = _sorted([first, *trial.walk(coordinator, metas.positions(), MANY, wanted=wanted, txid=2)])
    trial.shut(coordinator)
    again = _sorted(trial.walk(trial.coordinator(), places, MANY, wanted=wanted))
    how = f"read by a new source from {stored:.300}"
    trial.require_same(onward, again, how)
    trial.require_same(again, onward, f"read by the old source, to compare with rows {how}")


def _sorted(batches: Sequence[Batch]) -> Reading:
    """Return the rows by partition, alike however they were cut into batches."""
    return {partition: sorted(rows, key=repr) for partition, rows in joined(batches).items()}


@CHECKS.promise(
    "no-busy-batches",
    "When nothing is new, a plan has nothing to read.",
    "leave the partition out of the plan, or give its meta an `is_empty` property that is true; otherwise "
    "batches without rows never end",
)
def no_busy_batches(trial: SpoutTrial) -> None:
    if trial.harness.endless:
        raise NotApplicableError("the source is endless")
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    last = places_after(batches)
    for _ in range(3):
        metas = BatchMetas.from_plan(last, trial.plan(coordinator, last))
        if metas.has_work:
            trial.fail(
                "no partition with anything to read, because everything was read",
                f"{metas.partitions!r:.300}",
            )


@CHECKS.promise(
    "cleanup-keeps-what-is-open",
    "`cleanup_before(txid)` drops nothing that batch `txid` or a later one needs.",
    "a batch that is not committed may be read again, and later batches are planned from its places",
)
def cleanup_keeps_what_is_open(trial: SpoutTrial) -> None:
    trial.fill()
    trial.fill()
    undisturbed = joined(trial.walk())
    coordinator = trial.coordinator()
    begun = trial.walk(coordinator, batches=2)
    if len(begun) < 2:
        trial.fail("several batches, because rows are waiting", f"{len(begun)}")
    open_batch = begun[1]
    for _ in range(2):
        trial.ask("cleanup_before(2) is called", coordinator.cleanup_before, Txid(open_batch.txid))
    planned = open_batch.metas.partitions
    again = trial.read(trial.emitter(), planned, open_batch.txid)
    trial.require_same(open_batch.rows, again, "batch 2, read again after cleanup_before(2)", planned)
    onward = trial.walk(coordinator, open_batch.metas.positions(), txid=3)
    if not onward:
        trial.fail("batches after batch 2, because rows are waiting", "none, after cleanup_before(2)")
    found = joined([*begun, *onward])
    trial.require_prefix(undisturbed, found, "read in batches, with cleanup_before(2) after the second")
