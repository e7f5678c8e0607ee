"""`txstream run` around the run itself: signals, progress, the report, the logs that stay."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.bolts import word_count
from support.inmemory import MemoryLog
from support.lists import each

import txstream.engine.run
from txstream.cli.context import Cli
from txstream.cli.main import main
from txstream.cli.run import OWNER_VARIABLE, _Signals, _tell, _wait, summary
from txstream.cli.run_options import KEPT_BY_DEFAULT, RunEnd, kept_ledger
from txstream.cli.run_progress import describe, shown_progress
from txstream.core.errors import ServiceUnavailableError, TxstreamError
from txstream.core.ledger_retention import Keep
from txstream.core.story import Story
from txstream.core.transaction import Txid
from txstream.core.waiting import RunAbortedError
from txstream.engine.loop.report import RunProgress, RunReport, Statistics
from txstream.engine.run import start
from txstream.engine.spark.log import prune_logs
from txstream.engine.start.batch_tier import BatchTier
from txstream.settings import Settings
from txstream.testing import InProcessRunner

REPORT = RunReport(
    topology="words",
    uuid="0",
    semantics="opaque",
    epoch=2,
    first_txid=3,
    last_txid=9,
    batches=7,
    records=7000,
    failed_attempts=0,
    replayed_attempts=0,
    recovered_batches=0,
    seconds=2.0,
    caught_up=True,
)
SNAPSHOT = RunProgress("words", 4, {Txid(5): "processing"}, 4, 4000, 0, 1.0, None, 6000)


def ended_loop(**statistics: Any) -> Any:
    """The loop of a run that has ended, with 5 as the next txid."""
    coordinator = SimpleNamespace(current=5, story=Story())
    return SimpleNamespace(coordinator=coordinator, statistics=Statistics(**statistics))


class FakeRun:
    """A run that ends when the test says so. It notes how it was asked to end."""

    open_work = "the open batches are committed"

    def __init__(self, error: TxstreamError | None = None) -> None:
        self.topology = type("T", (), {"id": "words"})
        self.progress = SNAPSHOT
        self.state = "running"
        self.last_error = error
        self.asked: list[str] = []
        self.ended = threading.Event()

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    def wait(self, timeout_seconds: float | None = None) -> RunReport:
        if not self.ended.wait(timeout_seconds):
            raise TimeoutError
        if self.last_error is not None:
            raise self.last_error
        return REPORT

    def stop(self) -> None:
        self.asked.append("stop")
        self.ended.set()

    def abort(self) -> None:
        self.asked.append("abort")
        self.ended.set()


def waited(running: Any, signals: _Signals) -> RunReport | None:
    return _wait(running, signals, lambda snapshot: None)


def test_the_first_signal_stops_and_handlers_are_put_back() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    running: Any = FakeRun()
    with _Signals(Cli(quiet=True), running) as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        assert waited(running, signals) is REPORT
    assert running.asked == ["stop"]
    assert {number: signal.getsignal(number) for number in before} == before


def test_the_second_signal_aborts() -> None:
    running: Any = FakeRun()
    asked = threading.Semaphore(0)

    def stop() -> None:
        running.asked.append("stop")
        asked.release()

    running.stop = stop
    with _Signals(Cli(quiet=True), running) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        signals.act()
        assert asked.acquire(timeout=60)
        os.kill(os.getpid(), signal.SIGINT)
        assert waited(running, signals) is REPORT
    assert running.asked == ["stop", "abort"]


def test_a_run_whose_owner_is_gone_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, str(os.getpid()))  # which is not our parent
    running: Any = FakeRun()
    with _Signals(Cli(quiet=True), running) as signals:
        assert waited(running, signals) is REPORT
    assert running.asked == ["abort"]


def test_a_run_whose_owner_lives_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWNER_VARIABLE, str(os.getppid()))
    running: Any = FakeRun()
    with _Signals(Cli(quiet=True), running) as signals:
        signals.act()
        assert running.asked == []


def test_what_ended_the_run_is_raised() -> None:
    running: Any = FakeRun(ServiceUnavailableError("gone"))
    running.ended.set()
    with _Signals(Cli(quiet=True), running) as signals, pytest.raises(ServiceUnavailableError, match="gone"):
        waited(running, signals)


def test_a_stop_before_the_first_batch_is_no_error() -> None:
    running: Any = FakeRun()

    def never_began(timeout_seconds: float | None = None) -> RunReport:
        raise TxstreamError("was stopped before its first batch")

    running.wait = never_began
    running.progress = replace(SNAPSHOT, batches=0)
    with _Signals(Cli(quiet=True), running) as signals:
        signals.count = 1
        assert waited(running, signals) is None


# --- the report --------------------------------------------------------------------------------------------


@each(
    ("stopped", "until", "until_txid", "report", "status"),
    [
        (False, "caught-up", None, REPORT, 0),
        (True, None, None, REPORT, 0),
        (True, "caught-up", None, REPORT, 0),
        (True, "caught-up", None, replace(REPORT, caught_up=False), 1),
        (True, None, 9, REPORT, 0),
        (True, None, 10, REPORT, 1),
        (True, None, None, None, 0),
        (True, "caught-up", None, None, 1),
    ],
)
def test_status_of_a_run_that_was_stopped(
    stopped: bool, until: str | None, until_txid: int | None, report: RunReport | None, status: int
) -> None:
    assert _tell(Cli(quiet=True), report, stopped, RunEnd(until, until_txid)) == status


def test_a_run_that_was_stopped_says_what_it_was_waiting_for(capsys: pytest.CaptureFixture[str]) -> None:
    told = "txstream: stopped after txid 9, before the run was done{}; run it again to go on\n"
    away = "partition lines/3 since 12:00:00"
    for waiting_for, waited in ((None, ""), (away, f" (it was waiting for {away})")):
        report = replace(REPORT, caught_up=False, waiting_for=waiting_for)
        assert _tell(Cli(quiet=True), report, True, RunEnd("caught-up")) == 1
        assert capsys.readouterr().err == told.format(waited)


def test_summary_in_one_line() -> None:
    assert summary(REPORT) == "words: txids 3 to 9, 7,000 records in 2.0 s (3,500 records/s)"
    eventful = replace(REPORT, failed_attempts=1, replayed_attempts=2, recovered_batches=1)
    assert summary(eventful).endswith(", 1 attempt failed, 2 attempts replayed, 1 batch recovered")
    idle = replace(REPORT, batches=0, first_txid=None)
    assert "nothing to do" in summary(idle)
    assert summary(replace(idle, failed_attempts=4)).startswith("words: nothing committed, 4 attempts failed")
    failed = replace(REPORT, failed_attempts=4, failure_reasons={"away": 1, "the disk is full": 3})
    assert summary(failed).splitlines()[1:] == ["  3 x the disk is full", "  1 x away"]
    told = "  2 records left out as dead letters; `txstream dead-letters list words` says why"
    assert summary(replace(REPORT, dead_letters=2)).splitlines()[1:] == [told]


@pytest.mark.parametrize(
    ("loop", "told"),
    [
        (None, "was stopped before its first batch"),
        (
            ended_loop(),
            "was stopped at once, before it committed a batch; the next run recovers what is open",
        ),
        (
            ended_loop(first_txid=Txid(1), failed_attempts=8, failure_reasons=Counter({"it is full": 8})),
            "was stopped at once, after txid 4; the next run recovers what is open; 8 attempts had failed: "
            "8 x it is full",
        ),
    ],
)
def test_a_run_that_was_stopped_at_once_says_how_far_it_was(
    monkeypatch: pytest.MonkeyPatch, loop: Any, told: str
) -> None:
    def stopped(*_: object) -> None:
        raise RunAbortedError("the run was aborted")

    topology = word_count(MemoryLog({"a": []}))
    tier = BatchTier(topology)
    tier.loop = loop
    driver = SimpleNamespace(tier=tier, run=lambda: stopped(), is_told_to_stop=True, state="running")
    monkeypatch.setattr(txstream.engine.run, "Driver", lambda *_, **__: driver)
    running = start(topology, settings=Settings(zookeeper="127.0.0.1:1"), runner_factory=InProcessRunner)
    with pytest.raises(RunAbortedError) as caught:
        running.wait(60)
    assert str(caught.value) == f"topology 'word-count' {told}"


def test_a_stop_that_took_too_long_is_told_though_a_batch_was_committed() -> None:
    running: Any = FakeRun()

    def aborted(timeout_seconds: float | None = None) -> RunReport:
        raise TxstreamError("was stopped at once, after txid 4")

    running.wait = aborted
    with _Signals(Cli(quiet=True), running) as signals:
        signals.count = 1
        with pytest.raises(TxstreamError, match="after txid 4"):
            waited(running, signals)


def test_an_attempts_time_is_checked_before_anything_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds in ("0", "-1", "inf", "nan"):
        assert main(["run", "txstream.examples.word_count:topology", "--message-timeout", seconds]) == 2
        assert "--message-timeout is" in capsys.readouterr().err


def test_failed_attempts_are_in_the_document() -> None:
    assert replace(REPORT, failed_attempts=4).to_document()["failed_attempts"] == 4


# --- progress ----------------------------------------------------------------------------------------------


def test_a_snapshot_in_words() -> None:
    assert describe(SNAPSHOT) == "txid 4 committed, 1 open, 4,000 records, 6,000 to go"
    waiting = replace(SNAPSHOT, waiting_for="partition lines/3 since 12:00:00", failed_attempts=2)
    assert describe(waiting).endswith("2 failed attempts, waiting for partition lines/3 since 12:00:00")
    assert describe(replace(waiting, active={})) == "partition lines/3 since 12:00:00"


def test_without_a_terminal_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with shown_progress(Cli(), lambda: now[0]) as show:
        for second in range(31):
            now[0] = float(second)
            show(SNAPSHOT if second < 15 else replace(SNAPSHOT, committed_txid=5))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == ["words: txid 4 committed", "words: txid 5 committed"]


def test_quiet_shows_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with shown_progress(Cli(quiet=True), lambda: now[0]) as show:
        now[0] = 100.0
        show(SNAPSHOT)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_that_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")
    with shown_progress(Cli()) as show:
        show(SNAPSHOT)
    assert "6,000 to go" in terminal.getvalue()
    assert "\x1b[?25h" in terminal.getvalue(), "the cursor is shown again"


def test_only_the_newest_logs_stay(tmp_path: Path) -> None:
    for number in range(25):
        for name in (f"spark-x-{number}.log", f"txstream-{number}.log"):
            (tmp_path / name).write_text("")
            os.utime(tmp_path / name, (number, number))
    (tmp_path / "kafka-1.log").write_text("")
    prune_logs(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 41
    assert {"kafka-1.log", "spark-x-24.log", "spark-x-5.log", "txstream-5.log"} <= left
    assert not {"spark-x-4.log", "txstream-0.log"} & left


def test_limits_of_the_ledger_are_checked_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["run", "no.such:topology", "--keep-ledger", "7 weeks"]) == 2
    assert "'7 weeks' is no limit; write --keep-ledger 7d, --keep-ledger 100000" in capsys.readouterr().err


def test_the_old_name_of_the_ledgers_limits_still_works_and_warns(capsys: pytest.CaptureFixture[str]) -> None:
    assert kept_ledger(KEPT_BY_DEFAULT, "36h") == kept_ledger("36h", None) == Keep(36 * 3600, None)
    assert capsys.readouterr().err.count("is called --keep-ledger now") == 1
    assert main(["run", "no.such:topology", "--keep", "7 weeks"]) == 2
    assert "is called --keep-ledger now" in capsys.readouterr().err
    assert main(["run", "no.such:topology", "--keep", "7d", "--keep-ledger", "8d"]) == 2
    assert "give --keep-ledger only" in capsys.readouterr().err
