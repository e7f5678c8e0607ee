"""`start` and `run`: from a built topology to a running one. The steps of a start, in order, are in
`Driver.start` (`start/driver.py`)."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from txstream.api.topology import BATCHES, Topology
from txstream.core.entry_points import SETTLERS, TIERS, WATCHERS, every, load
from txstream.core.errors import BoltError, CorruptStateError, TxstreamError, UsageError
from txstream.core.fault_points import CrashError, PointListener, nobody_listens
from txstream.core.tabular import html_table
from txstream.core.waiting import RunAbortedError, WaitStoppedError
from txstream.core.wording import counted
from txstream.engine.letters.retry_policy import WARM_UP_SECONDS
from txstream.engine.loop.open_batches import Watcher, Watchers
from txstream.engine.loop.planning import GATHER_SECONDS
from txstream.engine.loop.report import RunProgress, RunReport
from txstream.engine.notebook import in_notebook, show_live
from txstream.engine.start.batch_tier import BatchTier
from txstream.engine.start.driver import Driver, RunnerFactory, Tier
from txstream.engine.start.run_services import RunServices
from txstream.settings import Settings
from txstream.zookeeper.paths import with_remedy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAUGHT_UP = "caught-up"

_DISPLAY_SECONDS = 5.0  # the longest that a notebook's display may keep `wait`


class RunningTopology:
    """A topology that runs in a thread of this process. A context manager: leaving it stops the topology.

    `stop` ends it between two batches; `wait` blocks until it has ended and raises the error that ended it.
    """

    def __init__(
        self,
        topology: Topology,
        settings: Settings,
        *,
        spark: SparkSession | None,
        until: str | None,
        until_txid: int | None,
        wait_for_leadership: bool,
        listener: PointListener,
        runner_factory: RunnerFactory | None,
        watchers: Sequence[Watcher],
    ) -> None:
        self.topology = topology
        self.settings = settings
        services = RunServices(
            topology,
            settings,
            spark=spark,
            wait_for_leadership=wait_for_leadership,
            runner_factory=runner_factory,
        )
        caught_up, warm_up = until == CAUGHT_UP, WARM_UP_SECONDS if runner_factory is None else 0.0
        told = [*watchers, *(_installed(topology) if topology.tier == BATCHES else ())]
        tier: Tier[Any]
        if topology.tier != BATCHES:
            tier = _tier(topology)(topology, until_caught_up=caught_up, warm_up_seconds=warm_up)
        else:
            tier = BatchTier(
                topology,
                until_caught_up=caught_up,
                until_txid=until_txid,
                warm_up_seconds=warm_up,
                gather_seconds=GATHER_SECONDS if runner_factory is None else 0.0,
                listener=listener,
                watcher=Watchers(told) if told else None,
            )
        self.driver: Driver[Any] = Driver(services, tier, every(SETTLERS, "settler"))
        for watcher in told:
            watcher.attached(self.driver)
        self._has_ended = False
        self._error: BaseException | None = None
        self._report: RunReport | None = None
        self._started = time.monotonic()
        self._displays: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._main, name=f"txstream-{topology.id}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        state = self.state if self._error is None else f"failed with {type(self._error).__name__}"
        return f"<RunningTopology {self.topology.id}: {state}, txid {self.progress.committed_txid} committed>"

    def _ipython_display_(self) -> None:
        """In a notebook, show progress until the run has ended, in place; elsewhere what `repr` says."""
        if in_notebook():
            self._show_live(self._repr_html_)
        else:
            sys.stdout.write(f"{self!r}\n")

    def _show_live(self, html: Callable[[], str]) -> None:
        self._displays.append(show_live(html, self._thread))

    def _line_html(self) -> str:
        """The present progress in one line of HTML."""
        now = self.progress
        if now.trees is not None:
            told = [
                f"{now.trees.open:,} trees open",
                f"{now.trees.acked:,} acked",
                f"{now.trees.failed:,} failed",
            ]
        else:
            told = [f"txid {now.committed_txid} committed", counted(now.records, "record")]
            told += [] if now.lag_records is None else [f"{now.lag_records:,} to go"]
            told += [counted(now.failed_attempts, "failed attempt")] if now.failed_attempts else []
        told.append(f"{now.seconds:.0f} s")
        return f"<div>{escape(f'{self.topology.id}: {self.state}, ' + ', '.join(told))}</div>"

    def _repr_html_(self) -> str:
        """The present progress as HTML, or the report once the run has ended."""
        if self._report is not None:
            return self._report._repr_html_()
        progress = self.progress
        rows: list[list[object]] = [
            ["state", self.state],
            ["committed txid", progress.committed_txid],
            ["open batches", len(progress.active)],
            ["records", progress.records],
            ["records to go", progress.lag_records],
            ["failed attempts", progress.failed_attempts],
            ["seconds", round(progress.seconds, 1)],
        ]
        if self.last_error is not None:
            rows.append(["error", str(self.last_error)])
        return html_table(f"topology {self.topology.id} ({self.topology.kind})", rows)

    def wait(self, timeout_seconds: float | None = None) -> RunReport:
        """Block until the run has ended, and return its report. Raises the error that ended it,
        RunAbortedError if it was stopped before it had a report, or TimeoutError."""
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"topology {self.topology.id!r} still runs after {timeout_seconds:g} s")
        for display in self._displays:  # what they show last belongs before what the waiting cell shows
            display.join(_DISPLAY_SECONDS)
        if self._error is not None:
            raise self._error
        if self._report is None:
            far = self.driver.tier.how_far()
            raise self._with_story(RunAbortedError(f"topology {self.topology.id!r} was stopped {far}"))
        return self._report

    def stop(self, grace_seconds: float = 30.0) -> None:
        """End the run between two batches. If that takes longer than `grace_seconds`, in an outage for
        example, end it at once. Does not raise the error that ended the run: see `wait` and `last_error`."""
        self.driver.stop()
        self._thread.join(grace_seconds)
        if self._thread.is_alive():
            self.abort()
            self._thread.join(grace_seconds)

    def abort(self) -> None:
        """End the run at once, as a crash would. The next run recovers."""
        self.driver.abort()

    @property
    def state(self) -> str:
        """What the run is doing, in words: "starting", "running", what it waits for, or "ended"."""
        return "ended" if self._has_ended else self.driver.state

    @property
    def open_work(self) -> str:
        """What `stop` waits for, in words."""
        return self.driver.tier.open_work

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def last_error(self) -> BaseException | None:
        """The error that ended the run, if it failed."""
        return self._error

    @property
    def progress(self) -> RunProgress:
        """A snapshot of the run. Cheap; may be read from any thread."""
        return self.driver.progress(time.monotonic() - self._started)

    @property
    def timings(self) -> list[Any]:
        """The `BatchTiming` of each of the last 10,000 batches, oldest first."""
        return self.driver.tier.timings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _main(self) -> None:
        try:
            self._report = self.driver.run()
        except BaseException as error:  # noqa: BLE001 - kept for wait(), which raises it in the caller
            if not (isinstance(error, (RunAbortedError, WaitStoppedError)) and self.driver.is_told_to_stop):
                self._error = self._with_story(self._told(error))
        finally:
            self._has_ended = True

    def _with_story(self, error: BaseException) -> BaseException:
        lines = self.driver.tier.story
        if isinstance(error, TxstreamError):
            error.story = error.story or lines
        elif lines:
            error.add_note("\n".join(["the coordinator's last events and commands:", *lines]))
        return error

    def _told(self, error: BaseException) -> BaseException:
        """The error that `wait` raises. Signals never reach this thread, so a SystemExit comes from the
        topology's own code, and must not end the program that waits."""
        if isinstance(error, CorruptStateError):
            return with_remedy(error, self.topology.id)
        if isinstance(error, (Exception, CrashError)):
            return error
        place = traceback.extract_tb(error.__traceback__)[-1]
        named = BoltError(
            f"topology {self.topology.id!r} was ended by {type(error).__name__}: {error} "
            f"(in {Path(place.filename).name}, line {place.lineno})"
        )
        named.__cause__ = error
        return named


def _installed(topology: Topology) -> list[Watcher]:
    """Return the watchers of installed packages."""
    made = [make(topology.id) for make in every(WATCHERS, "watcher")]
    return [watcher for watcher in made if watcher is not None]


def _tier(topology: Topology) -> Callable[..., Tier[Any]]:
    """Return what makes the tier of a topology that is none of batches."""
    tier: Callable[..., Tier[Any]] | None = load(TIERS, topology.tier, f"tier {topology.tier!r}")
    if tier is None:
        raise UsageError(
            f"topology {topology.id!r} needs the tier {topology.tier!r}, which no installed package has"
        )
    return tier


def start(
    topology: Topology,
    spark: SparkSession | None = None,
    settings: Settings | None = None,
    *,
    until: str | None = None,
    until_txid: int | None = None,
    wait_for_leadership: bool = True,
    listener: PointListener = nobody_listens,
    runner_factory: RunnerFactory | None = None,
    watchers: Sequence[Watcher] = (),
) -> RunningTopology:
    """Start a topology in the background.

    `until="caught-up"` ends the run when everything up to the present end of the log is committed,
    `until_txid=N` after txid N; otherwise it runs until it is stopped. A topology of tracked tuples has
    caught up when no spout has had a tuple for a second or waits for anything, and no tree is open. If the
    topology already runs elsewhere, the run stands by; with `wait_for_leadership=False` it fails with
    LeaderExistsError instead.
    `watchers` are told what becomes of batches, for metrics and traces.
    `spark` is a session of yours; without one, the run starts Spark and ends it. Raises UsageError for an
    impossible combination; every other error is raised by `wait`.
    """
    _check_types(topology, spark, settings)
    if until not in (None, CAUGHT_UP):
        raise UsageError(f"until={until!r}: it is {CAUGHT_UP!r} or not given")
    if until is not None and until_txid is not None:
        raise UsageError("give until='caught-up' or until_txid, not both")
    if until_txid is not None and until_txid < 1:
        raise UsageError(f"until_txid is {until_txid}; txids begin at 1")
    if until_txid is not None and topology.tier != BATCHES:
        raise UsageError(f"topology {topology.id!r} is of tracked tuples, which have no txids")
    return RunningTopology(
        topology,
        (settings or Settings()).resolve(),
        spark=spark,
        until=until,
        until_txid=until_txid,
        wait_for_leadership=wait_for_leadership,
        listener=listener,
        runner_factory=runner_factory,
        watchers=watchers,
    )


def _check_types(topology: object, spark: object, settings: object) -> None:
    if not isinstance(topology, Topology):
        remedy = "end it with .build()" if hasattr(topology, "build") else "give what the factory returns"
        raise UsageError(f"{topology!r:.100} is no Topology; {remedy}")
    if spark is not None:
        if isinstance(spark, Settings):
            raise UsageError("Settings were given where a SparkSession belongs; write settings=...")
        from pyspark.sql import SparkSession

        if not isinstance(spark, SparkSession):
            raise UsageError(f"{spark!r:.100} is no SparkSession of PySpark's (and Spark Connect has none)")
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(f"{settings!r:.100} is no txstream.Settings")


def run(
    topology: Topology,
    spark: SparkSession | None = None,
    settings: Settings | None = None,
    *,
    until: str | None = CAUGHT_UP,
    until_txid: int | None = None,
    wait_for_leadership: bool = True,
) -> RunReport:
    """Start a topology and wait for its end; see `start`. Raises the error that ended the run. In a notebook
    it shows a line of progress meanwhile."""
    if until_txid is not None and until == CAUGHT_UP:
        until = None
    running = start(
        topology, spark, settings, until=until, until_txid=until_txid, wait_for_leadership=wait_for_leadership
    )
    if in_notebook():
        running._show_live(running._line_html)
    try:
        return running.wait()
    except BaseException:
        running.abort()
        raise
