"""What a run reports: a snapshot while it runs, a report at the end, the timings of each batch."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from txstream.core.entry_points import VIEWS, load
from txstream.core.failing_batch import FailingBatch, LeftOut, Wait
from txstream.core.placement import Assignment, EdgeTuples, TaskPlace
from txstream.core.tabular import html_table
from txstream.core.transaction import TransactionAttempt, Txid
from txstream.core.wording import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KEPT_TIMINGS = 10_000


@dataclass(slots=True)
class BatchTiming:
    """Where the time of one batch went, in seconds. `read` and `process` are summed over Spark tasks.
    `committed_at` is in seconds since 1970, `dead_letters` how many records it left out, `lag_records` how
    many were there and not taken when it was planned, None where the source did not tell."""

    txid: Txid
    records: int = 0
    plan_seconds: float = 0.0
    persist_seconds: float = 0.0
    search_seconds: float = 0.0
    job_seconds: float = 0.0
    read_seconds: float = 0.0
    process_seconds: float = 0.0
    commit_bolts_seconds: float = 0.0
    merge_seconds: float = 0.0
    commit_seconds: float = 0.0
    advance_seconds: float = 0.0
    width: int = 0
    committed_at: float = 0.0
    dead_letters: int = 0
    lag_records: int | None = None

    def before_commit(self) -> dict[str, float]:
        """Seconds by step before the commit, for the ledger. Steps that did not happen are left out."""
        steps = {
            "plan": self.plan_seconds,
            "persist": self.persist_seconds,
            "search": self.search_seconds,
            "job": self.job_seconds,
            "read": self.read_seconds,
            "process": self.process_seconds,
            "merge": self.merge_seconds,
        }
        return {step: seconds for step, seconds in steps.items() if seconds}

    def in_commit(self) -> dict[str, float]:
        """Seconds by step of the commit and what follows it. Steps that did not happen are left out."""
        steps = {
            "commit_bolts": self.commit_bolts_seconds,
            "commit": self.commit_seconds,
            "advance": self.advance_seconds,
        }
        return {step: seconds for step, seconds in steps.items() if seconds}


class TreeCounts(NamedTuple):
    """Trees of tracked tuples: how many are open now, and how many were acked or failed so far."""

    open: int
    acked: int
    failed: int


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A snapshot of a running topology. `active` has the phase of each open txid; `waiting_for` tells of
    `waits`; `failing` is an open batch that has failed, `left_out` the newest one that left out records;
    `lag_records` is None if it is not known. With tracked tuples there are `trees` and no txids."""

    topology: str
    committed_txid: int
    active: Mapping[Txid, str]
    batches: int
    records: int
    failed_attempts: int
    seconds: float
    waiting_for: str | None
    lag_records: int | None
    trees: TreeCounts | None = None
    dead_letters: int = 0
    waits: tuple[Wait, ...] = ()
    failing: FailingBatch | None = None
    left_out: LeftOut | None = None


def shown_reasons(reasons: Mapping[str, int]) -> list[str]:
    """Why attempts failed, the most frequent reason first: "8 x database or disk is full"."""
    often_first = sorted(reasons.items(), key=lambda item: -item[1])
    return [f"{times:,} x {reason}" for reason, times in often_first]


@dataclass(frozen=True, slots=True)
class RunReport:
    """What one run did. `failed_attempts` counts those that failed themselves: an outage, a
    `BatchFailedError`, an error in a bolt; `failure_reasons` has the number for each reason.
    `replayed_attempts` counts those beyond each txid's first, including later txids that were replayed with a
    failed one. `recovered_batches` counts those that an earlier run left open or half committed. `stopped_by`
    is the operator who stopped the run (`txstream stop`); `dead_letters` is how many records its batches left
    out; `waiting_for` is what it was waiting for when it ended. `timings` are those of its last batches,
    which `plot` draws."""

    topology: str
    uuid: str
    semantics: str
    epoch: int
    first_txid: int | None
    last_txid: int
    batches: int
    records: int
    failed_attempts: int
    replayed_attempts: int
    recovered_batches: int
    seconds: float
    caught_up: bool
    failure_reasons: Mapping[str, int] = field(default_factory=dict)
    stopped_by: str | None = None
    timings: tuple[BatchTiming, ...] = field(default=(), repr=False, compare=False)
    dead_letters: int = 0
    waiting_for: str | None = None

    def __repr__(self) -> str:
        done = f"{counted(self.batches, 'batch', 'batches')}, {counted(self.records, 'record')}"
        return f"<RunReport {self.topology}: txid {self.last_txid} committed, {done} in {self.seconds:.1f} s>"

    def _repr_html_(self) -> str:
        return html_table(
            f"run of {self.topology} ({self.semantics})",
            [
                ["first txid", self.first_txid],
                ["last txid", self.last_txid],
                ["batches", self.batches],
                ["records", self.records],
                ["seconds", round(self.seconds, 1)],
                ["records per second", round(self.records_per_second)],
                ["failed attempts", self.failed_attempts],
                ["replayed attempts", self.replayed_attempts],
                ["recovered batches", self.recovered_batches],
                ["dead letters", self.dead_letters],
                ["caught up", self.caught_up],
                *([["waiting for", self.waiting_for]] if self.waiting_for else []),
            ],
        )

    def in_words(self) -> str:
        """Return the run in one line."""
        if not self.batches and self.failed_attempts:
            return (
                f"{self.topology}: nothing committed, {counted(self.failed_attempts, 'attempt')} failed; "
                f"txid {self.last_txid} stays the last"
            )
        if not self.batches:
            return f"{self.topology}: nothing to do, txid {self.last_txid} stays the last"
        failed = f", {counted(self.failed_attempts, 'attempt')} failed" if self.failed_attempts else ""
        replayed = (
            f", {counted(self.replayed_attempts, 'attempt')} replayed" if self.replayed_attempts else ""
        )
        recovered = (
            f", {counted(self.recovered_batches, 'batch', 'batches')} recovered"
            if self.recovered_batches
            else ""
        )
        return (
            f"{self.topology}: {self._txids()}, {counted(self.records, 'record')} in "
            f"{self.seconds:.1f} s ({self.records_per_second:,.0f} records/s)"
            f"{failed}{replayed}{recovered}"
        )

    def _txids(self) -> str:
        if self.first_txid == self.last_txid:
            return f"txid {self.last_txid}"
        return f"txids {self.first_txid} to {self.last_txid}"

    @property
    def records_per_second(self) -> float:
        return self.records / self.seconds if self.seconds > 0 else 0.0

    def plot(self) -> Figure:
        """Return a figure of records per second, of the seconds of each phase and, if the source told it or
        the run has caught up, of the lag, by txid. Needs matplotlib, which the extra `svg` installs; raises
        ServiceUnavailableError without."""
        plot_batches: Callable[..., Figure] = load(VIEWS, "batches", "view of batches")
        times = self.timings
        lag = [one.lag_records for one in times]
        if self.caught_up and not any(one is not None for one in lag):
            lag, later = [], 0
            for one in reversed(times):
                lag.insert(0, later)
                later += one.records
        return plot_batches(
            [one.txid for one in times],
            [
                (one.txid, one.records / (one.committed_at - before.committed_at))
                for before, one in pairwise(times)
                if one.committed_at > before.committed_at
            ],
            [{**one.before_commit(), **one.in_commit()} for one in times],
            lag,
        )

    def to_document(self) -> dict[str, Any]:
        found = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "timings"}
        return {**found, "records_per_second": round(self.records_per_second, 1)}


@dataclass
class Statistics:
    """The counts of one run. Only the event loop writes them."""

    batches: int = 0
    records: int = 0
    failed_attempts: int = 0
    failure_reasons: Counter[str] = field(default_factory=Counter)
    replayed_attempts: int = 0
    recovered_batches: int = 0
    dead_letters: int = 0
    first_txid: Txid | None = None
    left_out: LeftOut | None = None
    assignment: Assignment | None = None
    timings: deque[BatchTiming] = field(default_factory=lambda: deque(maxlen=_KEPT_TIMINGS))

    def add(self, timing: BatchTiming, *, is_recovered: bool) -> None:
        """Count a committed batch. `is_recovered` says that an earlier run had planned it."""
        timing.committed_at = time.time()
        self.timings.append(timing)
        self.batches += 1
        self.records += timing.records
        self.first_txid = self.first_txid or timing.txid
        self.recovered_batches += is_recovered
        self.dead_letters += timing.dead_letters
        if timing.dead_letters:
            at = datetime.fromtimestamp(timing.committed_at, UTC)
            self.left_out = LeftOut(timing.txid, timing.dead_letters, at)

    def in_commit_of(self, txid: Txid) -> dict[str, float]:
        """Seconds by step of the commit of the batch that was committed last, if it is this one."""
        last = self.timings[-1] if self.timings else None
        return last.in_commit() if last is not None and last.txid == txid else {}

    def saw(
        self,
        attempt: TransactionAttempt,
        places: Sequence[TaskPlace],
        edges: Sequence[EdgeTuples] = (),
        *,
        by_residents: bool = False,
    ) -> None:
        """Remember where the tasks of a committed attempt ran, and what passed between them."""
        self.assignment = Assignment(
            attempt.txid,
            attempt.attempt,
            datetime.now(UTC),
            tuple(places),
            edges=tuple(edges),
            by_residents=by_residents,
        )
