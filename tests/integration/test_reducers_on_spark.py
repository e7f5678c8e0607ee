"""`Last` and users' own functions over Spark tasks: folded in each, merged, stored by both paths."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from support.row_files import RowFiles

import txstream.engine.batch.sizing
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.reducers import Count, Last, Max, Sum, custom
from txstream.api.spouts import OpaqueSpout
from txstream.api.state import SqlState
from txstream.api.topology import Topology
from txstream.bolts.aggregate import ReduceBolt
from txstream.bolts.sql import SqlStateBolt
from txstream.testing import TopologyTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[str, int | None, int | None, str | None]

TEXTS = ["", "a", "Z", "ä", "\uffff", "\U0001f980", None]


def rows_of(partition: str, seed: int) -> list[Row]:
    noise = random.Random(seed)
    rows: list[Row] = []
    for _ in range(30):
        at = noise.choice([None, *range(40)])
        x = noise.choice([None, *range(6, 600, 6)])
        rows.append((noise.choice("abcd"), at, x, noise.choice(TEXTS)))
    return rows


def storing(source: RowFiles, commit: Literal["driver", "executors"]) -> Topology:
    builder = TransactionalTopologyBuilder(
        "reducing", "log", OpaqueSpout(source, max_batch_records=45), parallelism=3, commit=commit
    )
    state = SqlState("found", key="word string", value="n bigint, newest bigint, gcd bigint, most string")
    factor = 1

    def common(left: int, right: int) -> int:
        return math.gcd(left, right) * factor

    store = SqlStateBolt(
        state,
        n=Count(),
        newest=Last("x", by=("at", "text")),
        gcd=custom(common, 0, field="x"),
        most=Max("text"),
    )
    builder.set_bolt("store", store, parallelism=2).fields_grouping("log", "word")
    # Which value is the last depends on fields that this bolt does not emit: it needs all tuples of a key.
    reduce = ReduceBolt("word", x=Last("x", by=("at", "text")), n=Count())
    builder.set_bolt("reduce", reduce, parallelism=2).fields_grouping("log", "word")
    per_batch = SqlState("per_batch", key="word string", value="x bigint, n bigint")
    again = SqlStateBolt(per_batch, x=Last("x", by="n"), n=Sum("n"))
    builder.set_bolt("again", again, parallelism=2).fields_grouping("reduce", "word")
    return builder.build()


def expected(batches: list[list[Row]]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for word in "abcd":
        every = [row for batch in batches for row in batch if row[0] == word]
        newest = None
        for batch in batches:
            mine = [row for row in batch if row[0] == word and row[2] is not None]
            if mine:
                newest = max(mine, key=place)[2]
        gcd = math.gcd(*(row[2] for row in every if row[2] is not None))
        texts = [row[3] for row in every if row[3] is not None]
        found[word] = (len(every), newest, gcd, max(texts, default=None))
    return found


def place(row: Row) -> list[tuple[bool, Any]]:
    return [(value is not None, value) for value in (row[1], row[3], row[2])]


@pytest.mark.parametrize("commit", ["driver", "executors"])
def test_every_task_folds_and_the_whole_is_right(
    spark: SparkSession,
    postgres_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commit: Literal["driver", "executors"],
) -> None:
    # Otherwise so few records would be worth only one Spark task.
    monkeypatch.setattr(txstream.engine.batch.sizing, "ONE_TASK_RECORDS", 0)
    monkeypatch.setattr(txstream.engine.batch.sizing, "_TWO_TASK_RECORDS", 0)
    partitions = {name: rows_of(name, seed) for seed, name in enumerate("pqr")}
    source = RowFiles(tmp_path / "rows", "word string, at int, x bigint, text string", partitions)
    with TopologyTest(storing(source, commit), spark=spark, database=postgres_url) as test:
        test.commit(1)
        test.process(2)
        test.fail(2)
        test.commit(2)
        test.run()
        emitted = test.emitted_by_txid("log")
        batches = [[(row[0], row[1], row[2], row[3]) for row in emitted[txid]] for txid in sorted(emitted)]
        assert sum(map(len, batches)) == 90
        assert len(batches) >= 2
        for rows in test.emitted_by_txid("reduce").values():
            assert len({word for word, *_ in rows}) == len(rows)
        whole = expected(batches)
        assert {row[2] for row in whole.values()} == {6}
        assert test.table("found") == whole
        assert test.table("per_batch") == {word: (row[1], row[0]) for word, row in whole.items()}
