"""What inspection answers, as HTML, Arrow and pandas; and `status --watch`."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.lists import each

from txstream.cli.context import Cli
from txstream.cli.main import main
from txstream.cli.status import _watch, status
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.semantics import Semantics
from txstream.core.transaction import Txid
from txstream.engine.loop.report import BatchTiming, RunReport
from txstream.inspect import (
    Batch,
    Batches,
    Finding,
    FsckReport,
    LedgerEntry,
    Severity,
    TopologyStatus,
    Why,
    WhyPart,
)

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def entry(tuples: int, error: str | None = None) -> LedgerEntry:
    given: Any = ("db", "u", 1, Semantics.OPAQUE, "committed", tuples, 2, AT, AT, AT, error, {})
    return LedgerEntry(*given)


BATCHES = Batches(Batch(txid, "committed", (entry(10 * txid, "<b>"),)) for txid in (1, 2))  # type: ignore[arg-type]
STATUS = TopologyStatus(
    *("words", "u", Semantics.OPAQUE, "KafkaSource", {}, ("words",), None, 3, (), {"lines/0": 7})  # type: ignore[arg-type]
)
FSCK = FsckReport("words", ("a", "b"), (Finding("x", Severity.NOTE, "here", "what", "nothing"),))
WHY = Why(
    *("words", "db", "counts", ("a",), (2,), 3),  # type: ignore[arg-type]
    parts=(WhyPart(3, "lines/0", 6, None, None, (1,), (2,)),),  # type: ignore[arg-type]
)


def test_batches_are_a_list_and_a_table() -> None:
    assert isinstance(BATCHES, list)
    found = BATCHES.to_arrow().to_pylist()
    assert [(row["txid"], row["tuples"], row["committed_at"]) for row in found] == [(1, 10, AT), (2, 20, AT)]
    assert BATCHES._repr_html_().count("&lt;b&gt;") == 2


def test_batches_are_plotted() -> None:
    pytest.importorskip("matplotlib")
    timed: list[Batch] = []
    for txid in (1, 2, 3):
        at = AT + timedelta(seconds=2 * txid)
        details: dict[str, Any] = {"timings": {"job": 0.5, "commit": txid}}
        if txid != 2:
            details["lag_records"] = 9 - txid
        one = replace(entry(10 * txid), committed_at=at, details=details)
        timed.append(Batch(Txid(txid), "committed", (one,)))
    axes: list[Any] = Batches(timed).plot().axes
    rates, phases, lag = axes
    assert rates.lines[0].get_xydata().tolist() == [[2, 10], [3, 15]]
    assert [bar.get_height() for bar in phases.patches] == [0.5, 0.5, 0.5, 1, 2, 3]
    assert [text.get_text() for text in phases.get_legend().get_texts()] == ["job", "commit"]
    assert lag.lines[0].get_ydata().tolist() == pytest.approx([8, float("nan"), 6], nan_ok=True)
    assert [one.first.lag_records for one in timed] == [8, None, 6]
    assert [row["lag_records"] for row in Batches(timed).to_arrow().to_pylist()] == [8, None, 6]
    assert len(Batches(timed[1:2]).plot().axes) == 2, "its row does not say"
    drawn: Any = Batches(timed).plot()
    assert drawn._repr_png_().startswith(b"\x89PNG"), "or a notebook shows nothing"


def test_a_commit_that_the_next_row_told_is_drawn_instead_of_its_parts() -> None:
    pytest.importorskip("matplotlib")
    row = replace(entry(10), details={"timings": {"begin": 1, "write": 2, "job": 0.5}})
    told = Batch(Txid(1), "committed", (row,), in_commit={"commit": 4, "advance": 0.25})
    assert told.timings == {"begin": 1, "write": 2, "job": 0.5, "commit": 4, "advance": 0.25}
    phases: Any = Batches([told, Batch(Txid(2), "committed", (row,))]).plot().axes[1]
    drawn = [bar.get_height() for bar in phases.patches]
    assert drawn == [0.5, 0.5, 0, 1, 0, 2, 4, 0, 0.25, 0]


def test_a_report_is_plotted_with_its_lag() -> None:
    pytest.importorskip("matplotlib")
    times = tuple(
        BatchTiming(
            Txid(txid), records=10 * txid, job_seconds=0.5, commit_seconds=1.0, committed_at=2.0 * txid
        )
        for txid in (3, 4, 5)
    )
    given: Any = ("words", "u", "opaque", 1, 3, 5, 3, 120, 0, 0, 0, 9.0, True)
    report = replace(RunReport(*given), timings=times)
    axes: list[Any] = report.plot().axes
    rates, phases, lag = axes
    assert rates.lines[0].get_xydata().tolist() == [[4, 20], [5, 25]]
    assert [text.get_text() for text in phases.get_legend().get_texts()] == ["job", "commit"]
    assert lag.lines[0].get_xydata().tolist() == [[3, 90], [4, 50], [5, 0]]
    assert len(replace(report, caught_up=False).plot().axes) == 2
    told = tuple(replace(one, lag_records=one.txid) for one in times)
    again: list[Any] = replace(report, timings=told, caught_up=False).plot().axes
    assert again[2].lines[0].get_ydata().tolist() == [3, 4, 5]
    assert "timings" not in report.to_document()


def test_without_matplotlib_a_plot_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "txstream.plugins.notebook.batches", None)
    with pytest.raises(ServiceUnavailableError, match=r"pip install 'txstream\[svg\]'"):
        BATCHES.plot()


@each(
    ("answer", "row"),
    [
        (STATUS, {"what": "next place of lines/0", "value": "7"}),
        (FSCK, {"severity": "note", "where": "here", "what": "what", "remedy": "nothing", "command": None}),
        (WHY, {"txid": 3, "partition": "lines/0", "offset": 6, "delta": "(1,)", "value": "(2,)"}),
    ],
)
def test_an_answer_is_a_table(answer: Any, row: dict[str, Any]) -> None:
    assert row in answer.to_arrow().to_pylist()
    assert str(next(iter(row.values()))) in answer._repr_html_()
    pandas = pytest.importorskip("pandas")
    assert isinstance(answer.to_pandas(), pandas.DataFrame)


def test_watch_goes_on_after_an_outage(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[int] = []

    def show() -> int:
        shown.append(1)
        if len(shown) == 1:
            raise ServiceUnavailableError("ZooKeeper is away")
        return 0

    def pause(_: float) -> None:
        if len(shown) == 3:
            raise KeyboardInterrupt

    assert _watch(Cli(), show, pause) == 0
    assert len(shown) == 3
    assert "ZooKeeper is away" in capsys.readouterr().out


def test_watch_is_for_people() -> None:
    with pytest.raises(UsageError, match="leave out --json"):
        status(Cli(as_json=True), watch=True)


def test_the_shell_completes_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {
        "_TXSTREAM_COMPLETE": "complete_bash",
        "COMP_WORDS": "txstream sta",
        "COMP_CWORD": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main([])
    assert capsys.readouterr().out.split() == ["status", "state"]
