"""Checks that all batches together hold every row of the log, once and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from txstream.plugins.proof.promises import Promises
from txstream.plugins.proof.spout_suite.harness import Row
from txstream.plugins.proof.spout_suite.rows import first_difference, freeze, same, show
from txstream.plugins.proof.spout_suite.trial import (
    MANY,
    Batch,
    Reading,
    SpoutCheck,
    SpoutTrial,
    joined,
    places_after,
)

CHECKS = Promises(SpoutCheck)


def _everything(trial: SpoutTrial) -> tuple[list[Batch], Reading, Reading]:
    """Read the log in small batches while more rows arrive. Returns batches, expected rows and found rows."""
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    trial.fill(3)
    read = sum(map(len, joined(batches).values()))
    wanted = sum(map(len, trial.log.values())) - read
    batches += trial.walk(coordinator, places_after(batches), wanted=wanted, txid=len(batches) + 1)
    found = joined(batches)
    expected = trial.expected(found)
    return batches, expected, trial.comparable(expected, found)


def _count(rows: Sequence[Row]) -> Counter[Hashable]:
    return Counter(freeze(row) for row in rows)


def _missing(expected: Reading, found: Reading) -> Iterator[tuple[str, int, Row]]:
    """Yield the partition, place and row of each row that was written and not read."""
    for partition, rows in expected.items():
        missing = _count(rows) - _count(found.get(partition, ()))
        yield from ((partition, place, row) for place, row in enumerate(rows) if missing[freeze(row)])


def _batches_with(batches: Sequence[Batch], partition: str, place: int) -> str:
    """Describe the batch that holds the row at this place, counted over what was read of the partition."""
    for batch in batches:
        rows = len(batch.rows.get(partition, ()))
        if place < rows:
            return f"batch {batch.txid}, planned as {batch.metas.partitions[partition]!r:.200}"
        place -= rows
    return "no batch"


@CHECKS.promise(
    "nothing-skipped",
    "Every row of the log is in some batch.",
    "begin each range where the meta in `last` ends, not after it, and emit it to its end",
)
def nothing_skipped(trial: SpoutTrial) -> None:
    batches, expected, found = _everything(trial)
    for partition, place, row in _missing(expected, found):
        rows, read = expected[partition], found.get(partition, [])
        before = [number for number, other in enumerate(read) if place and other == rows[place - 1]]
        where = _batches_with(batches, partition, before[-1]) if before else ""
        after = f"; the row before it is in {where}" if before else ""
        trial.fail(
            f"row {place} of partition {partition!r}: {show(row)}",
            f"it is in none of the {len(batches)} batches; they have {len(read)} rows of this partition, "
            f"the log has {len(rows)}{after}",
        )


@CHECKS.promise(
    "nothing-twice",
    "No row of the log is in two batches, or twice in one.",
    "begin each range where the meta in `last` ends, not before it",
)
def nothing_twice(trial: SpoutTrial) -> None:
    batches, expected, found = _everything(trial)
    for partition, rows in found.items():
        written = _count(expected.get(partition, ()))
        surplus = _count(rows) - written
        for place, row in enumerate(rows):
            if written[freeze(row)] and surplus[freeze(row)]:
                again = next(n for n, other in enumerate(rows) if n > place and freeze(other) == freeze(row))
                trial.fail(
                    f"{show(row)} of partition {partition!r} once",
                    f"it is in {_batches_with(batches, partition, place)}, and again in "
                    f"{_batches_with(batches, partition, again)}",
                )


@CHECKS.promise(
    "nothing-invented",
    "Every emitted row was written to its partition.",
    "look for headers, control records, rows of another partition, and values that were changed on the way",
)
def nothing_invented(trial: SpoutTrial) -> None:
    batches, expected, found = _everything(trial)
    for partition, rows in found.items():
        written = _count(expected.get(partition, ()))
        for place, row in enumerate(rows):
            if not written[freeze(row)]:
                trial.fail(
                    f"rows of partition {partition!r} as they were written",
                    f"{show(row)} in {_batches_with(batches, partition, place)}",
                )


@CHECKS.promise(
    "in-order",
    "The rows of a partition come in the order of the log, within a batch and from batch to batch.",
    "emit each range from its start to its end",
)
def in_order(trial: SpoutTrial) -> None:
    batches, expected, found = _everything(trial)
    for partition, rows in found.items():
        read = list({freeze(row): row for row in rows}.values())
        known = {freeze(row) for row in read}
        wanted = [row for row in expected.get(partition, ()) if freeze(row) in known]
        written = {freeze(row) for row in wanted}
        read = [row for row in read if freeze(row) in written]
        if not same(wanted, read):
            place, one, other = first_difference(wanted, read)
            at = next(n for n, row in enumerate(rows) if other is not None and freeze(row) == freeze(other))
            trial.fail(
                f"row {place} of partition {partition!r}: {show(one)}",
                f"{show(other)} in {_batches_with(batches, partition, at)}",
            )


@CHECKS.promise(
    "new-partitions-from-their-beginning",
    "A partition that appears later is read from its beginning.",
    "a partition that is not in `last` has no place yet, so all of it is new",
)
def new_partitions_from_their_beginning(trial: SpoutTrial) -> None:
    trial.fill()
    coordinator = trial.coordinator()
    batches = trial.walk(coordinator)
    known = set(trial.log) | {name for batch in batches for name in batch.metas.partitions}
    new = trial.add_partition()
    wanted = sum(len(trial.log[name]) for name in new) or 1

    def more() -> Reading:
        batches.extend(trial.walk(coordinator, places_after(batches), MANY, wanted=0))
        return {name: rows for name, rows in joined(batches).items() if name not in known}

    found = trial.until(more, lambda rows: sum(map(len, rows.values())) >= wanted)
    names = new or set(found)
    if not names:
        trial.fail("a plan that takes from the new partition", "none")
    expected = {name: part for name, part in trial.expected(found).items() if name in names}
    found = trial.comparable(expected, found)
    for name, place, row in _missing(expected, found):
        trial.fail(
            f"row {place} of the new partition {name!r}: {show(row)}",
            f"it is not among the {len(found.get(name, ()))} rows that were read",
        )
