"""States of committers on a Spark cluster: executors that die when their tasks have written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.killed_states import KILLED, TESTS, TXIDS, attempts_of, expected
from support.on_spark import notes
from support.spark_standalone import SparkStandalone


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_an_executor_that_dies_when_it_has_written_counts_once(
    cluster: SparkStandalone, tmp_path: Path
) -> None:
    """No process, new or old, may keep a cached row that is no longer true."""
    driver = subprocess.run(
        [sys.executable, "-m", "support.killed_states", cluster.url, tmp_path],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    assert json.loads((tmp_path / "tables").read_text()) == [expected(txid) for txid in range(1, TXIDS + 1)]
    tasks = attempts_of(notes(tmp_path / "adds"), KILLED)
    assert len({attempt for attempt, _ in tasks}) == 1, "the attempt was failed instead"
    assert max(len(processes) for processes in tasks.values()) > 1, "no task ran twice"
