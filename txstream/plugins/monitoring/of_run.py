"""The metrics of one run. As a watcher it counts on the loop's thread, which takes microseconds of a batch;
everything else is looked up when somebody scrapes.

Invariants. Counters only grow. What is not known has no sample. Every label has a bounded number of values:
components and tables are the topology's, reasons are names of classes, and past `_MOST_REASONS` of them, and
past `most_partitions` partitions of a topic, there is one sample for all.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from prometheus_client.core import Metric

from txstream.api.topology import BATCHES, Topology
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import TxstreamError
from txstream.core.failing_batch import Wait
from txstream.core.transaction import TransactionAttempt
from txstream.engine.commit.committer import Prepared, state_committers
from txstream.engine.loop.event_loop import EventLoop
from txstream.engine.loop.open_batches import Watcher
from txstream.engine.loop.report import BatchTiming
from txstream.inspect.health import Health, Word, health, outages, searches
from txstream.inspect.watermarks import watermarks_in
from txstream.plugins.monitoring.catalog import Families
from txstream.plugins.monitoring.source_lag import SourceLag
from txstream.plugins.tracked.turns import Turns

if TYPE_CHECKING:
    from txstream.engine.start.driver import Driver

DEFAULT_MOST_PARTITIONS = 100
_MOST_REASONS = 100
_OTHER = ("other", "other")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SOURCE_WAITS = ("partition", "the partitions", "the source", "the end of the log")


class Histogram:
    """Counts of seconds by bucket, and their sum."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[str, float]]:
        names = [*map(str, BUCKETS), "+Inf"]
        return list(zip(names, itertools.accumulate(self._counts), strict=True))


def phases(timing: BatchTiming) -> Mapping[str, float]:
    """Return the seconds of each step of a batch. `read` and `process` are summed over Spark tasks."""
    return {**timing.before_commit(), **timing.in_commit()}


class RunMetrics(Watcher):
    """See the module. Before a driver is attached, only `txstream_leader` has a sample."""

    def __init__(
        self,
        topology: Topology,
        *,
        most_partitions: int = DEFAULT_MOST_PARTITIONS,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._driver: Driver[Any] | None = None
        self._topology = topology
        self._most_partitions = most_partitions
        self._now = now
        self._outcomes = Counter[str](committed=0, failed=0, dropped=0)
        self._failures = Counter[tuple[str, str]]()
        self._failed_attempts = set[TransactionAttempt]()
        self._phases: dict[str, Histogram] = {}
        self._records = self._fenced = 0
        self._rows = Counter[str]()
        self._letters = Counter[str]()
        self._late = Counter[str]()
        self._tables: dict[str, str] = {}
        if topology.tier == BATCHES:
            self._tables = {name: bolt.state.table for name, bolt in state_committers(topology).items()}
            self._rows.update(dict.fromkeys(self._tables.values(), 0))
        self._last_commit: float | None = None
        self._lag: SourceLag | None = None
        self._counting, self._scraping = threading.Lock(), threading.Lock()

    # --- on the loop's thread -----------------------------------------------------------------------

    def attached(self, driver: Any) -> None:
        self._driver = driver

    def failed(self, attempt: TransactionAttempt, error: BaseException) -> None:
        known = isinstance(error, TxstreamError)
        component = getattr(error, "component", None) if known else None
        reason = (getattr(error, "kind", None) if known else None) or type(error).__name__
        with self._counting:
            key = (component or "", reason)
            if key not in self._failures and len(self._failures) >= _MOST_REASONS:
                key = _OTHER
            self._failures[key] += 1
            self._outcomes["failed"] += 1
            self._failed_attempts.add(attempt)

    def dropped(self, attempt: TransactionAttempt) -> None:
        with self._counting:
            if attempt in self._failed_attempts:
                self._failed_attempts.discard(attempt)
            else:
                self._outcomes["dropped"] += 1

    def wrote(self, attempt: TransactionAttempt, deltas: Prepared, letters: Sequence[DeadLetter]) -> None:
        with self._counting:
            for component, delta in deltas.items():
                self._rows[self._tables.get(component, component)] += delta.table.num_rows
            for letter in letters:
                self._letters[letter.component] += 1
                if letter.is_late:
                    self._late[self._tables.get(letter.component, letter.component)] += 1

    def advanced(self, timing: BatchTiming) -> None:
        with self._counting:
            self._outcomes["committed"] += 1
            self._records += timing.records
            self._last_commit = self._now()
            for phase, seconds in phases(timing).items():
                self._phases.setdefault(phase, Histogram()).observe(seconds)

    def fenced(self, attempt: TransactionAttempt) -> None:
        with self._counting:
            self._fenced += 1

    # --- a scrape -----------------------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        """Return the metrics as they are now. prometheus-client calls it, from any thread."""
        with self._scraping:
            families = Families()
            self._collect(families)
            return families.metrics()

    def close(self) -> None:
        """Close what was opened to ask the source."""
        with self._scraping:
            if self._lag is not None:
                self._lag.close()

    def _collect(self, families: Families) -> None:
        def add(name: str, value: float, *labels: str) -> None:
            families.add(self._topology.id, f"txstream_{name}", value, *labels)

        driver = self._driver
        loop = None if driver is None else driver.loop
        add("leader", 0 if loop is None else 1)
        if driver is None or loop is None:
            return
        if driver.taken is not None:
            add("epoch", driver.taken.epoch)
        now = datetime.now(UTC)
        waits = driver.waiting.waits
        progress = driver.progress(0.0)
        state = health(waits, progress.failing, progress.left_out)
        waited = add_health(add, state, waits)
        if isinstance(loop, EventLoop):
            away = [seconds for what, seconds in waited if what.startswith(SOURCE_WAITS)]
            away += [(now - since).total_seconds() for since in loop.unreadable.left_out_since.values()]
            add("source_unavailable_seconds", max(away, default=0))
            self._collect_batches(families, loop, add)
        elif isinstance(loop, Turns):
            _collect_trees(loop, add)

    def _collect_batches(self, families: Families, loop: EventLoop, add: Callable[..., None]) -> None:
        add("last_committed_txid", loop.coordinator.current - 1)
        add("open_batches", len(loop.open_batches()))
        with self._counting:
            for outcome, count in self._outcomes.items():
                add("batches_total", count, outcome)
            for (component, reason), count in self._failures.items():
                add("attempts_failed_total", count, component, reason)
            for table, count in self._rows.items():
                add("state_rows_written_total", count, table)
            for component, count in self._letters.items():
                add("dead_letters_total", count, component)
            for table, count in self._late.items():
                add("late_records_total", count, table)
            for phase, histogram in self._phases.items():
                families.add_histogram(
                    self._topology.id,
                    "txstream_batch_phase_seconds",
                    histogram.buckets(),
                    histogram.sum,
                    phase,
                )
            add("records_total", self._records)
            add("fenced_total", self._fenced)
        committed_at = self._last_commit or self._committed_before()
        if committed_at is not None:
            add("last_commit_timestamp_seconds", committed_at)
        with contextlib.suppress(KeyError):  # as below
            add_watermarks(add, loop.coordinator.committed_metas().horizons, self._most_partitions)
        self._collect_lag(loop, add)

    def _collect_lag(self, loop: EventLoop, add: Callable[..., None]) -> None:
        assert self._driver is not None
        context = self._driver.tier.context
        if self._lag is None and context is not None:
            self._lag = SourceLag(self._topology.spout.source, context, self._most_partitions)
        lag = None
        if self._lag is not None:
            with contextlib.suppress(KeyError):  # the loop's thread has just dropped that batch's metas
                lag = self._lag.ask(loop.coordinator.committed_metas().positions())
        if lag is None:
            return
        for (topic, partition), records in lag.records.items():
            add("source_lag_records", records, topic, partition)
        for (topic, partition), records in lag.held_back.items():
            add("source_held_back_records", records, topic, partition)
        if lag.seconds is not None:
            add("source_lag_seconds", lag.seconds)

    def _committed_before(self) -> float | None:
        """Return when the last batch before this run was committed, from the ledgers; None without one."""
        assert self._driver is not None
        times = []
        for target in self._driver.targets:
            with contextlib.suppress(TxstreamError):
                rows = target.database.batches(self._topology.id, limit=2)
                times += [row.committed_at.timestamp() for row in rows if row.committed_at is not None]
        before = max(times, default=None)
        if before is not None and self._last_commit is None:
            self._last_commit = before
        return before


def add_health(add: Callable[..., None], state: Health, waits: Sequence[Wait]) -> list[tuple[str, float]]:
    """Add how a topology is, and for how long it waits. Return what it waits for with the seconds."""
    now = datetime.now(UTC)
    for word in Word:
        add("health", int(word is state.word), str(word))
    away = [(wait.what, (now - wait.since).total_seconds()) for wait in outages(waits)]
    add("waiting_seconds", max((seconds for _, seconds in away), default=0))
    looked = [(now - wait.since).total_seconds() for wait in searches(waits)]
    add("search_seconds", max(looked, default=0))
    return away


def add_watermarks(add: Callable[..., None], horizons: Mapping[str, Any], most: int) -> None:
    """Add up to which time windows are closed, and up to so many partitions that hold that back."""
    for table, one in watermarks_in(horizons).items():
        if one.at is not None:
            add("watermark_timestamp_seconds", one.at.timestamp(), table)
        for partition in one.held_by[:most]:
            add("watermark_held_back", 1, table, partition)


def _collect_trees(turns: Turns, add: Callable[..., None]) -> None:
    loop = turns.loop
    pending, acked, failed, timed_out = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    records, oldest = 0, 0.0
    for spout in list(loop.spouts):
        name = spout.spec.id
        ages = spout.ages()
        pending[name] += len(ages)
        oldest = max(oldest, max(ages, default=0.0))
        acked[name] += spout.acked
        failed[name] += spout.failed
        timed_out[name] += spout.timed_out
        records += spout.emitted
    figures = (pending, "acker_pending"), (acked, "acker_acked_total"), (failed, "acker_failed_total")
    for counts, name in (*figures, (timed_out, "acker_timed_out_total")):
        for component, count in counts.items():
            add(name, count, component)
    add("acker_oldest_seconds", oldest)
    add("records_total", records)
    add("batches_total", loop.counts.micro_batches, "committed")
    add("batches_total", loop.counts.failed_micro_batches, "failed")
