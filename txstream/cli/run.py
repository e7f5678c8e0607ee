"""`txstream run`: from MODULE:FACTORY to a report, with signals and progress.

Invariants: only this command handles signals for a run. The first SIGINT, SIGTERM or SIGHUP ends the run
between two batches, the second ends it at once, the third ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

import typer

from txstream.cli.code import remember_code
from txstream.cli.context import Cli, print_error
from txstream.cli.factory import load_topology, shipped_module, user_code_prints_to_stderr
from txstream.cli.fingerprints import fingerprints
from txstream.cli.logs import JsonLines, library_log, write_as_json
from txstream.cli.options import Factory, FactoryArguments, PyFiles, SparkConf, command
from txstream.cli.packaging import holds_framework
from txstream.cli.parameters import spark_settings
from txstream.cli.run_options import (
    KEPT_BY_DEFAULT,
    Beside,
    KeepLedger,
    LogFormat,
    MessageTimeout,
    Metrics,
    MetricsPartitions,
    MostDeadLetters,
    NoWait,
    OldKeepLedger,
    OtherId,
    RecordsPerSecond,
    ResidentTasks,
    RunEnd,
    SessionTimeout,
    Standby,
    Until,
    UntilTxid,
    existing_files,
    is_json,
    kept_ledger,
    under_other_id,
    with_options,
)
from txstream.cli.run_progress import Show, shown_progress
from txstream.core.entry_points import EXPORTERS, load
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.transaction import Txid, about
from txstream.core.wording import counted
from txstream.engine.loop.report import shown_reasons
from txstream.engine.spark.log import prune_logs, spark_log

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.engine.loop.open_batches import Watcher
    from txstream.engine.loop.report import RunReport
    from txstream.engine.run import RunningTopology
    from txstream.settings import Settings

# Set by a parent process whose run must end with it, however the parent ends.
OWNER_VARIABLE = "TXSTREAM_OWNER_PID"

_TICK_SECONDS = 0.2

Exporter = Callable[["Topology", str, int], "contextlib.AbstractContextManager[tuple[Watcher, str]]"]


def register(app: typer.Typer) -> None:
    command(app, "run")(run)


def run(
    cli: Cli,
    target: Factory,
    parameter: FactoryArguments = None,
    topology_id: OtherId = None,
    other: Beside = None,
    until: Until = None,
    until_txid: UntilTxid = None,
    no_wait: NoWait = False,
    standby: Standby = None,
    py_files: PyFiles = None,
    spark_conf: SparkConf = None,
    session_timeout: SessionTimeout = 10.0,
    message_timeout: MessageTimeout = None,
    dead_letters: MostDeadLetters = None,
    resident_tasks: ResidentTasks = None,
    max_records_per_second: RecordsPerSecond = None,
    keep_ledger: KeepLedger = KEPT_BY_DEFAULT,
    keep: OldKeepLedger = None,
    metrics: Metrics = None,
    metrics_partitions: MetricsPartitions = 100,
    log_format: LogFormat = "text",
) -> int:
    """Run a topology until it is stopped. With --until or --until-txid it ends when that is done."""
    end = RunEnd(until, until_txid)
    as_json_lines = is_json(log_format)
    kept = kept_ledger(keep_ledger, keep)
    conf = spark_settings(spark_conf or [])
    files = existing_files(py_files or [])
    topology = load_topology(target, parameter or [])
    components = fingerprints(topology)
    topology = under_other_id(topology, topology_id, other)
    if as_json_lines:
        cli.as_json_lines = JsonLines(topology.id)
        write_as_json(cli.as_json_lines)
    topology = with_options(
        topology,
        message_timeout_seconds=message_timeout,
        most_dead_letters=dead_letters,
        resident_tasks=resident_tasks,
        max_records_per_second=max_records_per_second,
    )
    settings = replace(
        _resolved(cli, standby),
        session_timeout_seconds=session_timeout,
        spark_conf=conf,
        package=next((file for file in files if holds_framework(Path(file))), None),
        spark_log=spark_log(cli.log_dir, topology.id),
        ledger_keep=kept,
    )
    remember_code(
        settings,
        topology.id,
        target,
        parameter or [],
        is_beside=other is not None,
        components=components,
    )
    prune_logs(cli.log_dir)
    with (
        shipped_module(target) as modules,
        _logs_named(cli, settings),
        user_code_prints_to_stderr(),
        _watched(cli, topology, metrics, metrics_partitions) as watchers,
    ):
        settings = replace(settings, py_files=(*files, *modules))
        report, stopped = _run(cli, topology, settings, end, watchers, wait=not no_wait)
    return _tell(cli, report, stopped, end)


# --- before ------------------------------------------------------------------------------------------------


def _resolved(cli: Cli, standby: str | None) -> Settings:
    """Return the settings, once what no run can do without is there: ZooKeeper's address, Java, a folder."""
    from txstream.cli.java import find_java

    cli.settings = replace(cli.settings, standby=standby or None)
    settings = cli.resolve()
    settings.require_zookeeper()
    find_java()
    settings.make_data_dir()
    if settings.uses_default_database:
        cli.say(f"database: {settings.default_database_file}")
    return settings


@contextlib.contextmanager
def _logs_named(cli: Cli, settings: Settings) -> Iterator[None]:
    """Name the logs that have something in them, if the block raises a TxstreamError."""
    try:
        yield
    except TxstreamError:
        found = [
            str(path)
            for path in (settings.spark_log, library_log(cli))
            if path is not None and path.exists() and path.stat().st_size
        ]
        if found:
            print_error(f"logs: {', '.join(found)}")
        raise


# --- meanwhile ---------------------------------------------------------------------------------------------


def _run(
    cli: Cli,
    topology: Topology,
    settings: Settings,
    end: RunEnd,
    watchers: Sequence[Watcher],
    *,
    wait: bool,
) -> tuple[RunReport | None, bool]:
    """Return the report (None if the run never came to a batch) and whether a signal ended the run."""
    from txstream.cli.faults import from_environment
    from txstream.engine.run import start

    running = start(
        topology,
        settings=settings,
        until=end.until,
        until_txid=end.until_txid,
        wait_for_leadership=wait,
        listener=from_environment(),
        watchers=watchers,
    )
    if cli.as_json_lines is not None:
        driver = running.driver
        cli.as_json_lines.epoch = lambda: None if driver.taken is None else driver.taken.epoch
        cli.as_json_lines.ended_by = lambda: None if driver.loop is None else driver.loop.ended_by
    with _Signals(cli, running) as signals, shown_progress(cli) as show:
        report = _wait(running, signals, show)
    return report, signals.count > 0


@contextlib.contextmanager
def _watched(
    cli: Cli, topology: Topology, address: str | None, most_partitions: int
) -> Iterator[list[Watcher]]:
    """Serve the run's metrics inside the block, if they were asked for."""
    if address is None:
        yield []
        return
    exported: Exporter | None = load(EXPORTERS, "metrics", "exporter of metrics")
    if exported is None:
        raise UsageError("--metrics: no installed package has an exporter of metrics")
    with exported(topology, address, most_partitions) as (watcher, url):
        cli.say(f"metrics: {url}")
        yield [watcher]


def _wait(running: RunningTopology, signals: _Signals, show: Show) -> RunReport | None:
    told = False
    while running.is_running:
        signals.act()
        if not told and running.state == "running":
            told = True
            signals.cli.say(f"{running.topology.id} is running (Ctrl-C ends it when {running.open_work})")
        show(running.progress)
        try:
            return running.wait(_TICK_SECONDS)
        except TimeoutError:
            continue  # it still runs, or has just ended; then the wait below tells how
        except TxstreamError:
            break
    try:
        return running.wait()
    except TxstreamError:
        if signals.count == 1 and running.last_error is None and not running.progress.batches:
            return None  # it was stopped before its first batch
        raise


class _Signals:
    """Counts SIGINT, SIGTERM and SIGHUP, and notices the end of the owner, if there is one. It acts in the
    main loop, because a handler may interrupt anything, even a half-written line."""

    _HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self, cli: Cli, running: RunningTopology) -> None:
        self.count = 0
        self._done = 0
        self.cli = cli
        self._running = running
        self._before: dict[signal.Signals, Any] = {}
        owner = os.environ.get(OWNER_VARIABLE, "")
        self._owner = int(owner) if owner.isdecimal() else None

    def __enter__(self) -> Self:
        for number in self._HANDLED:
            self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 2:
            os._exit(128 + number)

    def act(self) -> None:
        if self._owner is not None and os.getppid() != self._owner:
            self._owner = None
            self.count = max(self.count, 2)
        if self._done == 0 and self.count == 1:
            self._done = 1
            self.cli.say(f"stopping when {self._running.open_work}; once more to stop at once")
            threading.Thread(target=self._running.stop, name="txstream-stop", daemon=True).start()
        elif self._done < 2 <= self.count:
            self._done = 2
            self.cli.say("stopping at once; what is open is left to the next run")
            self._running.abort()


# --- after -------------------------------------------------------------------------------------------------


def _tell(cli: Cli, report: RunReport | None, stopped: bool, end: RunEnd) -> int:
    if report is None:
        cli.say("stopped before its first batch; nothing was done")
        return 0 if end.is_reached(report) else 1
    if cli.as_json:
        cli.print_json(report.to_document())
    else:
        cli.print(summary(report))
    if not stopped and report.stopped_by is None:
        return 0
    done = end.is_reached(report)
    if not done:
        waited = f" (it was waiting for {report.waiting_for})" if report.waiting_for else ""
        stopped_after = f"stopped after txid {report.last_txid}, before the run was done{waited}"
        with about(Txid(report.last_txid) or None):
            print_error(f"txstream: {stopped_after}; run it again to go on")
    return 0 if done else 1


def summary(report: RunReport) -> str:
    """Return a run in one line, one on its dead letters, and one for each reason why attempts failed."""
    dead = (
        [
            f"{counted(report.dead_letters, 'record')} left out as dead letters; "
            f"`txstream dead-letters list {report.topology}` says why"
        ]
        if report.dead_letters
        else []
    )
    return "\n  ".join([report.in_words(), *dead, *shown_reasons(report.failure_reasons)])
