"""`txstream run`: from MODULE:FACTORY to a report, with signals and progress.

Invariants: only this command handles signals for a run. The first SIGINT, SIGTERM or SIGHUP ends the run
between two batches, the second ends it at once, the third ends the process.

How far a run is goes to standard error: a bar on a terminal, otherwise a line now and then.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from txstream.cli.code import remember_code
from txstream.cli.context import Cli, print_error
from txstream.cli.factory import load_topology, shipped_module, user_code_prints_to_stderr
from txstream.cli.logs import JsonLines, library_log, write_as_json
from txstream.cli.options import Factory, FactoryArguments, PyFiles, SparkConf, check_id, command
from txstream.cli.packaging import holds_framework
from txstream.cli.parameters import spark_settings
from txstream.core.entry_points import EXPORTERS, load
from txstream.core.errors import TxstreamError, UsageError
from txstream.core.ledger_retention import Keep
from txstream.core.transaction import Txid, about
from txstream.core.wording import counted
from txstream.engine.loop.report import shown_reasons
from txstream.engine.spark.log import prune_logs, spark_log

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.engine.loop.open_batches import Watcher
    from txstream.engine.loop.report import RunProgress, RunReport
    from txstream.engine.run import RunningTopology
    from txstream.settings import Settings

# Set by a parent process whose run must end with it, however the parent ends.
OWNER_VARIABLE = "TXSTREAM_OWNER_PID"

_TICK_SECONDS = 0.2
_CAUGHT_UP = "caught-up"


def register(app: typer.Typer) -> None:
    command(app, "run")(run)


def run(
    cli: Cli,
    target: Factory,
    parameter: FactoryArguments = None,
    topology_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="Run it under another topology id.", callback=check_id),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar=_CAUGHT_UP, help="End when the log's end as of now is committed."),
    ] = None,
    until_txid: Annotated[
        int | None, typer.Option("--until-txid", metavar="N", help="End when txid N is committed.")
    ] = None,
    no_wait: Annotated[
        bool, typer.Option("--no-wait", help="Fail, instead of standing by, when it runs elsewhere.")
    ] = False,
    standby: Annotated[
        str | None,
        typer.Option(
            "--standby",
            metavar="cold|warm",
            help="What is ready while another driver leads: nothing, or all that a batch needs "
            "[env: TXSTREAM_STANDBY]",
        ),
    ] = None,
    py_files: PyFiles = None,
    spark_conf: SparkConf = None,
    session_timeout: Annotated[
        float,
        typer.Option(
            "--session-timeout", metavar="SECONDS", help="How soon a standby may succeed a driver that died."
        ),
    ] = 10.0,
    message_timeout: Annotated[
        float | None,
        typer.Option(
            "--message-timeout",
            metavar="SECONDS",
            help="How long an attempt of a batch may take.  [default: the topology's]",
        ),
    ] = None,
    dead_letters: Annotated[
        int | None,
        typer.Option(
            "--dead-letters",
            metavar="N",
            help="Keep up to N records of a batch that fail by themselves, and go on.  "
            "[default: the topology's]",
        ),
    ] = None,
    resident_tasks: Annotated[
        str | None,
        typer.Option(
            "--resident-tasks",
            metavar="N|auto",
            help="How many Spark tasks stay for small batches.  [default: the topology's]",
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="LIMITS",
            help="How long the ledger keeps batches: an age (s, m, h, d), a number, both, or all.",
        ),
    ] = str(Keep()),
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="[HOST:]PORT",
            help="Serve metrics for Prometheus there; without HOST only for this machine.",
        ),
    ] = None,
    metrics_partitions: Annotated[
        int,
        typer.Option(
            "--metrics-partitions",
            metavar="N",
            min=0,
            help="Show the lag of a topic with more partitions as one sum.",
        ),
    ] = 100,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            metavar="text|json",
            help="How lines on standard error are written: sentences, or one JSON object a line.",
        ),
    ] = "text",
) -> int:
    """Run a topology until it is stopped. With --until or --until-txid it ends when that is done."""
    _check_end(until, until_txid)
    if log_format not in ("text", "json"):
        raise UsageError(f"--log-format takes text or json, not {log_format!r}")
    kept = Keep.parse(keep)
    conf = spark_settings(spark_conf or [])
    files = existing_files(py_files or [])
    topology = load_topology(target, parameter or [])
    if topology_id is not None:
        topology = topology.with_id(topology_id)
    if message_timeout is not None:
        topology = _with_timeout(topology, message_timeout)
    if dead_letters is not None:
        topology = _with_dead_letters(topology, dead_letters)
    if log_format == "json":
        cli.as_json_lines = JsonLines(topology.id)
        write_as_json(cli.as_json_lines)
    if resident_tasks is not None:
        topology = _with_residents(topology, resident_tasks)
    cli.settings = replace(cli.settings, standby=standby or None)
    settings = cli.resolve()
    settings.require_zookeeper()
    from txstream.engine.spark.java import find_java

    find_java()
    settings.make_data_dir()
    remember_code(settings, topology.id, target, parameter or [])
    log_file = spark_log(cli.log_dir, topology.id)
    with shipped_module(target) as modules:
        settings = replace(
            settings,
            session_timeout_seconds=session_timeout,
            spark_conf=conf,
            py_files=(*files, *modules),
            package=next((file for file in files if holds_framework(Path(file))), None),
            spark_log=log_file,
            ledger_keep=kept,
        )
        prune_logs(cli.log_dir)
        if settings.uses_default_database:
            cli.say(f"database: {settings.default_database_file}")
        try:
            with (
                user_code_prints_to_stderr(),
                _watched(cli, topology, metrics, metrics_partitions) as watchers,
            ):
                report, stopped = _run(cli, topology, settings, until, until_txid, watchers, wait=not no_wait)
        except TxstreamError:
            _name_logs([log_file, library_log(cli)])
            raise
    return _tell(cli, report, stopped, until, until_txid)


# --- before ------------------------------------------------------------------------------------------------


def _check_end(until: str | None, until_txid: int | None) -> None:
    if until not in (None, _CAUGHT_UP):
        raise UsageError(f"--until takes {_CAUGHT_UP!r}, not {until!r}; for a txid there is --until-txid N")
    if until is not None and until_txid is not None:
        raise UsageError("give --until caught-up or --until-txid N, not both")
    if until_txid is not None and until_txid < 1:
        raise UsageError(f"--until-txid is {until_txid}; txids begin at 1")


def existing_files(files: Sequence[Path]) -> tuple[str, ...]:
    """Return the full paths of --py-files. Raises UsageError for a file that Spark cannot take."""
    for file in files:
        if not file.is_file():
            raise UsageError(f"--py-files {file}: there is no such file")
        if file.suffix not in (".py", ".zip", ".egg"):
            raise UsageError(
                f"--py-files {file}: Spark takes .py and .zip files; `txstream package` makes a zip"
            )
    return tuple(str(file.resolve()) for file in files)


def _with_timeout(topology: Topology, seconds: float) -> Topology:
    if not 0 < seconds < math.inf:
        raise UsageError(f"--message-timeout is {seconds:g}; it must be a positive number of seconds")
    return replace(topology, message_timeout_seconds=seconds)


def _with_dead_letters(topology: Topology, most: int) -> Topology:
    from txstream.api.builder import check_dead_letters
    from txstream.api.topology import BATCHES
    from txstream.core.dead_letters import DeadLetters

    if most < 1:
        raise UsageError(f"--dead-letters is {most}; it must be a number above 0")
    if topology.tier != BATCHES:
        raise UsageError(f"topology {topology.id!r} is of tracked tuples, which have no --dead-letters")
    wanted = replace(topology.dead_letters or DeadLetters(), max_per_batch=most)
    return replace(topology, dead_letters=check_dead_letters(wanted, topology.semantics))


def _with_residents(topology: Topology, tasks: str) -> Topology:
    if tasks != "auto" and not tasks.isdecimal():
        raise UsageError(f"--resident-tasks is {tasks!r}; it must be a whole number, or auto")
    return replace(topology, resident_tasks=None if tasks == "auto" else int(tasks))


# --- meanwhile ---------------------------------------------------------------------------------------------


def _run(
    cli: Cli,
    topology: Topology,
    settings: Settings,
    until: str | None,
    until_txid: int | None,
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
        until=until,
        until_txid=until_txid,
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


def _tell(
    cli: Cli, report: RunReport | None, stopped: bool, until: str | None, until_txid: int | None
) -> int:
    if report is None:
        cli.say("stopped before its first batch; nothing was done")
        return 0 if until is None and until_txid is None else 1
    if cli.as_json:
        cli.print_json(report.to_document())
    else:
        cli.print(summary(report))
    if not stopped and report.stopped_by is None:
        return 0
    done = report.caught_up if until else until_txid is None or report.last_txid >= until_txid
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


def _name_logs(paths: Sequence[Path]) -> None:
    found = [str(path) for path in paths if path.exists() and path.stat().st_size]
    if found:
        print_error(f"logs: {', '.join(found)}")


Show = Callable[["RunProgress"], None]
Exporter = Callable[["Topology", str, int], "contextlib.AbstractContextManager[tuple[Watcher, str]]"]

_LINE_SECONDS = 10.0
_FIRST_LINE_SECONDS = 3.0


@contextlib.contextmanager
def shown_progress(cli: Cli, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Yield a function that shows a snapshot, for use inside the block. `clock` is in seconds."""
    if cli.quiet:
        yield lambda _: None
    elif sys.stderr.isatty() and cli.as_json_lines is None:
        with _bar(cli) as show:
            yield show
    else:
        yield _Lines(clock)


class _Lines:
    """Prints a line every ten seconds. The first comes sooner, so that a start that hangs says what it waits
    for. A line is not repeated."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock() + _FIRST_LINE_SECONDS
        self._said = ""

    def __call__(self, progress: RunProgress) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + _LINE_SECONDS
        line = f"{progress.topology}: {describe(progress)}"
        if line != self._said:
            self._said = line
            with about(Txid(progress.committed_txid) or None):
                print_error(line)


def describe(progress: RunProgress) -> str:
    """Describe a snapshot in a few words."""
    trees = progress.trees
    if trees is not None:
        words = [counted(progress.records, "tuple"), f"{counted(trees.open, 'tree')} open"]
        words += [f"{trees.acked:,} acked", f"{trees.failed:,} failed or timed out"]
        return ", ".join(words if progress.waiting_for is None else [*words, progress.waiting_for])
    if progress.waiting_for and not progress.active:
        return progress.waiting_for
    words = [f"txid {progress.committed_txid:,} committed"]
    if progress.active:
        words.append(f"{len(progress.active)} open")
    words.append(counted(progress.records, "record"))
    if progress.lag_records is not None:
        words.append(f"{progress.lag_records:,} to go")
    if progress.failed_attempts:
        words.append(counted(progress.failed_attempts, "failed attempt"))
    if progress.dead_letters:
        words.append(counted(progress.dead_letters, "dead letter"))
    if progress.waiting_for:
        words.append(f"waiting for {progress.waiting_for}")
    return ", ".join(words)


@contextlib.contextmanager
def _bar(cli: Cli) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    # transient: only the report stays on the screen.
    with Progress(*columns, console=cli.error_console(), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: RunProgress) -> None:
            total = None if progress.lag_records is None else progress.records + progress.lag_records
            bar.update(
                task,
                description=describe(progress),
                completed=progress.records,
                total=total or None,
            )

        yield show
