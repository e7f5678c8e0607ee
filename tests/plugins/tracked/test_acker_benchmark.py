"""What `benchmarks/acker.py` measures, and what it prints for scripts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("acker")


def test_the_ledger_is_measured(benchmark: Any) -> None:
    figures = benchmark.ledger_figures(3_000, 400, 2)
    assert figures["ledger_messages_per_second"] > 0
    assert set(figures["ledger_messages_per_second_by_ackers"]) == {"1", "2", "4"}
    assert 43 <= figures["bytes_per_pending_tree"] < 64


def test_the_price_is_that_of_one_acker_in_the_median_of_the_runs_after_the_first(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topology = sys.modules["tracked_topology"]
    rates = {0: [9e9, 120.0, 900, 110], 1: [9e9, 100.0, 1, 105], 2: [9e9, 80, 85, 90], 4: [9e9, 75, 1, 80]}
    rates = {ackers: [*some, *some] for ackers, some in rates.items()}  # on Spark and without it
    cpu = iter(range(100))
    monkeypatch.setattr(topology, "rate", lambda spark, tuples, ackers: rates[ackers].pop(0))
    monkeypatch.setattr(topology, "cpu_of_all", lambda: next(cpu))
    same = {"1": 1.0, "2": 1.0, "4": 1.0}
    assert benchmark.topology_figures(None, 10, 3) == {
        "tracked_tuples_per_second": 100,
        "tracked_tuples_per_second_by_ackers": {"1": 100, "2": 85, "4": 75},
        "untracked_tuples_per_second": 120,
        "price_of_tracking": 1.2,
        "price_in_cpu_seconds_by_ackers": same,
        "price_in_cpu_seconds_by_ackers_without_spark": same,
    }


def test_the_topology_is_measured_in_turns_with_and_without_tracking(benchmark: Any) -> None:
    found = sys.modules["tracked_topology"].medians(None, 50, (0, 1), 1)
    assert all(one.tuples_per_second > 0 for one in found.values())
