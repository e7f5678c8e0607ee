"""Whether a place has survived in its log: verdicts over made-up replicas, and what they cost."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import kafka.errors as kafka_errors
import pytest

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.errors import DataLostError
from txstream.inspect.source import asked
from txstream.spouts.kafka import KafkaRange, KafkaSource, coordinator as kafka_coordinator
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator
from txstream.spouts.kafka.leader_epochs import LeaderEpochs
from txstream.spouts.kafka.protocol import (
    EpochEnd,
    Leader,
    OffsetQuery,
    Partition,
    PartitionError,
    PartitionLog,
    TopicInfo,
)

NAME = "t/0"
NODE = 1
EARLIEST = -2
ID = "00000000-0000-0000-0000-00000000000a"


@dataclass
class Replica:
    """A log: its records' leader epochs and values by offset, and how it answers, told as Kafka's own broker
    does (LeaderEpochFileCache.endOffsetFor). `began` is where it began to lead in the epoch it leads in."""

    records: list[tuple[int, str] | None] = field(default_factory=list)  # None: compaction has removed it
    first: int = 0
    leads: int = 0
    began: int = 0

    def lead(self, epoch: int) -> None:
        self.leads, self.began = epoch, len(self.records)

    def write(self, *values: str) -> None:
        self.records += [(self.leads, value) for value in values]

    def starts(self) -> dict[int, int]:
        """Where each epoch begins: the broker's table. Epochs of which nothing is left are not in it."""
        starts = {self.leads: self.began}
        for offset in range(self.first, len(self.records)):
            record = self.records[offset]
            if record is not None:
                starts[record[0]] = min(offset, starts.get(record[0], offset))
        return starts

    def end_of(self, epoch: int) -> EpochEnd:
        starts = self.starts()
        if epoch == max(starts):
            return EpochEnd(epoch, len(self.records))
        newer = [start for known, start in starts.items() if known > epoch]
        if not newer:
            return EpochEnd(-1, -1)
        older = [known for known in starts if known <= epoch]
        return EpochEnd(max(older, default=epoch), min(newer))


@dataclass
class Cluster:
    """A client of one broker, which leads with the log that the test gives it."""

    log: Replica = field(default_factory=Replica)
    error: Exception | None = None
    newest: int | None = None
    asked: list[list[int]] = field(default_factory=list)
    looked_at: list[int] = field(default_factory=list)

    # what `LeaderEpochs` asks

    def epoch_ends(
        self, questions: Mapping[Partition, tuple[Leader, Sequence[int]]], _timeout: float
    ) -> tuple[dict[Partition, Any], dict[int, Exception]]:
        ((partition, (leader, epochs)),) = questions.items()
        assert leader.epoch == self.log.leads, "a broker refuses a question that names another epoch"
        assert all(0 <= epoch <= leader.epoch for epoch in epochs)
        self.asked.append(list(epochs))
        if isinstance(self.error, PartitionError):
            return {partition: self.error}, {}
        if self.error is not None:
            return {}, {leader.node: self.error}
        return {partition: {epoch: self.log.end_of(epoch) for epoch in epochs}}, {}

    def epoch_at(self, _partition: Partition, _leader: Leader, offset: int, _timeout: float) -> int | None:
        self.looked_at.append(offset)
        record = self.log.records[offset] if offset >= self.log.first else None
        return None if record is None else record[0]

    def newest_leader_epoch(self, _partition: Partition, _timeout: float) -> int | None:
        return self.newest

    # what `ClusterWatch` does

    def broker_failed(self, node: int, reason: str) -> None:
        pass

    def look_again(self) -> None:
        pass


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def epochs(cluster: Cluster) -> LeaderEpochs:
    served: Any = cluster
    return LeaderEpochs(served, served)


def shown(log: Replica) -> dict[str, PartitionLog]:
    return {NAME: PartitionLog(log.first, len(log.records), ID, Leader(NODE, log.leads))}


def planned(epochs: LeaderEpochs, log: Replica, end: int, start: int = 0) -> KafkaRange:
    ranges, unavailable = epochs.complete({NAME: KafkaRange(start, end, ID)}, shown(log), 0.0)
    assert unavailable == {}
    return ranges[NAME]


def verdict(epochs: LeaderEpochs, log: Replica, place: KafkaRange) -> Any:
    lost, unavailable = epochs.judge({NAME: place}, shown(log), 0.0)
    return lost.get(NAME) or unavailable.get(NAME)


def history(*writes: tuple[int, str]) -> Replica:
    """A log that was written by leaders of these epochs."""
    log = Replica()
    for epoch, values in writes:
        log.lead(epoch)
        log.write(*values)
    return log


def test_a_range_has_the_epoch_of_its_last_record(cluster: Cluster, epochs: LeaderEpochs) -> None:
    log = cluster.log = history((0, "abc"), (2, ""), (3, "d"), (7, "ef"), (9, ""))
    found = {end: planned(epochs, log, end).leader_epoch for end in range(1, 7)}
    assert found == {1: 0, 2: 0, 3: 0, 4: 3, 5: 7, 6: 7}


def test_while_the_leader_stays_nothing_is_asked(cluster: Cluster, epochs: LeaderEpochs) -> None:
    log = cluster.log = history((0, "abc"))
    place = planned(epochs, log, 3)
    assert cluster.asked == [], "the first epoch has none before it"
    log.lead(1)
    assert verdict(epochs, log, place) is None
    assert cluster.asked == [[0]]
    for _ in range(20):
        log.write("x", "y")
        place = planned(epochs, log, len(log.records), place.end)
        assert (verdict(epochs, log, place), place.leader_epoch) == (None, 1)
    assert cluster.asked == [[0]]
    assert cluster.looked_at == []


def test_a_restart_asks_once(cluster: Cluster, epochs: LeaderEpochs) -> None:
    log = cluster.log = history((0, "a"), (4, "bc"), (6, "de"), (8, "f"))
    for end, epoch in ((6, 8), (5, 6), (3, 4), (1, 0)):
        served: Any = cluster
        again = LeaderEpochs(served, served)
        place = KafkaRange(0, end, ID, leader_epoch=epoch)
        assert not again.has(NAME, place)
        cluster.asked.clear()
        assert verdict(again, log, place) is None
        assert len(cluster.asked) == 1
        assert again.has(NAME, place)
        assert planned(again, log, end).leader_epoch == epoch
        assert len(cluster.asked) == 1


def test_a_long_past_is_searched_by_halves(cluster: Cluster, epochs: LeaderEpochs) -> None:
    log = cluster.log = history(*((epoch, "ab") for epoch in range(1000)))
    assert planned(epochs, log, 501).leader_epoch == 250
    assert len(cluster.asked) <= 12


def test_a_log_that_was_cut_back_and_has_grown_again(cluster: Cluster, epochs: LeaderEpochs) -> None:
    cluster.log = history((0, "abc"))
    place = planned(epochs, cluster.log, 3)
    cluster.log = history((0, "a"), (2, "BCDE"))
    found = verdict(epochs, cluster.log, place)
    assert found.go_on == 1, "where the log still is what it was"
    assert found.what == (
        "its last record was written in leader epoch 0, which now ends at offset 1; the log was cut back "
        "there and has gone on in epoch 2, to offset 5"
    )
    assert verdict(epochs, cluster.log, KafkaRange(0, 1, ID, leader_epoch=0)) is None


def test_a_replica_that_was_left_behind_leads_with_records_of_its_own(
    cluster: Cluster, epochs: LeaderEpochs
) -> None:
    """Its older epoch ends past our place, so where epochs end does not show it."""
    cluster.log = history((0, "abc"), (4, "de"))
    place = planned(epochs, cluster.log, 5)
    cluster.log = history((0, "abcDEFG"), (6, "H"))
    assert cluster.log.end_of(4) == EpochEnd(0, 7)
    found = verdict(epochs, cluster.log, place)
    assert found.go_on == 5
    assert "offset 4 is now one of epoch 0; another replica's log has taken over" in found.what


def test_compaction_and_retention_lose_no_place(cluster: Cluster, epochs: LeaderEpochs) -> None:
    log = cluster.log = history((0, "abc"), (4, "de"), (5, "fgh"))
    place = planned(epochs, log, 5)
    log.records[3:5] = [None, None]
    log.lead(6)
    for _ in range(3):
        assert verdict(epochs, log, place) is None
    assert cluster.looked_at == [4], "looked at once"
    log.lead(7)
    log.first = 5  # all that was read is gone
    assert verdict(epochs, log, place) is None
    log.first = 8
    assert planned(epochs, log, 8, 8).leader_epoch is None, "nothing is before this place"


def test_histories_of_three_replicas(cluster: Cluster, epochs: LeaderEpochs) -> None:
    """Leaders change, cleanly or not, and replicas fall behind. A place is lost exactly if the records before
    it are no longer those that were there when it was planned."""
    told = {True: 0, False: 0}
    for seed in range(200):
        chance = random.Random(seed)
        served: Any = cluster
        epochs = LeaderEpochs(served, served)
        replicas = [Replica() for _ in range(3)]
        leader = cluster.log = replicas[0]
        places: list[tuple[KafkaRange, list[Any]]] = []
        for step in range(40):
            match chance.randrange(5):
                case 0 | 1:
                    leader.write(*(f"{step}.{number}" for number in range(chance.randint(1, 4))))
                case 2:  # a follower cuts off what its leader does not have, and copies some of what it has
                    follower = chance.choice([one for one in replicas if one is not leader])
                    pairs = zip(follower.records, leader.records, strict=False)
                    same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                    shared = min(len(follower.records), len(leader.records)) if same is None else same
                    follower.records = leader.records[: chance.randint(shared, len(leader.records))]
                case 3:
                    epoch = leader.leads + chance.randint(1, 2)
                    leader = cluster.log = chance.choice(replicas)
                    leader.lead(epoch)
                case _ if leader.records:
                    end = chance.randint(1, len(leader.records))
                    places.append((planned(epochs, leader, end), leader.records[:end]))
                    assert (places[-1][0].leader_epoch,) == leader.records[end - 1][:1]  # type: ignore[index]
            for place, before in places:
                if place.end <= len(leader.records):
                    lost = before != leader.records[: place.end]
                    found = verdict(epochs, leader, place)
                    assert (found is not None) == lost, (seed, step, place, found)
                    assert epochs.has(NAME, place) != lost
                    told[lost] += 1
    assert min(told.values()) > 1000


def test_a_leader_that_has_not_heard_of_its_successor_is_not_believed(
    cluster: Cluster, epochs: LeaderEpochs
) -> None:
    cluster.log = history((0, "abc"), (3, "d"))
    place = KafkaRange(0, 6, ID, leader_epoch=5)
    for cluster.newest in (None, 5, 6):
        assert verdict(epochs, cluster.log, place) == Unavailable(
            "its leader has epoch 3, its place epoch 5; being checked"
        )
    cluster.newest = 3
    found = verdict(epochs, cluster.log, place)
    assert "no broker knows one after 3; the cluster was set back to an older copy" in found.what
    assert found.go_on == 4


def test_brokers_that_do_not_tell_are_named_once(
    cluster: Cluster, epochs: LeaderEpochs, caplog: pytest.LogCaptureFixture
) -> None:
    place = KafkaRange(0, 3, ID, leader_epoch=0)
    cluster.error = kafka_errors.IncompatibleBrokerVersion("OffsetForLeaderEpoch")
    with caplog.at_level(logging.WARNING):
        for leads in (2, 3):
            cluster.log = history((0, "a"), (leads, "BCDE"))
            assert verdict(epochs, cluster.log, place) is None
            assert planned(epochs, cluster.log, 5).leader_epoch is None
            assert epochs.has(NAME, place)
        cluster.log = history((-1, "abcde"))
        assert verdict(epochs, cluster.log, place) is None
        assert planned(epochs, cluster.log, 5).leader_epoch is None
    assert len(cluster.asked) == 1
    assert [record.message for record in caplog.records] == [
        "broker 1 does not report leader epochs (Kafka before 2.3): if a log is cut back and grows past what "
        "was read of it, that will not be noticed"
    ]


def test_a_log_without_epochs_is_read_on(
    cluster: Cluster, epochs: LeaderEpochs, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.log = history((2, "abc"))
    monkeypatch.setattr(cluster.log, "end_of", lambda _epoch: EpochEnd(-1, -1))
    assert verdict(epochs, cluster.log, KafkaRange(0, 3, ID, leader_epoch=0)) is None
    assert planned(epochs, cluster.log, 3).leader_epoch is None


@pytest.mark.parametrize(
    "error",
    [kafka_errors.KafkaTimeoutError("silent"), PartitionError("FencedLeaderEpoch", stale=True)],
    ids=["silent", "fenced"],
)
def test_a_leader_that_does_not_answer_makes_its_partition_unavailable(
    cluster: Cluster, epochs: LeaderEpochs, error: Exception
) -> None:
    log = cluster.log = history((0, "abc"), (2, "d"))
    cluster.error = error
    place = KafkaRange(0, 3, ID, leader_epoch=0)
    assert "does not report its epochs" in verdict(epochs, log, place).reason
    ranges, unavailable = epochs.complete({NAME: place}, shown(log), 0.0)
    assert (ranges, list(unavailable)) == ({}, [NAME])
    cluster.error = None
    assert verdict(epochs, log, place) is None


def test_places_without_an_epoch_are_not_judged(cluster: Cluster, epochs: LeaderEpochs) -> None:
    """They were stored before epochs were."""
    place = KafkaRange(0, 3, ID)
    cluster.log = history((0, "a"), (2, "BCDE"))
    assert epochs.has(NAME, place)
    assert verdict(epochs, cluster.log, place) is None
    assert cluster.asked == []


# --- the coordinator -----------------------------------------------------------------------------------


class Served(Cluster):
    """The cluster as the coordinator's and the watch's clients see it."""

    def connect(self, timeout_seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    def knows(self, node: int) -> bool:
        return True

    def ask(self, requests: Mapping[int, Any], timeout_seconds: float) -> dict[int, Exception]:
        return dict.fromkeys(requests, OSError("it is only asked for offsets and epochs"))

    def topics(self, names: object, timeout_seconds: float) -> dict[str, TopicInfo]:
        return {"t": TopicInfo("t", ID, {0: Leader(NODE, self.log.leads)})}

    def offsets(
        self, leaders: Mapping[Partition, Leader], specs: Sequence[OffsetQuery], timeout_seconds: float
    ) -> tuple[dict[Partition, Any], dict[int, Exception]]:
        bounds = [self.log.first if spec.spec == EARLIEST else len(self.log.records) for spec in specs]
        if any(leader.epoch != self.log.leads for leader in leaders.values()):
            return dict.fromkeys(leaders, PartitionError("FencedLeaderEpoch", stale=True)), {}
        return dict.fromkeys(leaders, tuple(bounds)), {}


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    cluster = Served()
    monkeypatch.setattr(kafka_coordinator, "KafkaClient", lambda *_, **__: cluster)
    return cluster


@pytest.fixture
def opened() -> Iterator[list[KafkaPartitionCoordinator]]:
    coordinators: list[KafkaPartitionCoordinator] = []
    yield coordinators
    for coordinator in coordinators:
        coordinator.close()


@pytest.fixture
def start(served: Served, opened: list[KafkaPartitionCoordinator]) -> Any:
    """A new driver."""

    def open_one(**options: Any) -> KafkaPartitionCoordinator:
        opened.append(KafkaSource("t", "nowhere:1", **options).coordinator(SpoutContext("t", "lines", {})))
        return opened[-1]

    return open_one


def test_a_place_that_is_lost_ends_the_run_or_is_a_gap(served: Served, start: Any) -> None:
    served.log = history((0, "abcde"))
    last = dict(start().plan({}, 4))
    assert last == {NAME: KafkaRange(0, 4, ID, leader_epoch=0)}
    served.log = history((0, "ab"), (2, "CDEFGH"))
    restarted = start()
    targets = restarted.targets()
    with pytest.raises(
        DataLostError, match=r"t/0 cannot go on at offset 4: .* epoch 0, .* epoch 2, to offset 8"
    ):
        restarted.plan(last, 10)
    with pytest.raises(DataLostError, match=r"cannot be read again from offset 0 to 4.* epoch 0, .* epoch 2"):
        restarted.unreadable(last)
    assert not restarted.reached(last, targets)
    skipping = start(on_data_loss="skip")
    behind = skipping.plan(last, 10)
    assert behind == {NAME: KafkaRange(2, 8, ID, skipped_from=4, leader_epoch=2)}
    assert skipping.plan(last, 10) == behind, "a replay finds the gap again"
    with pytest.raises(DataLostError, match="cannot be read again"):
        skipping.unreadable(last)
    assert skipping.unreadable(behind) == {}
    assert skipping.plan(behind, 10) == {}


def test_fsck_and_replay_find_the_place_that_is_lost(served: Served, start: Any) -> None:
    served.log = history((0, "abcde"))
    last = start().plan({}, 4)
    served.log = history((0, "ab"), (2, "CDEFGH"))
    coordinator = start()
    for ask in (lambda places: coordinator.plan(places, 1), coordinator.unreadable):
        assert isinstance(asked(last, ask)[NAME], DataLostError)


def test_no_goal_is_reached_before_the_place_is_judged(served: Served, start: Any) -> None:
    served.log = history((0, "abcde"))
    last = start().plan({}, 5)
    for now, sound in ((history((0, "abcde"), (1, "")), True), (history((1, "ABCDE")), False)):
        served.log = now
        restarted = start()
        targets = restarted.targets()
        assert restarted.lag_records(last, targets) == 0
        assert not restarted.reached(last, targets)
        if sound:
            assert restarted.plan(last, 5) == {}
            assert restarted.reached(last, targets)
        else:
            with pytest.raises(DataLostError, match="cannot go on at offset 5"):
                restarted.plan(last, 5)


def test_a_first_plan_waits_for_epochs(served: Served, start: Any) -> None:
    served.log = history((0, "abc"), (1, "d"))
    served.error = kafka_errors.KafkaTimeoutError("silent")
    coordinator = start()
    assert [type(one) for one in coordinator.plan({}, 5).values()] == [Unavailable]
