"""`txstream run --log-format json`: each line on standard error is a JSON object with its topology."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from txstream.cli import context
from txstream.cli.context import Cli, print_error
from txstream.cli.logs import JsonLines, set_up_logs, write_as_json
from txstream.cli.main import main
from txstream.core.transaction import TransactionAttempt, Txid, about, attempt_id
from txstream.spouts.memory import MemorySpout

log = logging.getLogger("txstream.test")


def test_lines_and_records_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(Cli())
    lines = JsonLines("words")
    write_as_json(lines)
    attempt = TransactionAttempt(Txid(7), attempt_id(3, 5))
    try:
        print_error("starting\nsoon")
        lines.epoch = lambda: 4
        log.warning("back")
        log.warning("%s failed", attempt)
        log.warning("txid %d", 7, extra={"about": attempt})
        with about(Txid(8)):
            log.warning("no attempt yet")
            print_error("still open")
        lines.ended_by = lambda: attempt
        print_error("the end")
    finally:
        context.show_lines_as()
        set_up_logs(Cli())
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one.pop("time")[-6:] for one in said] == ["+00:00"] * 7
    assert [one.pop("topology") for one in said] == ["words"] * 7
    nothing: dict[str, int | None] = {"txid": None, "attempt": None, "epoch": None}
    of_attempt = {"txid": 7, "attempt": attempt.attempt, "epoch": 3}
    assert said == [
        {"level": "info", "message": "starting\nsoon", **nothing},
        {"level": "warning", "message": "back", **nothing, "epoch": 4},
        {"level": "warning", "message": f"{attempt} failed", **of_attempt},
        {"level": "warning", "message": "txid 7", **of_attempt},
        {"level": "warning", "message": "no attempt yet", "txid": 8, "attempt": None, "epoch": 4},
        {"level": "info", "message": "still open", "txid": 8, "attempt": None, "epoch": 4},
        {"level": "info", "message": "the end", **of_attempt},
    ]


def test_another_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere:topology", "--log-format", "xml"]) == 2
    assert "--log-format takes text or json, not 'xml'" in capsys.readouterr().err


def test_what_a_run_says_names_its_batch_on_whatever_thread(tmp_path: Path) -> None:
    """Here the source says that a partition is away, while a batch is planned, and that it is back."""
    pytest.importorskip("prometheus_client")
    from support.measured import LINES, MeasuredRun, counting

    lines, said = JsonLines("words"), list[dict[str, Any]]()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(json.loads(lines.format(record)))  # type: ignore[method-assign]
    ours = logging.getLogger("txstream")
    ours.addHandler(handler)
    try:
        with MemorySpout("value string", LINES) as source:
            source.hide("lines/1", "away")
            run = MeasuredRun(counting(source), tmp_path / "state.db")
            run.start()
            run.wait_for(2)
            source.show("lines/1")
            run.wait_for(3)
            run.stop()
    finally:
        ours.removeHandler(handler)
    about = {one["message"].partition(" until")[0]: (one["txid"], one["attempt"]) for one in said}
    assert about["batches go on without partition lines/1"] == (1, None)
    assert about["batches have partition lines/1 again"] == (3, None)
