"""`RateSpout` generates rows, the same each time it generates them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.inmemory import CONTEXT, attempt
from support.lists import each

from txstream.core.batch_metas import MetaCodec
from txstream.core.errors import DataLostError, TopologyError
from txstream.spouts import rate
from txstream.spouts.rate import RateRange, RateSpout

START = datetime(2026, 11, 21, 12, tzinfo=UTC)


class Clock:
    """A clock that must not be shipped to executors: pickling it fails."""

    def __init__(self, moment: datetime = START) -> None:
        self.seconds = moment.timestamp()

    def __call__(self) -> float:
        return self.seconds

    def __reduce__(self) -> Any:
        raise AssertionError("the clock stays on the driver")


def rows(source: RateSpout, metas: Any) -> list[dict[str, Any]]:
    emitter = pickle.loads(pickle.dumps(source)).emitter(CONTEXT)
    return [
        row
        for name, meta in metas.items()
        for batch in emitter.emit(attempt(1), name, meta)
        for row in batch.to_pylist()
    ]


def test_rows_come_due_at_their_rate() -> None:
    clock = Clock()
    source = RateSpout(4, clock=clock)
    coordinator = source.coordinator(CONTEXT)
    first = coordinator.plan({}, 100)
    assert rows(source, first) == [{"n": 0, "timestamp": START}]
    assert coordinator.plan(first, 100) == {}
    clock.seconds += 0.24
    assert coordinator.plan(first, 100) == {}
    clock.seconds += 0.01
    second = coordinator.plan(first, 100)
    assert rows(source, second) == [{"n": 1, "timestamp": START + timedelta(seconds=0.25)}]
    clock.seconds += 10
    assert coordinator.plan(second, 7)["0"] == RateRange(2, 9, first["0"].started_us)
    assert coordinator.untaken_records == 33
    clock.seconds -= 3600
    assert coordinator.plan(second, 100) == {}, "a clock that was set back"


def test_all_partitions_together_count_through() -> None:
    clock = Clock()
    source = RateSpout(100, 3, clock=clock)
    coordinator = source.coordinator(CONTEXT)
    last: dict[str, RateRange] = {}
    found: list[dict[str, Any]] = []
    for _ in range(9):
        clock.seconds += 0.017
        planned = coordinator.plan(last, 4)
        assert sum(meta.records for meta in planned.values()) <= 4
        assert all(
            row["n"] % 3 == int(name) for name in planned for row in rows(source, {name: planned[name]})
        )
        found += rows(source, planned)
        last |= planned
    found.sort(key=lambda row: row["n"])
    assert [row["n"] for row in found] == list(range(16))
    assert all(row["timestamp"] == START + timedelta(milliseconds=10 * row["n"]) for row in found)


def test_the_first_start_is_kept() -> None:
    """The metas keep it, so that a replay and a restart generate the same rows."""
    clock = Clock()
    source = RateSpout(1, clock=clock)
    planned = source.coordinator(CONTEXT).plan({}, 10)
    clock.seconds += 5
    later = RateSpout(1, clock=clock)
    more = later.coordinator(CONTEXT).plan(planned, 10)
    assert rows(later, planned) == [{"n": 0, "timestamp": START}]
    assert [row["timestamp"] for row in rows(later, more)] == [
        START + timedelta(seconds=n) for n in range(1, 6)
    ]


def test_a_slow_rate_is_not_put_off_by_plans_that_find_nothing() -> None:
    clock = Clock()
    coordinator = RateSpout(0.1, 2, clock=clock).coordinator(CONTEXT)
    first = coordinator.plan({}, 10)
    assert first.keys() == {"0"}
    for _ in range(9):
        clock.seconds += 1
        assert coordinator.plan(first, 10) == {}
    clock.seconds += 1
    assert coordinator.plan(first, 10).keys() == {"1"}


def test_a_given_start() -> None:
    clock = Clock(START - timedelta(hours=1))
    source = RateSpout(1, start=START, clock=clock)
    coordinator = source.coordinator(CONTEXT)
    assert coordinator.plan({}, 10) == {}
    clock.seconds += 3601
    assert [row["timestamp"] for row in rows(source, coordinator.plan({}, 10))] == [
        START,
        START + timedelta(seconds=1),
    ]


@each("per_second", [3, 0.3, 1 / 3, 1e6])
def test_times_do_not_drift(per_second: float) -> None:
    """The time of row n is n / rate, rounded down to a microsecond, however large n is."""
    source = RateSpout(per_second)
    n = 10**9
    (row,) = rows(source, {"0": RateRange(n, n + 1, 0)})
    exact = n / per_second
    assert abs(row["timestamp"].timestamp() - exact) < 0.001
    assert row["n"] == n


def test_long_ranges_come_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "_CHUNK_ROWS", 4)
    batches = list(RateSpout(1, 2).emitter(CONTEXT).emit(attempt(1), "1", RateRange(3, 13, 0)))
    assert [batch.num_rows for batch in batches] == [4, 4, 2]
    assert [n for batch in batches for n in batch.to_pydict()["n"]] == list(range(7, 27, 2))


@each("limit", [0, 1, 2, 7])
def test_an_end(limit: int) -> None:
    clock = Clock()
    source = RateSpout(1000, 3, limit_rows=limit, clock=clock)
    coordinator = source.coordinator(CONTEXT)
    targets = coordinator.targets()
    assert coordinator.lag_records({}, targets) == limit
    clock.seconds += 60
    planned = coordinator.plan({}, 1000)
    assert sorted(row["n"] for row in rows(source, planned)) == list(range(limit))
    assert coordinator.reached(planned, targets)
    assert coordinator.reached({}, targets) == (limit == 0)
    assert coordinator.plan(planned, 1000) == {}


def test_without_an_end_there_is_no_catching_up() -> None:
    with pytest.raises(TopologyError, match="give it limit_rows, or use until_txid"):
        RateSpout(1).coordinator(CONTEXT).targets()


@each(
    ("partition", "meta", "message"),
    [
        ("2", RateRange(0, 1, 0), "has the partitions 0 to 1, but '2' is planned"),
        ("x", RateRange(0, 1, 0), "but 'x' is planned"),
        ("1", RateRange(0, 6, 0), "with limit_rows=11 it has 5"),
    ],
)
def test_rows_that_it_does_not_have(partition: str, meta: RateRange, message: str) -> None:
    source = RateSpout(1, 2, limit_rows=11)
    with pytest.raises(DataLostError, match=message):
        rows(source, {partition: meta})


def test_metas_are_stored_as_json() -> None:
    codec = MetaCodec(RateSpout.meta_type)
    meta = RateRange(3, 5, 1_795_262_400_000_000)
    assert codec.decode_meta(codec.encode_meta(meta), "here") == meta


def test_identity_is_what_rows_are_made_of() -> None:
    assert RateSpout(5, 2, limit_rows=3).identity() == {
        "rows_per_second": 5.0,
        "partitions": 2,
        "start": None,
    }
    assert RateSpout(5, start=START).identity()["start"] == "2026-11-21T12:00:00+00:00"


@each(
    ("arguments", "message"),
    [
        ({"rows_per_second": 0}, "rows_per_second is 0; it must be more than 0"),
        ({"rows_per_second": -1}, "rows_per_second is -1"),
        ({"rows_per_second": float("nan")}, "rows_per_second is nan"),
        ({"rows_per_second": float("inf")}, "rows_per_second is inf"),
        ({"partitions": 0}, "partitions is 0; it must be at least 1"),
        ({"limit_rows": -1}, "limit_rows is -1"),
        ({"start": datetime(2026, 1, 1)}, "without a zone"),
    ],
)
def test_wrong_arguments(arguments: Any, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        RateSpout(**{"rows_per_second": 1, **arguments})
