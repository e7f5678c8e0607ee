"""What a cluster is asked for when a topology says how many workers it wants."""

from __future__ import annotations

import logging

import pytest
from support.inmemory import MemoryLog, MemorySource

from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.errors import TopologyError
from txstream.api.reducers import Count
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.engine.spark.session import worker_settings


@pytest.mark.parametrize(
    ("workers", "slots", "cores", "most"), [(1, 4, 4, 4), (2, 4, 2, 4), (3, 4, 2, 6), (4, 1, 1, 4)]
)
@pytest.mark.parametrize("master", ["spark://host:7077", "yarn", "k8s://host"])
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
    source = OpaqueSpout(MemorySource(MemoryLog({}), "word string"))
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
