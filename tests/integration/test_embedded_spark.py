"""What the standalone Spark cluster refuses; test_spark_cluster.py runs a real application on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.spark_standalone import SparkStandalone

from txstream.core.errors import ServiceUnavailableError, UsageError


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        SparkStandalone(tmp_path, workers=0)
    with pytest.raises(UsageError, match="no Spark worker 3; they are 1 to 2"):
        SparkStandalone(tmp_path).kill_worker(3)
    with pytest.raises(ServiceUnavailableError, match="before it is started"):
        _ = SparkStandalone(tmp_path).url
    for asked in (SparkStandalone.registered_workers, lambda cluster: cluster.start_worker(1)):
        with pytest.raises(ServiceUnavailableError, match="before it is started"):
            asked(SparkStandalone(tmp_path))
