"""`txstream run --log-format json`: each line on standard error is a JSON object with its topology."""

from __future__ import annotations

import json
import logging

import pytest

from txstream.cli import context
from txstream.cli.context import Cli, print_error
from txstream.cli.logs import JsonLines, set_up_logs, write_as_json
from txstream.cli.main import main
from txstream.transaction import TransactionAttempt, Txid, attempt_id

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
    finally:
        context.show_lines_as()
        set_up_logs(Cli())
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [one.pop("time")[-6:] for one in said] == ["+00:00"] * 4
    about = {"txid": 7, "attempt": attempt.attempt, "epoch": 3}
    assert said == [
        {"level": "info", "message": "starting\nsoon", "topology": "words"},
        {"level": "warning", "message": "back", "topology": "words", "epoch": 4},
        {"level": "warning", "message": f"{attempt} failed", "topology": "words", **about},
        {"level": "warning", "message": "txid 7", "topology": "words", **about},
    ]


def test_another_format_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere:topology", "--log-format", "xml"]) == 2
    assert "--log-format takes text or json, not 'xml'" in capsys.readouterr().err
