"""What a plan takes, what is lost and how much is left to read, over brokers that the test makes up.

The tests of a real cluster are in tests/integration/test_kafka_spout_plan.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from txstream.api.errors import DataLostError
from txstream.api.spouts import SpoutContext
from txstream.spouts import kafka_coordinator, kafka_log_ends
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka_coordinator import KafkaPartitionCoordinator
from txstream.spouts.kafka_protocol import EARLIEST, Leader, OffsetQuery, Partition, TopicInfo

ID = "an-id"
NO_EPOCH = -1  # tests/unit/test_kafka_leader_epochs.py has those
Open = Callable[..., KafkaPartitionCoordinator]


class Cluster:
    """One topic "t" on one broker. `logs` has the first offset and the end of each partition's log."""

    def __init__(self, *logs: tuple[int, int]) -> None:
        self.logs = list(logs)
        self.asked: list[Sequence[OffsetQuery]] = []

    def connect(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    def knows(self, node: int) -> bool:
        return True

    def alive(self, node: int, timeout_seconds: float) -> None:
        pass

    def topics(self, names: Iterable[str] | None, timeout_seconds: float) -> dict[str, TopicInfo]:
        return {"t": TopicInfo("t", ID, {number: Leader(1, NO_EPOCH) for number in range(len(self.logs))})}

    def offsets(
        self, leaders: Mapping[Partition, Leader], queries: Sequence[OffsetQuery], timeout_seconds: float
    ) -> tuple[dict[Partition, tuple[int, ...]], dict[int, Exception]]:
        self.asked.append(queries)

        def answers(log: tuple[int, int]) -> tuple[int, ...]:
            return tuple(log[0] if query == EARLIEST else log[1] for query in queries)

        return {partition: answers(self.logs[partition.number]) for partition in leaders}, {}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    made: list[KafkaPartitionCoordinator] = []

    def make(cluster: Cluster, **options: Any) -> KafkaPartitionCoordinator:
        monkeypatch.setattr(kafka_coordinator, "KafkaClient", lambda *_, **__: cluster)
        source = KafkaSource("t", "broker:9092", **options)
        made.append(KafkaPartitionCoordinator(source, SpoutContext("test", "lines", {})))
        return made[-1]

    yield make
    for one in made:
        one.close()


def taken(start: int, end: int, skipped_from: int | None = None) -> KafkaRange:
    return KafkaRange(start, end, ID, skipped_from)


# --- plans -----------------------------------------------------------------------------------------


def test_a_plan_goes_on_where_the_last_one_ended(opened: Open) -> None:
    plans = opened(Cluster((0, 9), (3, 5)))
    first: Any = plans.plan({}, 100)
    assert first == {"t/0": taken(0, 9), "t/1": taken(3, 5)}
    assert plans.plan(first, 100) == {}
    assert plans.plan({"t/0": taken(0, 4)}, 100) == {"t/0": taken(4, 9), "t/1": taken(3, 5)}


def test_a_place_at_the_logs_first_offset_or_at_its_end_has_lost_nothing(opened: Open) -> None:
    plans = opened(Cluster((4, 9), (4, 9)))
    assert plans.plan({"t/0": taken(0, 4), "t/1": taken(0, 9)}, 100) == {"t/0": taken(4, 9)}


@pytest.mark.parametrize("place", [3, 10])
def test_a_place_outside_of_the_log_is_lost_data(opened: Open, place: int) -> None:
    plans = opened(Cluster((4, 9)))
    with pytest.raises(DataLostError, match=f"cannot go on at offset {place}: the log"):
        plans.plan({"t/0": taken(0, place)}, 100)


@pytest.mark.parametrize(
    ("log", "place", "expected"),
    [
        ((4, 9), 3, taken(4, 9, skipped_from=3)),
        ((4, 4), 3, taken(4, 4, skipped_from=3)),
        ((4, 9), 10, taken(9, 9, skipped_from=10)),
    ],
    ids=["records behind it", "nothing behind it", "the log was cut back"],
)
def test_a_gap_is_recorded_even_if_nothing_is_read_behind_it(
    opened: Open, log: tuple[int, int], place: int, expected: KafkaRange
) -> None:
    """Otherwise the next plan meets the gap again, or reading goes on with no word of what is lost."""
    plans = opened(Cluster(log), on_data_loss="skip")
    found = plans.plan({"t/0": taken(0, place)}, 100)
    assert found == {"t/0": expected}
    assert plans.plan({"t/0": expected}, 100) == {}


# --- the first offsets of the logs ------------------------------------------------------------------


def test_what_came_since_the_last_look_is_planned_without_asking_where_the_logs_begin(opened: Open) -> None:
    cluster = Cluster((2, 9), (3, 3))
    plans = opened(cluster)
    last: Any = plans.plan({"t/1": taken(0, 3)}, 100)
    last = {"t/1": taken(0, 3), **last}
    cluster.asked.clear()
    cluster.logs = [(2, 12), (3, 4)]
    assert plans.plan(last, 100) == {"t/0": taken(9, 12), "t/1": taken(3, 4)}
    assert [EARLIEST in queries for queries in cluster.asked] == [False]


@pytest.mark.parametrize(
    "last",
    [
        {"t/0": taken(0, 9)},
        {"t/0": taken(0, 9), "t/1": taken(0, 4)},
        {"t/0": taken(0, 8), "t/1": taken(0, 7)},
        {"t/0": taken(0, 9), "t/1": taken(0, 5)},
    ],
    ids=["a partition without a place", "not all was taken", "not all of one was", "a plan is made again"],
)
def test_what_was_there_before_may_be_gone(opened: Open, last: Any) -> None:
    """Retention removes the oldest records, so a plan over such asks where the logs begin now."""
    cluster = Cluster((0, 9), (0, 5))
    plans = opened(cluster)
    plans.plan({"t/0": taken(0, 9), "t/1": taken(0, 5)}, 100)
    cluster.logs = [(10, 12), (7, 9)]
    cluster.asked.clear()
    with contextlib.suppress(DataLostError):
        plans.plan(last, 100)
    assert EARLIEST in cluster.asked[0]


def test_a_look_is_too_old_after_a_second(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster((0, 9))
    plans = opened(cluster)
    cluster.logs = [(0, 12)]
    plans.plan({"t/0": taken(0, 9)}, 100)
    later = time.monotonic() + 1.1
    monkeypatch.setattr(kafka_log_ends, "monotonic", lambda: later)
    cluster.asked.clear()
    plans.plan({"t/0": taken(9, 12)}, 100)
    assert EARLIEST in cluster.asked[0]


# --- stored plans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("on_data_loss", ["fail", "skip"])
def test_a_stored_plan_is_whole_from_the_logs_first_offset_to_its_end(
    opened: Open, on_data_loss: str
) -> None:
    plans = opened(Cluster((4, 9)), on_data_loss=on_data_loss)
    assert plans.unreadable({"t/0": taken(4, 9)}) == {}
    with pytest.raises(DataLostError, match="the log begins at offset 4"):
        plans.unreadable({"t/0": taken(3, 9)})
    with pytest.raises(DataLostError, match="the log ends at offset 9"):
        plans.unreadable({"t/0": taken(4, 10)})


# --- how much is left ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("starting_offsets", "lag"), [("earliest", 9), ("latest", 0), ({"t/0": 6, "t/1": "latest"}, 3)]
)
def test_the_lag_before_the_first_batch_counts_from_where_the_run_begins(
    opened: Open, starting_offsets: Any, lag: int
) -> None:
    cluster = Cluster((0, 9), (5, 5))
    plans = opened(cluster, starting_offsets=starting_offsets)
    targets = plans.targets()
    assert plans.lag_records({}, targets) == lag
    assert not plans.reached({}, targets), "the run's first places are not committed yet"


def test_the_lag_is_what_lies_between_the_places_and_the_ends(opened: Open) -> None:
    plans = opened(Cluster((0, 9), (2, 6)))
    targets = plans.targets()
    assert plans.lag_records({"t/0": taken(0, 4)}, targets) == 5 + 4
    last = {"t/0": taken(0, 9), "t/1": taken(2, 5)}
    assert plans.lag_records(last, targets) == 1
    assert not plans.reached(last, targets)
    assert plans.reached({**last, "t/1": taken(5, 6)}, targets)


def test_a_plan_tells_what_it_did_not_take(opened: Open) -> None:
    cluster = Cluster((0, 9), (2, 6))
    plans = opened(cluster, max_records_per_partition=3)
    last: Any = plans.plan({}, 5)
    assert plans.untaken_records == 13 - 5
    assert plans.lag_records(last, plans.targets()) == 13 - 5
    cluster.logs[1] = (2, 16)
    plans.plan(last, 100)
    assert plans.untaken_records == 23 - 5 - 2 * 3


@pytest.mark.parametrize("end", [9, 0])
def test_a_topic_created_again_is_not_caught_up_wherever_the_former_one_ended(opened: Open, end: int) -> None:
    """The next plan says what is lost. Even an empty topic is another one."""
    plans = opened(Cluster((0, end)))
    targets = plans.targets()
    last = {"t/0": KafkaRange(0, 20, "the former one's")}
    assert plans.lag_records(last, targets) == end
    assert not plans.reached(last, targets)
