"""docs/changes.md: what a topology that has run may change under its id."""

from __future__ import annotations

from typing import Any

import pytest
from support.guide import DOCS
from support.lists import each

from txstream import (
    BasicBolt,
    Count,
    DeadLetters,
    Max,
    MemorySpout,
    Min,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    Topology,
    TransactionalSpout,
    TransactionalTopologyBuilder,
)
from txstream.core.errors import TxstreamError
from txstream.testing import TopologyTest

ROWS = [("tea", 3), ("tea", 5)]
SOLD = SqlState("sold", "item string", "n bigint, top bigint")
GROWN = SqlState("sold", "item string", "n bigint, top bigint, low bigint", defaults={"low": 0})
COUNTED = {"n": Count(), "top": Max("price")}


class Pass(BasicBolt):
    """Takes nothing away, and may double a price."""

    output = "item string, price bigint"

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup["item"], tup["price"] * self.times))


def shop(
    source: MemorySpout,
    *,
    spout: Any = OpaqueSpout,
    state: SqlState = SOLD,
    reducers: Any = None,
    times: int | None = None,
    parallelism: int = 1,
    others: tuple[str, ...] = (),
    **options: Any,
) -> Topology:
    builder = TransactionalTopologyBuilder("shop", "sales", spout(source, max_batch_records=1), **options)
    reads = "sales"
    if times is not None:
        builder.set_bolt("pass", Pass(times), parallelism=parallelism).shuffle_grouping("sales")
        reads = "pass"
    stores = [("store", SqlStateBolt(state, **(reducers or COUNTED)))]
    stores += [(name, SqlStateBolt(SqlState(name, "item string", "n bigint"), n=Count())) for name in others]
    for name, bolt in stores:
        builder.set_committer_bolt(name, bolt, parallelism=parallelism).fields_grouping(reads, "item")
    return builder.build()


ALLOWED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "a new bolt": ({"times": 10}, {"tea": (2, 50)}),
    "parallelism": ({"parallelism": 3}, {"tea": (2, 5)}),
    "max_spout_pending": ({"max_spout_pending": 3}, {"tea": (2, 5)}),
    "dead letters asked for": ({"dead_letters": DeadLetters()}, {"tea": (2, 5)}),
    "another value column": (
        {"state": GROWN, "reducers": {**COUNTED, "low": Min("price")}},
        {"tea": (2, 5, 0)},
    ),
    "another state": ({"others": ("bought",)}, {"tea": (2, 5)}),
    "a reducer": ({"reducers": {"n": Count(), "top": Min("price")}}, {"tea": (2, 3)}),
}


@each("change", list(ALLOWED))
def test_the_next_run_goes_on(change: str, tmp_path: Any) -> None:
    changed, expected = ALLOWED[change]
    assert change in (DOCS / "changes.md").read_text(encoding="utf-8")
    url = f"sqlite:///{tmp_path}/{change.replace(' ', '_')}.db"
    source = MemorySpout("item string, price bigint", {"p": ROWS})
    with source, TopologyTest(shop(source), database=url) as test:
        test.commit(1)
        test.restart(shop(source, **changed))
        test.run()
        assert test.table("sold") == expected
        if change == "another state":
            assert test.table("bought") == {"tea": 1}  # from then on


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the semantics": ({"spout": TransactionalSpout}, "the semantics was opaque and is transactional now"),
    "another table name": (
        {"state": SqlState("sales", "item string", "n bigint, top bigint")},
        "the state tables were sold and are sales now",
    ),
    "a column less": (
        {"state": SqlState("sold", "item string", "n bigint"), "reducers": {"n": Count()}},
        "'top' removed",
    ),
    "a column's type": ({"state": SqlState("sold", "item string", "n double, top bigint")}, "n double"),
}


@each("change", list(REFUSED))
def test_it_needs_a_new_id(change: str, tmp_path: Any) -> None:
    changed, told = REFUSED[change]
    assert change in (DOCS / "changes.md").read_text(encoding="utf-8")
    url = f"sqlite:///{tmp_path}/{change.replace(' ', '_')}.db"
    source = MemorySpout("item string, price bigint", {"p": ROWS})
    with source, TopologyTest(shop(source), database=url) as test:
        test.commit(1)
        with pytest.raises(TxstreamError, match=told):
            test.restart(shop(source, **changed))
