"""`benchmarks/acker.py` runs, and prints what scripts read."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_one_object_has_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    benchmark = importlib.import_module("acker")
    small = ["--pending", "3000", "--messages", "400", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", ["acker.py", *small, "--json"])
    assert benchmark.main() == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["ledger_messages_per_second"] > 0
    assert set(figures["ledger_messages_per_second_by_ackers"]) == {"1", "2", "4"}
    assert 27 <= figures["bytes_per_pending_tree"] < 64
