"""Sources that live on this machine, read by Spark's Python workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.row_files import RowFiles
from support.source_runs import SourceRun, Store, counting

from txstream.api.spouts import OpaqueSpout, TransactionalSpout
from txstream.engine.spark.spark_runner import SparkRunner
from txstream.examples import batch_spout
from txstream.plugins.files import FileSpout
from txstream.spouts.rate import RateSpout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("semantics", [OpaqueSpout, TransactionalSpout])
def test_workers_that_fail_and_die_while_they_read_cost_attempts_and_later_rows_are_read(
    spark: SparkSession, tmp_path: Path, semantics: Any
) -> None:
    store = Store()
    spout = RowFiles(tmp_path / "rows", partitions={"p": [(x,) for x in "abcd"], "q": [("x",)] * 5})
    spout.trip("fails", "p")
    topology = counting(semantics(spout, max_batch_records=3))
    first = SourceRun(topology, store, make_runner=partial(SparkRunner, spark.sparkContext)).complete()
    assert store.totals("value", "times") == {"a": 1, "b": 1, "c": 1, "d": 1, "x": 5}
    assert first.loop.statistics.failed_attempts >= 1
    spout.append("p", ("late",))
    spout.append("new", ("new",))
    spout.trip("dies", "new")
    second = SourceRun(topology, store, make_runner=partial(SparkRunner, spark.sparkContext)).complete()
    assert store.totals("value", "times") == {"a": 1, "b": 1, "c": 1, "d": 1, "x": 5, "late": 1, "new": 1}
    assert second.loop.statistics.failed_attempts >= 1


def test_files_rates_and_batches(spark: SparkSession, tmp_path: Path) -> None:
    make_runner = partial(SparkRunner, spark.sparkContext)
    (tmp_path / "logs").mkdir()
    for name in "ab":
        (tmp_path / "logs" / name).write_text("one\ntwo\n" * 50)
    files = SourceRun(
        counting(OpaqueSpout(FileSpout(tmp_path / "logs"), max_batch_records=60)), make_runner=make_runner
    ).complete()
    assert files.store_of_states.totals("value", "times") == {"one": 100, "two": 100}
    rate = SourceRun(
        counting(OpaqueSpout(RateSpout(1e9, 2, limit_rows=50)), "n"), make_runner=make_runner
    ).complete()
    assert rate.store_of_states.totals("n", "times") == dict.fromkeys(range(50), 1)
    batch_spout.add_orders(tmp_path / "orders.db", 200)
    orders = SourceRun(batch_spout.topology(str(tmp_path / "orders.db")), make_runner=make_runner).complete()
    assert orders.store_of_states.totals("city", "n") == dict.fromkeys(batch_spout.CITIES, 50)
