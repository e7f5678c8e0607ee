"""One Spark session for all tests that run batches on it in this process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.runs import SPARK_STARTS_SOONER

from txstream.engine.spark.executor import WORK_PROPERTY
from txstream.engine.spark.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A user's session on `local[2]`, with the recipe's settings but for one. No test stops it.

    Its worker processes find the modules of `tests/`, since bolts that are defined there are pickled by name.
    """
    with pytest.MonkeyPatch.context() as patch:
        above = os.environ.get("PYTHONPATH")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(_TESTS), *([above] if above else [])]))
        for name, value in SPARK_STARTS_SOONER.items():
            patch.setenv(name, value)
        session = create_session(
            master="local[2]",
            conf={
                "spark.driver.memory": "512m",
                "spark.locality.wait": "1s",
                "spark.sql.shuffle.partitions": "2",
            },
            log_file=tmp_path_factory.mktemp("spark") / "spark.log",
        )
    yield session
    session.stop()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A loopback port on which nobody listens, and which nobody else gets while the test runs."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


@pytest.fixture(autouse=True)
def _spark_is_left_clean(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nothing persisted and no properties of a job may stay behind in the shared Spark."""
    yield
    if "spark" not in request.fixturenames:
        return
    session: SparkSession = request.getfixturevalue("spark")
    context = session.sparkContext
    assert dict(context._jsc.getPersistentRDDs()) == {}
    assert context.getLocalProperty(WORK_PROPERTY) is None
    assert not set(context.getJobTags())
