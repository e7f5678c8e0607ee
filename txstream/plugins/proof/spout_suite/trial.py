"""One check over one harness: opens the source, plans and reads as a topology does, and reports what broke.

Invariants:

- An error that the source raises breaks the promise. An error that the harness raises is passed on as it is.
- The source is used on one thread, except by `elsewhere`. The harness is used on the caller's thread.
- Every coordinator and emitter is opened from a source of its own, as in worker processes, unless the check
  passes one. All are closed at the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from txstream.api.schema import parse_schema
from txstream.api.spouts import (
    PartitionCoordinator,
    PartitionedSpout,
    PartitionEmitter,
    Unavailable,
)
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import PartitionUnavailableError, UsageError
from txstream.core.transaction import TransactionAttempt, Txid, attempt_id
from txstream.plugins.proof.call_thread import CallThread
from txstream.plugins.proof.promises import (
    Check,
    ConformanceError,
    NotApplicableError,
    Trial,
    described,
)
from txstream.plugins.proof.spout_suite.harness import Row, Rows, SpoutHarness
from txstream.plugins.proof.spout_suite.rows import first_difference, freeze, project, same, show

MANY = 1_000_000
RECORDS = 5
HUNG_SECONDS = 60.0
_PAUSE_SECONDS = 0.02
_ENDLESS_BATCHES = 6

Metas = Mapping[str, Any]
Reading = dict[str, list[Row]]
Answer = TypeVar("Answer")
Opened = TypeVar("Opened", PartitionCoordinator[Any], PartitionEmitter[Any])


class SpoutConformanceError(ConformanceError):
    """A source breaks a promise that topologies rely on."""


class SpoutCheck(Check["SpoutTrial"]):
    """One promise of a source."""

    __slots__ = ()

    def run(self, create_harness: Callable[[], SpoutHarness]) -> str | None:
        """Run the check over a new harness. Returns why the promise does not apply, None when it is kept.
        Raises SpoutConformanceError when it is broken, and whatever the harness raises."""
        with contextlib.closing(create_harness()) as harness:
            return self.conclude(SpoutTrial(self, harness))


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a walk: the places before it, what it was planned to hold, and what was read."""

    txid: int
    last: Metas
    metas: BatchMetas[Any]
    rows: Reading


class SpoutTrial(Trial):
    """One check of one source: the tools that checks are written with."""

    error = SpoutConformanceError

    def __init__(self, check: SpoutCheck, harness: SpoutHarness) -> None:
        super().__init__(check, harness.deadline_seconds)
        self.harness = harness
        self.log: dict[str, list[Row]] = {}
        self.filled: set[str] = set()  # the partitions that the last rows went to
        self.foreseen = True
        self._opened: list[PartitionCoordinator[Any] | PartitionEmitter[Any]] = []

    # --- the log -----------------------------------------------------------------------------------------

    def fill(self, count: int = RECORDS) -> None:
        """Append `count` records to every partition."""
        self._note(self.harness.append(count))

    def add_partition(self, count: int = RECORDS) -> set[str]:
        """Add a partition. Returns the names that appeared, none if the harness cannot foresee them."""
        rows = self.harness.add_partition(count)
        self._note(rows)
        return set(rows or ())

    def _note(self, rows: Rows | None) -> None:
        if rows is None:
            self.foreseen = False
        self.filled = set(rows or ())
        for partition, added in (rows or {}).items():
            known = self.log.setdefault(partition, [])
            known.extend(added)
            if len({freeze(row) for row in known}) < len(known):
                raise UsageError(
                    f"the harness wrote equal rows to partition {partition!r}, or leaves out what tells them "
                    f"apart; a row that is skipped or comes twice could not be noticed"
                )

    def expected(self, found: Reading) -> Reading:
        """Return what the log holds, as far as `found` can be compared with it."""
        if self.foreseen and not self.harness.endless:
            return self.log
        _, metas = self.next_batch(self.coordinator(), {}, whole=True)
        whole = self.read(self.emitter(), metas.partitions)
        if not self.harness.endless:
            return whole
        return {name: rows[: len(found.get(name, ()))] for name, rows in whole.items()}

    def comparable(self, expected: Reading, found: Reading) -> Reading:
        """Return `found` with only the columns that `expected` has."""
        columns = {name: list(rows[0]) for name, rows in expected.items() if rows}
        schema = self.schema()
        for partition, names in columns.items():
            unknown = [name for name in names if name not in schema.names]
            if unknown:
                raise UsageError(
                    f"the harness says that partition {partition!r} has a column {unknown[0]!r}, but the "
                    f"source's columns are {', '.join(schema.names)}"
                )
        return {
            partition: project(rows, columns[partition]) if partition in columns else rows
            for partition, rows in found.items()
        }

    # --- opening -----------------------------------------------------------------------------------------

    def source(self) -> PartitionedSpout[Any]:
        return self.harness.create()

    def schema(self) -> pa.Schema:
        source = self.source()
        return self.ask("output is read", lambda: parse_schema(source.output))

    def coordinator(self, source: PartitionedSpout[Any] | None = None) -> PartitionCoordinator[Any]:
        source = self.source() if source is None else source
        return self._keep(self.ask("coordinator() is called", source.coordinator, self.harness.context))

    def emitter(self, source: PartitionedSpout[Any] | None = None) -> PartitionEmitter[Any]:
        source = self.source() if source is None else source
        return self._keep(self.ask("emitter() is called", source.emitter, self.harness.context))

    def _keep(self, opened: Opened) -> Opened:
        self._opened.append(opened)
        return opened

    def shut(self, opened: PartitionCoordinator[Any] | PartitionEmitter[Any]) -> None:
        """Close a coordinator or an emitter before the end of the check."""
        self._opened.remove(opened)
        self.ask("close() is called", opened.close)

    def close(self) -> None:
        for opened in self._opened:
            with contextlib.suppress(Exception):  # closing is a promise with a check of its own
                self._thread.call(opened.close, self.deadline_seconds)
        super().close()

    # --- planning ----------------------------------------------------------------------------------------

    def plan(
        self, coordinator: PartitionCoordinator[Any], last: Metas, limit: int = MANY
    ) -> dict[str, Any | Unavailable]:
        """Return one plan, unchanged."""
        return self.ask("a batch is planned", lambda: dict(coordinator.plan(dict(last), limit)))

    def next_batch(
        self, coordinator: PartitionCoordinator[Any], last: Metas, limit: int = MANY, *, whole: bool = False
    ) -> tuple[dict[str, Any | Unavailable], BatchMetas[Any]]:
        """Plan a batch, which there must be because rows wait. Returns the plan and its metas. With `whole`,
        the batch must take from every partition that the last rows went to."""
        wanted = self.filled if whole else set()

        def answer() -> tuple[dict[str, Any | Unavailable], BatchMetas[Any]]:
            plan = self.plan(coordinator, last, limit)
            return plan, BatchMetas.from_plan(last, plan)

        plan, metas = self.until(answer, lambda got: got[1].has_work and wanted <= set(got[1].partitions))
        missing = sorted(wanted - set(metas.partitions))
        if not metas.has_work or missing:
            self.fail(
                f"a plan that takes from {' and '.join(missing) or 'a partition'}, because rows are waiting",
                f"{plan!r:.500} from the places {dict(last)!r:.300}",
            )
        return plan, metas

    def walk(
        self,
        coordinator: PartitionCoordinator[Any] | None = None,
        last: Metas | None = None,
        limit: int = 3,
        *,
        batches: int | None = None,
        wanted: int | None = None,
        txid: int = 1,
    ) -> list[Batch]:
        """Plan and read batches one after another until nothing is new, or until there are `batches` of them.

        Rows just written may take the harness's `settle_seconds` to appear, so this waits that long while
        fewer than `wanted` rows were read. By default `wanted` is the whole log, or 1 when `last` gives
        places or the rows are not foreseen.
        """
        coordinator = coordinator or self.coordinator()
        emitter = self.emitter()
        places = dict(last or {})
        done: list[Batch] = []
        deadline = time.monotonic() + self.harness.settle_seconds
        rows_in_log = sum(map(len, self.log.values()))
        if wanted is None:
            wanted = rows_in_log if last is None and self.foreseen else 1
        # Bounded, so that it ends even for a source that returns the same rows for ever. The caller's check
        # of the rows then finds that.
        most = 4 * rows_in_log + 50 if batches is None else batches
        if self.harness.endless:
            most = min(most, _ENDLESS_BATCHES)
        while len(done) < most:
            metas = BatchMetas.from_plan(places, self.plan(coordinator, places, limit))
            rows = self.read(emitter, metas.partitions, txid + len(done))
            stands_still = not any(rows.values()) and dict(metas.positions()) == places
            if metas.has_work and not stands_still:
                done.append(Batch(txid + len(done), places, metas, rows))
                places = dict(metas.positions())
                continue
            # As in a topology, a plan without work does not move the places.
            read = sum(len(part) for batch in done for part in batch.rows.values())
            if read >= wanted or time.monotonic() >= deadline:
                break
            _pause()
        return done

    # --- reading -----------------------------------------------------------------------------------------

    def read(self, emitter: PartitionEmitter[Any], metas: Metas, txid: int = 1, sequence: int = 1) -> Reading:
        """Return the rows of each planned partition."""
        return {
            partition: self.read_one(emitter, partition, meta, txid, sequence)
            for partition, meta in metas.items()
        }

    def read_one(
        self, emitter: PartitionEmitter[Any], partition: str, meta: Any, txid: int = 1, sequence: int = 1
    ) -> list[Row]:
        return self.ask(
            f"{partition!r} is read, planned as {meta!r:.200}",
            self.read_unguarded,
            emitter,
            partition,
            meta,
            txid,
            sequence,
        )

    def read_unguarded(
        self, emitter: PartitionEmitter[Any], partition: str, meta: Any, txid: int = 1, sequence: int = 1
    ) -> list[Row]:
        """Return the rows of one planned partition. Raises what the emitter raises."""
        batches = emitter.emit(attempt(txid, sequence), partition, meta)
        return [row for batch in batches for row in batch.to_pylist()]

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, what: str, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """Return the source's answer. Any error that it raises breaks the promise, and so does no answer
        within `deadline_seconds` and a minute: outside of an outage it may be slow, but must not hang.

        A PartitionUnavailableError breaks it only once `settle_seconds` have passed: on a busy machine a
        service may be slower than the source waits for it, and a topology would ask again.
        """
        deadline = time.monotonic() + self.harness.settle_seconds
        while True:
            try:
                return self._thread.call(
                    lambda: call(*arguments, **options), self.deadline_seconds + HUNG_SECONDS
                )
            except (ConformanceError, NotApplicableError):
                raise
            except Exception as error:  # noqa: BLE001 - every failure of the source is reported
                if not isinstance(error, PartitionUnavailableError) or time.monotonic() >= deadline:
                    self.fail(f"an answer when {what}", described(error), cause=error)
            _pause()

    def elsewhere(self, what: str, call: Callable[[], Answer]) -> Answer:
        """As `ask`, on another thread."""
        own, self._thread = self._thread, CallThread()
        try:
            return self.ask(what, call)
        finally:
            self._thread.close()
            self._thread = own

    def until(self, call: Callable[[], Answer], condition: Callable[[Answer], object]) -> Answer:
        """Call until an answer meets the condition or `settle_seconds` are over. Returns the last answer."""
        deadline = time.monotonic() + self.harness.settle_seconds
        while True:
            answer = call()
            if condition(answer) or time.monotonic() >= deadline:
                return answer
            _pause()

    # --- failing -----------------------------------------------------------------------------------------

    def require_same(self, expected: Rows, found: Rows, how: str, metas: Metas | None = None) -> None:
        """Fail unless `found` has equal rows in every partition of `expected`. `how` says how it was read."""
        for partition, rows in expected.items():
            again = found.get(partition, [])
            if not same(rows, again):
                self._differ(partition, rows, again, how, (metas or {}).get(partition))

    def require_prefix(self, expected: Rows, found: Rows, how: str) -> None:
        """Fail unless in every partition one reading begins with the other."""
        for partition, rows in found.items():
            before = expected.get(partition, [])
            shorter = min(len(before), len(rows))
            if not same(before[:shorter], rows[:shorter]):
                self._differ(partition, before, rows, how, None)

    def _differ(
        self, partition: str, expected: Sequence[Row], found: Sequence[Row], how: str, meta: Any
    ) -> NoReturn:
        place, one, other = first_difference(expected, found)
        planned = "" if meta is None else f", planned as {meta!r:.200}"
        self.fail(
            f"row {place} of {len(expected)} in partition {partition!r}{planned}: {show(one)}",
            f"{how}: {show(other)} there, {len(found)} rows in all",
        )


def attempt(txid: int = 1, sequence: int = 1) -> TransactionAttempt:
    """Return attempt `sequence` of a batch, under the first leader."""
    return TransactionAttempt(Txid(txid), attempt_id(1, sequence))


def places_after(batches: Sequence[Batch]) -> Metas:
    """Return the places after these batches."""
    return batches[-1].metas.positions() if batches else {}


def joined(batches: Sequence[Batch]) -> Reading:
    """Return the rows of several batches by partition, one batch after the other."""
    rows: Reading = {}
    for batch in batches:
        for partition, part in batch.rows.items():
            rows.setdefault(partition, []).extend(part)
    return rows


def _pause() -> None:
    """Wait before asking again: the log is another process's, so no event announces a change."""
    threading.Event().wait(_PAUSE_SECONDS)
