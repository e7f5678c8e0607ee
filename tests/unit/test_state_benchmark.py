"""`benchmarks/state.py` runs, and both of its sides write the same."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("state")


SMALL = ["--only", "sqlite", "--keys", "50", "--there", "100", "--rounds", "3"]


def test_every_case_is_measured(benchmark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark.main([*SMALL, "--directory", str(tmp_path), "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert [(figure["semantics"], figure["workload"]) for figure in figures] == [
        ("opaque", "updates"),
        ("opaque", "inserts"),
        ("transactional", "updates"),
        ("transactional", "inserts"),
    ]
    for figure in figures:
        best = max(figure["ways"].values())
        assert figure["bare_rows_per_second"] == best > 0
        assert figure["share"] == figure["commit_rows_per_second"] / best


def test_a_way_that_writes_something_else_is_refused(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = benchmark.SQLITE[0]
    monkeypatch.setattr(many, "execute", lambda self, parameters: None)
    with pytest.raises(SystemExit, match="the tables differ"):
        benchmark.main([*SMALL, "--directory", str(tmp_path)])
