"""Rows as they are in MySQL 9, for each `on_conflict`. A driver dies when it or its executors have written a
batch that is not committed yet, and its successor plans the batch anew without two partitions. What the first
attempt added is taken away, and what it replaced comes back. What must be there is written out here, and read
with plain SQL."""

from __future__ import annotations

import re
from typing import Any, Literal

import pytest
from mysql_servers import MySQLServer

from txstream import MemorySpout, OpaqueSpout, SqlAppendBolt, SqlTable, TransactionalTopologyBuilder
from txstream.api.state import OnConflict
from txstream.core.errors import StateValueError
from txstream.core.fault_points import Point
from txstream.testing import TopologyTest

AT_FIRST = [("ann", 1, 1), ("bob", 10, 1), ("cid", 100, 1)]
# txid 2 gets another "ann", or what is new where a key may not come twice, and "dan" and "eve".
SECOND = {"fail": ("new", 2), "ignore": ("ann", 2), "replace": ("ann", 2)}
FIRST_ATTEMPT = {
    "fail": [*AT_FIRST, ("dan", 20, 2), ("eve", 200, 2), ("new", 2, 2)],
    "ignore": [*AT_FIRST, ("dan", 20, 2), ("eve", 200, 2)],
    "replace": [("ann", 2, 2), *AT_FIRST[1:], ("dan", 20, 2), ("eve", 200, 2)],
}
UNDONE = [*AT_FIRST, ("eve", 200, 2)]
IN_THE_END = {
    "fail": [*AT_FIRST, ("dan", 20, 3), ("eve", 200, 2), ("new", 2, 3)],
    "ignore": [*AT_FIRST, ("dan", 20, 3), ("eve", 200, 2)],
    "replace": [("ann", 2, 3), *AT_FIRST[1:], ("dan", 20, 3), ("eve", 200, 2)],
}


# One transaction of the driver is undone by the database itself, shares of executors by the next attempt.
@pytest.mark.parametrize(
    ("commit", "point"), [("driver", Point.INSIDE_COMMIT), ("executors", Point.AFTER_WRITE)]
)
@pytest.mark.parametrize("on_conflict", ["fail", "ignore", "replace"])
def test_what_an_undone_attempt_did_is_taken_back(
    mysql: MySQLServer,
    unique: str,
    on_conflict: OnConflict,
    commit: Literal["driver", "executors"],
    point: Point,
) -> None:
    assert re.match(r"9\.", str(mysql.execute("SELECT VERSION()")[0][0]))
    url = mysql.create_database(unique)

    def rows() -> list[tuple[Any, ...]]:
        found = mysql.execute(f"SELECT customer, amount, txid FROM `{unique}`.latest ORDER BY customer")
        return [tuple(row) for row in found]

    given = {
        "p0": [("ann", 1), SECOND[on_conflict]],
        "p1": [("bob", 10), ("dan", 20)],
        "p2": [("cid", 100), ("eve", 200)],
    }
    order = {} if on_conflict == "fail" else {"order_by": "amount"}
    table = SqlTable("latest", "amount bigint", key="customer string", on_conflict=on_conflict)
    with MemorySpout("customer string, amount bigint", given, max_records_per_partition=1) as source:
        builder = TransactionalTopologyBuilder("latest", "orders", OpaqueSpout(source), commit=commit)
        store = builder.set_bolt("store", SqlAppendBolt(table, **order), parallelism=2)
        store.shuffle_grouping("orders")
        with TopologyTest(builder.build(), database=url) as test:
            test.commit(1)
            assert rows() == AT_FIRST
            test.crash(at=point, txid=2)
            assert rows() == (AT_FIRST if commit == "driver" else FIRST_ATTEMPT[on_conflict])
            source.hide("p0")
            source.hide("p1")
            test.restart()
            test.commit(2)
            assert rows() == UNDONE
            source.show("p0")
            source.show("p1")
            test.run()
            assert rows() == IN_THE_END[on_conflict]
            if on_conflict != "fail":
                return
            source.append("p1", ("eve", 3))
            source.append("p2", ("fay", 4))
            with pytest.raises(StateValueError, match="key customer='eve' is there since txid 2, and txid 4"):
                test.run()
            # The other share may be there: the next attempt of txid 4, which is not committed, takes it back.
            left = [row for row in rows() if commit == "driver" or row[2] < 4]
            assert left == IN_THE_END["fail"]
            committed = f"SELECT MAX(txid) FROM `{unique}`.txstream_batch WHERE committed_at IS NOT NULL"
            assert mysql.execute(committed) == [(3,)]
