"""`benchmarks/acker.py` measures, and prints what scripts read."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("acker")


def test_the_ledger_is_measured(benchmark: Any) -> None:
    figures = benchmark.ledger_figures(3_000, 400, 2)
    assert figures["ledger_messages_per_second"] > 0
    assert set(figures["ledger_messages_per_second_by_ackers"]) == {"1", "2", "4"}
    assert 43 <= figures["bytes_per_pending_tree"] < 64


def test_the_price_is_that_of_one_acker_in_the_best_run_after_the_first(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter([9e9] * 4 + [120.0, 90, 80, 70] + [110.0, 100, 85, 75])
    cpu = iter(range(100))
    monkeypatch.setattr(benchmark, "rate", lambda spark, tuples, ackers: next(rates))
    monkeypatch.setattr(benchmark, "cpu_of_all", lambda: next(cpu))
    assert benchmark.topology_figures(None, 10, 2) == {
        "tracked_tuples_per_second": 100,
        "tracked_tuples_per_second_by_ackers": {"1": 100, "2": 85, "4": 75},
        "untracked_tuples_per_second": 120,
        "price_of_tracking": 1.2,
        "price_of_tracking_in_cpu_seconds": 1.0,
    }
