"""Orders joined with a table of users by the workers of a Spark session, which read SQLite. What batches hold
is seen in what their first bolt emitted; what each order must get is told by a dict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.row_files import RowFiles
from unit.test_lookups import FIELDS, joining, some_records, users_table

from txstream.core.fault_points import Point
from txstream.testing import TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_join_what_the_batches_say(spark: SparkSession, tmp_path: Path) -> None:
    source = RowFiles(tmp_path / "rows", FIELDS, {"p": some_records(3, 40)})
    table = users_table(removed_by="kind = 'gone'", index_txid=True)
    topology = joining(source, table=table, size=400, commit="executors")  # a batch is so many bytes
    with TopologyTest(topology, spark=spark, deadline_seconds=300) as test:
        test.crash(at=Point.AFTER_WRITE, txid=3)
        test.restart()
        test.run()
        users, orders = (test.emitted_by_txid("split", stream) for stream in ("users", "orders"))
        names: dict[str, str] = {}
        wanted: dict[int, tuple[str, str | None]] = {}
        for txid in sorted(users):
            for key, name, kind, _ in users[txid]:
                names[key] = name
                if kind == "gone":
                    del names[key]
            wanted |= {at: (key, names.get(key)) for at, key in orders[txid]}
        assert len(users) > 4
        assert test.table("joined") == wanted
