"""The standalone Spark cluster with a real application on it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from txstream.api.errors import ServiceUnavailableError, UsageError
from txstream.embedded import SparkStandalone
from txstream.embedded.process import wait_until

APPLICATION = """
import os, sys
from pyspark.sql import SparkSession
spark = (
    SparkSession.builder.master(sys.argv[1]).config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC").getOrCreate()
)
seen = spark.sparkContext.parallelize(range(4), 4).map(lambda n: os.environ.get("FOR_WORKERS", "")).collect()
print(",".join(sorted(set(seen))), len(seen), flush=True)
sys.stdin.read()
"""


def test_an_application_runs_on_the_workers_and_survives_one(tmp_path: Path) -> None:
    environment: dict[str, str | None] = {"FOR_WORKERS": "yes", "PYSPARK_PYTHON": sys.executable}
    with SparkStandalone(tmp_path, workers=2, memory="512m", worker_env=environment) as cluster:
        assert cluster.registered_workers() == 2
        with subprocess.Popen(
            [sys.executable, "-c", APPLICATION, cluster.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        ) as application:
            assert application.stdout is not None
            try:
                assert application.stdout.readline().split() == ["yes", "4"]
                assert wait_until(lambda: len(cluster.executor_pids()) == 2, 30)
                lost, kept = cluster.executor_pids(1), cluster.executor_pids(2)
                assert len(lost) == len(kept) == 1
                cluster.kill_worker(1)
                assert wait_until(lambda: not psutil.pid_exists(lost[0]), 20)
                assert psutil.pid_exists(kept[0])
                assert cluster.executor_pids() == kept
                cluster.start_worker(1)
            finally:
                application.kill()
        pids = [psutil.Process(pid) for pid in cluster.executor_pids()]
        logs = cluster.log_paths
    assert all(log.is_file() for log in logs)
    assert wait_until(lambda: not any(process.is_running() for process in pids), 20)
    assert cluster.registered_workers() is None


def test_wrong_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        SparkStandalone(tmp_path, workers=0)
    with pytest.raises(UsageError, match="no Spark worker 3; they are 1 to 2"):
        SparkStandalone(tmp_path).kill_worker(3)
    with pytest.raises(ServiceUnavailableError, match="before it is started"):
        _ = SparkStandalone(tmp_path).url
