"""What Spark is started with: how many executors a topology wants, and how its Java compiles."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext
from support.lists import each
from support.on_spark import NotedSource

from txstream.api.bolts import BasicBolt, Bolt, DataFrameBolt, OutputCollector
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.api.tuples import Tuple
from txstream.bolts.sql import SqlStateBolt
from txstream.core.errors import ServiceUnavailableError, TopologyError
from txstream.engine.spark import session
from txstream.engine.spark.session import JAVA_OPTIONS, QUICK_JAVA, worker_settings
from txstream.engine.start.run_services import RunServices
from txstream.settings import Settings


@each(("workers", "slots", "cores", "most"), [(1, 4, 4, 4), (2, 4, 2, 4), (3, 4, 2, 6), (4, 1, 1, 4)])
@each("master", ["spark://host:7077", "yarn", "k8s://host"])
def test_a_cluster_is_asked_for_so_many_executors(
    workers: int, slots: int, cores: int, most: int, master: str
) -> None:
    assert worker_settings(workers, slots, master) == {
        "spark.executor.cores": str(cores),
        "spark.executor.instances": str(workers),
        "spark.cores.max": str(most),
    }


def test_without_a_number_spark_decides() -> None:
    assert worker_settings(None, 4, "spark://host:7077") == {}


@pytest.mark.parametrize("master", ["local[4]", "local", None])
def test_a_local_master_has_one_worker_and_says_so(
    master: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert worker_settings(1, 4, master) == {}
        assert not caplog.records
        assert worker_settings(2, 4, master) == {}
    assert "workers=2, but the master local" in caplog.text


def built(workers: int | None) -> Topology:
    source = OpaqueSpout(NotedSource(output="word string"))
    builder = TransactionalTopologyBuilder("t", "lines", source, workers=workers)
    state = SqlState("words", key="word string", value="n bigint")
    builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("lines", "word")
    return builder.build()


def test_a_topology_says_how_many_workers_it_wants() -> None:
    assert built(None).workers is None
    assert "worker" not in built(None).describe()
    assert built(2).workers == 2
    assert "2 workers asked for" in built(2).describe()
    with pytest.raises(TopologyError, match="workers is 0; it must be a whole number of at least 1"):
        built(0)


class InJava(DataFrameBolt):
    output = "word string"

    def transform(self, df: Any) -> Any:
        return df


class InPython(BasicBolt):
    output = "word string"

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        collector.emit([tup["word"]])


@pytest.mark.parametrize(
    ("bolt", "conf", "options"),
    [
        (InPython(), {}, f"{JAVA_OPTIONS} {QUICK_JAVA}"),
        (InJava(), {}, JAVA_OPTIONS),
        (InJava(), {"spark.driver.extraJavaOptions": "-Xss4m"}, "-Xss4m"),
    ],
)
def test_java_compiles_thoroughly_where_a_bolt_is_its_work(
    bolt: Bolt, conf: dict[str, str], options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A DataFrameBolt's loops run in Java, where the second compiler is worth its time."""
    launched: list[SparkConf] = []

    def launch(conf: SparkConf, *_: Any) -> None:
        launched.append(conf)
        raise ServiceUnavailableError("Java is not started here")

    monkeypatch.setattr(session, "launch", launch)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    source = OpaqueSpout(NotedSource(output="word string"))
    builder = TransactionalTopologyBuilder("t", "lines", source)
    builder.set_bolt("bolt", bolt).shuffle_grouping("lines")
    services = RunServices(builder._build(stacklevel=2), Settings(master="local[1]", spark_conf=conf))
    assert services._engine is not None
    with pytest.raises(ServiceUnavailableError, match="not started here"):
        services._engine.start()
    assert [conf.get("spark.driver.extraJavaOptions") for conf in launched] == [options]
