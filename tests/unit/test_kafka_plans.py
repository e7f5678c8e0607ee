"""What a plan takes, what is lost and how much is left to read, over brokers that the test makes up.

The tests of a real cluster are in tests/integration/test_kafka_spout_plan.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace as Document
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
import pytest

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.errors import DataLostError
from txstream.spouts.kafka import (
    KafkaRange,
    KafkaSource,
    coordinator as kafka_coordinator,
    log_ends as kafka_log_ends,
    log_tail as kafka_log_tail,
)
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator
from txstream.spouts.kafka.protocol import (
    EARLIEST,
    LATEST_WRITTEN,
    Leader,
    OffsetQuery,
    Partition,
    TopicInfo,
)

ID = "00000000-0000-0000-0000-00000000000a"
NO_EPOCH = -1  # tests/unit/test_kafka_leader_epochs.py has those
Open = Callable[..., KafkaPartitionCoordinator]


class Cluster:
    """One topic "t" on one broker, which keeps one fetch session. `logs` has the first offset and the end of
    each partition's log, `stable` where a partition has an open transaction. An answer to a fetch is given to
    `spoil` first."""

    def __init__(self, *logs: tuple[int, int], topic_id: str = ID) -> None:
        self.logs = list(logs)
        self.topic_id = topic_id
        self.stable: dict[int, int] = {}
        self.asked: list[Sequence[OffsetQuery]] = []
        self.fetches: list[dict[str, int]] = []
        self.sessions: list[tuple[int, int]] = []
        self.spoil: Callable[[Any], Any] = lambda answer: answer
        self._session = 0
        self._places: dict[int, int] = {}
        self._told: dict[int, tuple[int, int]] = {}

    def connect(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    def knows(self, node: int) -> bool:
        return True

    def alive(self, node: int, timeout_seconds: float) -> None:
        pass

    def topics(self, names: Iterable[str] | None, timeout_seconds: float) -> dict[str, TopicInfo]:
        return {
            "t": TopicInfo(
                "t", self.topic_id, {number: Leader(1, NO_EPOCH) for number in range(len(self.logs))}
            )
        }

    def offsets(
        self, leaders: Mapping[Partition, Leader], queries: Sequence[OffsetQuery], timeout_seconds: float
    ) -> tuple[dict[Partition, tuple[int, ...]], dict[int, Exception]]:
        self.asked.append(queries)

        def answer(number: int, query: OffsetQuery) -> int:
            first, end = self.logs[number]
            return (
                first if query == EARLIEST else self.stable.get(number, end) if query.read_committed else end
            )

        return {one: tuple(answer(one.number, query) for query in queries) for one in leaders}, {}

    def ask(self, requests: Mapping[int, Sequence[Any]], timeout_seconds: float) -> dict[int, Any]:
        """Answer a fetch as KIP-227 says. Its records are the offsets, as text."""
        ((node, (request,)),) = requests.items()
        asked = {one.partition: one.fetch_offset for topic in request.topics for one in topic.partitions}
        self.fetches.append({f"t/{number}": place for number, place in asked.items()})
        self.sessions.append((request.session_id, request.session_epoch))
        if request.session_epoch == 0:
            self._session, self._places, self._told = self._session + 1, {}, {}
        self._places |= asked
        changed = []
        for number, place in self._places.items():
            first, end = log = self.logs[number]
            stable = self.stable.get(number, end)
            records = ",".join(map(str, range(place, stable))).encode()
            is_there = first <= place <= end
            if records or not is_there or self._told.get(number) != log:
                self._told[number] = log
                changed.append(
                    Document(
                        partition_index=number,
                        error_code=0 if is_there else kafka_errors.OffsetOutOfRangeError.errno,
                        high_watermark=end,
                        last_stable_offset=stable,
                        log_start_offset=first,
                        records=records or None,
                        aborted_transactions=None,
                    )
                )
        answer = Document(
            error_code=0,
            throttle_time_ms=0,
            session_id=self._session,
            responses=[Document(topic_id=UUID(ID), partitions=changed)] if changed else [],
        )
        spoilt = self.spoil(answer)
        return {node: spoilt if isinstance(spoilt, Exception) else [spoilt]}


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


# --- plans by a fetch ------------------------------------------------------------------------------


def live(opened: Open, cluster: Cluster, **options: Any) -> tuple[KafkaPartitionCoordinator, Any]:
    """Return a coordinator that has planned all that there is, and where it is now."""
    plans = opened(cluster, **options)
    last: Any = plans.plan({}, 100)
    assert len(last) == len(cluster.logs)
    cluster.asked.clear()
    return plans, last


def test_few_new_records_are_planned_and_read_by_one_fetch(opened: Open) -> None:
    cluster = Cluster((2, 9), (0, 3))
    plans, last = live(opened, cluster)
    cluster.logs = [(2, 12), (0, 3)]
    assert plans.plan(last, 100) == {"t/0": taken(9, 12)}
    assert plans.read_ahead == {"t/0": b"9,10,11"}
    assert cluster.asked == []
    last |= {"t/0": taken(9, 12)}
    cluster.logs = [(2, 12), (0, 5)]
    assert plans.plan(last, 100) == {"t/1": taken(3, 5)}
    assert plans.read_ahead == {"t/1": b"3,4"}
    assert plans.plan(last, 1) == {"t/1": taken(3, 4)}, "what came before comes again"
    assert plans.read_ahead == {"t/1": b"3,4"}, "the rest of it serves the next range"
    assert cluster.asked == []
    assert cluster.fetches == [{"t/0": 9, "t/1": 3}, {"t/0": 12}, {}]
    assert cluster.sessions == [(0, 0), (1, 1), (1, 2)]


def test_nothing_is_read_ahead_while_many_records_wait(opened: Open) -> None:
    """A fetch would bring what an executor is going to fetch."""
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 5_009)]
    assert plans.plan(last, 500) == {"t/0": taken(9, 509)}
    assert len(cluster.fetches) == 1
    assert plans.plan({"t/0": taken(9, 509)}, 500) == {"t/0": taken(509, 1_009)}
    assert plans.read_ahead == {}
    assert len(cluster.fetches) == len(cluster.asked) == 1


@pytest.mark.parametrize(
    ("logs", "why"),
    [([(11, 12), (0, 3)], "the log begins"), ([(0, 7), (0, 3)], "the log ends")],
    ids=["retention was faster", "cut back"],
)
def test_a_place_that_is_gone_is_found_by_the_fetch(
    opened: Open, logs: list[tuple[int, int]], why: str
) -> None:
    cluster = Cluster((0, 9), (0, 3))
    plans, last = live(opened, cluster)
    cluster.logs = logs
    with pytest.raises(DataLostError, match=why):
        plans.plan(last, 100)
    assert EARLIEST in cluster.asked[0]


def test_a_partition_without_a_place_is_asked_where_it_begins(opened: Open) -> None:
    cluster = Cluster((0, 9), (3, 5))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 9), (4, 6)]
    del last["t/1"]
    assert plans.plan(last, 100) == {"t/1": taken(4, 6)}
    assert cluster.fetches == []


def test_a_place_that_another_plan_left_is_looked_at(opened: Open) -> None:
    """Also if nothing has come in its partition: it may be one that is lost."""
    cluster = Cluster((0, 9), (3, 5))
    plans, last = live(opened, cluster)
    assert plans.plan(last, 100) == {}
    lost = {**last, "t/1": KafkaRange(0, 5, "00000000-0000-0000-0000-00000000000b")}
    assert plans.plan(lost, 100) == {
        "t/1": Unavailable("its topic seems to have been created again; being checked")
    }
    assert cluster.asked == []


def refused(answer: Any) -> Any:
    answer.error_code = kafka_errors.FetchSessionIdNotFoundError.errno
    answer.responses = []
    return answer


def throttled(answer: Any) -> Any:
    answer.throttle_time_ms, answer.responses = 100, []
    return answer


def left_out(answer: Any) -> Any:
    answer.responses[0].partitions.pop()
    return answer


def failing(answer: Any) -> Any:
    answer.responses[0].partitions[0].error_code = kafka_errors.NotLeaderForPartitionError.errno
    return answer


def unknown(answer: Any) -> Any:
    answer.responses[0].partitions[0].high_watermark = -1
    answer.responses[0].partitions[0].last_stable_offset = -1
    return answer


@pytest.mark.parametrize(
    "spoil",
    [refused, throttled, left_out, failing, unknown, lambda _: kafka_errors.KafkaTimeoutError("late")],
    ids=["no such session", "throttled", "left out", "not the leader", "no end", "no answer"],
)
def test_a_fetch_that_does_not_tell_all_leaves_the_plan_to_questions(
    opened: Open, spoil: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(kafka_log_ends, "monotonic", lambda: now)
    cluster = Cluster((0, 9), (0, 3))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 12), (0, 4)]
    cluster.spoil = spoil
    wanted = {"t/0": taken(9, 12), "t/1": taken(3, 4)}
    assert plans.plan(last, 100) == wanted
    assert plans.read_ahead == {}
    assert len(cluster.fetches) == len(cluster.asked) == 1
    cluster.spoil = lambda answer: answer
    now += 0.9
    assert plans.plan(last, 100) == wanted
    assert len(cluster.fetches) == 1, "it is not tried with every plan"
    now += 0.2
    assert plans.plan(last, 100) == wanted
    assert plans.read_ahead == {"t/0": b"9,10,11", "t/1": b"3"}
    assert cluster.sessions[1][1] == 0, "a new session"


def test_a_session_ends_the_one_before_it(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_log_tail, "_LONGEST_SESSION", 2)
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    for _ in range(3):
        assert plans.plan(last, 100) == {}
    assert cluster.sessions == [(0, 0), (1, 1), (1, 0)]
    assert cluster.fetches == [{"t/0": 9}, {}, {"t/0": 9}]


def test_without_a_session_all_is_asked_for_each_time(opened: Open) -> None:
    """A broker that has no room for a further session answers as if there was none."""
    cluster = Cluster((0, 9), (0, 3))
    plans, last = live(opened, cluster)

    def no_session(answer: Any) -> Any:
        answer.session_id = 0
        return answer

    cluster.spoil = no_session
    for end in (10, 11):
        cluster.logs = [(0, end), (0, 3)]
        assert plans.plan(last, 100) == {"t/0": taken(9, end)}
    assert cluster.fetches == [{"t/0": 9, "t/1": 3}] * 2
    assert cluster.asked == []


def test_what_needs_to_know_of_aborted_transactions_is_not_read_ahead(opened: Open) -> None:
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 12)]

    def aborted(answer: Any) -> Any:
        answer.responses[0].partitions[0].aborted_transactions = [Document(producer_id=1, first_offset=9)]
        return answer

    cluster.spoil = aborted
    assert plans.plan(last, 100) == {"t/0": taken(9, 12)}
    assert plans.read_ahead == {}
    assert cluster.asked == []


def test_only_what_is_stable_is_planned(opened: Open) -> None:
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 12)]

    def open_transaction(answer: Any) -> Any:
        answer.responses[0].partitions[0].last_stable_offset = 10
        return answer

    cluster.spoil = open_transaction
    assert plans.plan(last, 100) == {"t/0": taken(9, 10)}
    reads_all, last = live(opened, cluster, isolation_level="read_uncommitted")
    cluster.logs = [(0, 14)]
    assert reads_all.plan(last, 100) == {"t/0": taken(12, 14)}


def test_records_that_begin_elsewhere_are_not_read_ahead(opened: Open) -> None:
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    cluster.logs = [(0, 12)]
    plans.plan(last, 100)
    assert plans._logs.new_records({"t/0": taken(9, 12)}) == {"t/0": b"9,10,11"}
    assert plans._logs.new_records({"t/0": taken(8, 12)}) == {}


def test_a_cluster_without_topic_ids_is_asked(opened: Open) -> None:
    cluster = Cluster((0, 9), topic_id="")
    plans, last = live(opened, cluster)
    assert plans.plan(last, 100) == {}
    assert len(cluster.asked) == 1
    assert cluster.fetches == []


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


@pytest.mark.parametrize(("start", "lag"), [("earliest", 9), ("latest", 0), ({"t/0": 6, "t/1": "latest"}, 3)])
def test_the_lag_before_the_first_batch_counts_from_where_the_run_begins(
    opened: Open, start: Any, lag: int
) -> None:
    cluster = Cluster((0, 9), (5, 5))
    plans = opened(cluster, start=start)
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


def test_what_lies_behind_an_open_transaction_is_lag(opened: Open) -> None:
    cluster = Cluster((0, 1_015), (2, 6))
    cluster.stable = {0: 10}
    plans = opened(cluster)
    targets = plans.targets()
    last: Any = plans.plan({}, 5_000)
    assert last == {"t/0": taken(0, 10), "t/1": taken(2, 6)}
    assert plans.lag_records(last, targets) == plans.untaken_records == 1_005
    assert not plans.reached(last, targets)
    assert {name: (one.records, one.behind) for name, one in plans.held_back.items()} == {
        "t/0": (1_005, "an open transaction")
    }
    cluster.stable, cluster.logs[0] = {}, (0, 1_020)
    further: Any = plans.plan(last, 1_005)
    assert further == {"t/0": taken(10, 1_015)}
    assert plans.held_back == {}
    assert plans.reached({**last, **further}, targets), "what was written before the targets were asked for"


def test_a_run_that_reads_what_is_not_committed_has_no_such_lag(opened: Open) -> None:
    cluster = Cluster((0, 1_015))
    cluster.stable = {0: 10}
    plans = opened(cluster, isolation_level="read_uncommitted")
    assert plans.plan({}, 5_000) == {"t/0": taken(0, 1_015)}
    assert plans.held_back == {}


def test_how_far_the_log_goes_behind_a_transaction_comes_with_the_fetch(opened: Open) -> None:
    cluster = Cluster((0, 9))
    plans, last = live(opened, cluster)
    cluster.stable, cluster.logs = {0: 9}, [(0, 12)]
    for _ in range(3):
        assert plans.plan(last, 100) == {}
        assert plans.held_back["t/0"].records == 3
    assert plans.untaken_records == 3
    assert (cluster.asked, len(cluster.fetches)) == ([], 3)


def test_the_end_of_the_log_is_asked_for_now_and_then(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no fetch tells it: the question goes with the others every few seconds, not with each plan."""
    now = 100.0
    monkeypatch.setattr(kafka_log_ends, "monotonic", lambda: now)
    cluster = Cluster((0, 9), topic_id="")
    cluster.stable = {0: 4}
    plans = opened(cluster)
    last: Any = {}
    for now in (100, 101, 104.9, 105, 106):  # noqa: B007 - the clock reads it
        last = {**last, **plans.plan(last, 100)}
        assert plans.held_back["t/0"].records == 5
    assert [LATEST_WRITTEN in queries for queries in cluster.asked] == [True, False, False, True, False]


@pytest.mark.parametrize("end", [9, 0])
def test_a_topic_created_again_is_not_caught_up_wherever_the_former_one_ended(opened: Open, end: int) -> None:
    """The next plan says what is lost. Even an empty topic is another one."""
    plans = opened(Cluster((0, end)))
    targets = plans.targets()
    last = {"t/0": KafkaRange(0, 20, "the former one's")}
    assert plans.lag_records(last, targets) == end
    assert not plans.reached(last, targets)
