"""Planning against a real broker: where batches begin and end, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from support.kafka_topics import Topics, attempt, ranges, wait_until

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import DataLostError, ServiceUnavailableError, UsageError
from txstream.plugins.local.embedded import Services
from txstream.spouts.kafka import KafkaOptions, KafkaRange, KafkaSource
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator
from txstream.spouts.kafka.fetch import RangeFetcher

CONTEXT = SpoutContext("planning", "lines", {})
ATTEMPT = attempt()
MANY = 1_000_000


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def open_plan(topics: Topics) -> Iterator[Any]:
    opened: list[KafkaPartitionCoordinator] = []

    def start(*names: str, **options: Any) -> KafkaPartitionCoordinator:
        options.setdefault("client", KafkaOptions(partition_discovery_seconds=0.2))
        opened.append(KafkaSource(names, topics.address, **options).coordinator(CONTEXT))
        return opened[-1]

    yield start
    for coordinator in opened:
        coordinator.close()


def spans(plan: Mapping[str, KafkaRange | Unavailable]) -> dict[str, tuple[int, int]]:
    """Return start and end by partition number."""
    found = ((name.rpartition("/")[2], (meta.start, meta.end)) for name, meta in ranges(plan).items())
    return dict(sorted(found))


def after(
    last: Mapping[str, KafkaRange], plan: Mapping[str, KafkaRange | Unavailable]
) -> Mapping[str, KafkaRange]:
    return BatchMetas.from_plan(last, plan).positions()


def fill(topics: Topics, name: str, records: int, partition: int = 0) -> None:
    topics.send(name, [b"%d" % number for number in range(records)], partition)


def test_batches_take_every_record_once(topics: Topics, unique: str, open_plan: Any) -> None:
    other = topics.create(f"{unique}-other")
    topics.create(unique, 3)
    for number, records in enumerate((500, 40, 0)):
        fill(topics, unique, records, number)
    fill(topics, other, 60)
    coordinator = open_plan(unique, other)
    emitter = KafkaSource([unique, other], topics.address).emitter(CONTEXT)
    targets = coordinator.targets()
    assert coordinator.is_ready()
    assert coordinator.lag_records({}, targets) == 600
    last: Mapping[str, KafkaRange] = {}
    read: dict[str, list[int]] = {}
    sizes = []
    while not coordinator.reached(last, targets):
        plan = coordinator.plan(last, 150)
        assert plan == coordinator.plan(last, 150), "a plan follows from the places alone"
        metas = BatchMetas.from_plan(last, plan)
        sizes.append(sum(meta.end - meta.start for meta in metas.partitions.values()))
        for name, batch in emitter.emit_many(ATTEMPT, metas.partitions):
            read.setdefault(name, []).extend(batch.column("offset").to_pylist())
        assert coordinator.unreadable(metas.partitions) == {}
        last = metas.positions()
    emitter.close()
    assert sizes == [150, 150, 150, 150]
    assert read == {
        f"{unique}/0": list(range(500)),
        f"{unique}/1": list(range(40)),
        f"{other}/0": list(range(60)),
    }
    assert last[f"{unique}/2"].is_empty
    assert all(meta.topic_id for meta in last.values())
    assert coordinator.plan(last, 150) == {}
    assert coordinator.lag_records(last, targets) == 0


@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_few_new_records_are_read_with_the_plan(
    topics: Topics, unique: str, open_plan: Any, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are what was sent, though the emitter asks for nothing, and the broker tells only of partitions
    that have changed."""
    topics.create(unique, 3, configs={"compression.type": codec})
    source = KafkaSource(unique, topics.address)
    coordinator, emitter = open_plan(unique), source.emitter(CONTEXT)
    producer = topics.transactional_producer(unique)
    fill(topics, unique, 5, 0)
    last = after({}, coordinator.plan({}, MANY))
    assert coordinator.plan(last, MANY) == {}
    fetches: list[Any] = []
    monkeypatch.setattr(RangeFetcher, "_send", lambda *asked: fetches.append(asked))

    def read() -> dict[str, list[str]]:
        """Return the values of the next batch, by partition."""
        nonlocal last
        wait_until(lambda: len(coordinator.plan(last, MANY)) > 0, "there is something to plan")
        planned = ranges(coordinator.plan(last, MANY))
        assert planned.keys() == coordinator.read_ahead.keys()
        emitter.take_ahead(planned, coordinator.read_ahead)
        found: dict[str, list[str]] = {}
        for name, batch in emitter.emit_many(ATTEMPT, planned):
            found.setdefault(name[-1], []).extend(batch.column("value").to_pylist())
        last = after(last, planned)
        return found

    try:
        for partition, words in (("1", ["a", "b"]), ("0", ["c"]), ("1", ["d"])):
            topics.send(unique, [word.encode() for word in words], int(partition))
            assert read() == {partition: words}
        topics.transaction(producer, unique, [b"e", b"f"], commit=True, partition=2)
        assert read() == {"2": ["e", "f"]}
        assert fetches == []
        # An executor fetches what was aborted, so that it knows.
        topics.transaction(producer, unique, [b"gone"], commit=False, partition=2)
        topics.send(unique, [b"h"], 2)
        wait_until(lambda: spans(coordinator.plan(last, MANY)) == {"2": (3, 6)}, "all is seen")
        assert coordinator.read_ahead == {}
    finally:
        producer.close()
        emitter.close()


def test_max_records_per_partition(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique, 2)
    fill(topics, unique, 100, 0)
    fill(topics, unique, 5, 1)
    coordinator = open_plan(unique, max_records_per_partition=30)
    assert spans(coordinator.plan({}, MANY)) == {"0": (0, 30), "1": (0, 5)}
    assert spans(coordinator.plan({}, 8)) == {"0": (0, 6), "1": (0, 2)}


def test_latest_is_what_the_log_ended_with_when_the_run_began(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    topics.create(unique, 2)
    fill(topics, unique, 10)
    coordinator = open_plan(unique, start="latest")
    assert spans(coordinator.plan({}, MANY)) == {"0": (10, 10), "1": (0, 0)}
    fill(topics, unique, 3)
    # They are not committed yet; even so, what came meanwhile is not skipped.
    metas = BatchMetas.from_plan({}, coordinator.plan({}, MANY))
    assert (metas.partitions, sorted(metas.begun)) == ({}, [f"{unique}/0", f"{unique}/1"])
    targets = coordinator.targets()
    assert coordinator.lag_records({}, targets) == 3
    assert coordinator.lag_records(metas.positions(), targets) == 3
    # The next driver knows only what is committed.
    after_a_death = open_plan(unique, start="latest")
    assert spans(after_a_death.plan(metas.positions(), MANY)) == {"0": (10, 13)}


def test_a_log_whose_end_is_its_beginning_is_caught_up_once_its_first_place_is_committed(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    topics.create(unique)
    coordinator = open_plan(unique, start="latest")
    targets = coordinator.targets()
    assert coordinator.lag_records({}, targets) == 0
    assert not coordinator.reached({}, targets), "the next run would begin elsewhere"
    assert coordinator.reached(after({}, coordinator.plan({}, MANY)), targets)


def test_explicit_starts(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique, 4)
    for number in range(4):
        fill(topics, unique, 10, number)
    given = {f"{unique}/0": 4, f"{unique}/1": "earliest", f"{unique}/2": 10, "*": "latest"}
    coordinator = open_plan(unique, start=given)
    places = coordinator.plan({}, MANY)
    assert spans(places) == {"0": (4, 4), "2": (10, 10), "3": (10, 10)}
    assert coordinator.lag_records({}, coordinator.targets()) == 16
    last = after({}, places)
    assert coordinator.lag_records(last, coordinator.targets()) == 16
    assert spans(coordinator.plan(last, MANY)) == {"0": (4, 10), "1": (0, 10)}
    with pytest.raises(UsageError, match=f"begins {unique}/0 at offset 11, but its log ends at 10"):
        open_plan(unique, start={f"{unique}/0": 11}).plan({}, MANY)
    topics.delete_before(unique, 0, 6)
    with pytest.raises(DataLostError, match="offset 4: the log begins at offset 6"):
        open_plan(unique, start=given).plan({}, MANY)
    skipping = open_plan(unique, start=given, on_data_loss="skip").plan({}, MANY)
    meta = skipping[f"{unique}/0"]
    assert (meta.start, meta.end, meta.skipped_from) == (6, 6, 4)


def test_an_open_transaction_holds_the_end_back(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 5)
    producer = topics.transactional_producer(unique)
    producer.begin_transaction()
    producer.send(unique, b"open", partition=0)
    producer.flush(10)
    fill(topics, unique, 2)
    committed, everything = open_plan(unique), open_plan(unique, isolation_level="read_uncommitted")
    name = f"{unique}/0"
    wait_until(lambda: spans(everything.plan({}, MANY)) == {"0": (0, 8)}, "all is written")
    plan = committed.plan({}, MANY)
    assert spans(plan) == {"0": (0, 5)}
    targets = committed.targets()
    assert not committed.reached(after({}, plan), targets), "what is behind it was written before"
    assert committed.lag_records(after({}, plan), targets) == committed.held_back[name].records == 3
    assert not everything.reached(after({}, plan), everything.targets())
    # The place of a run that read uncommitted records is beyond what is stable, but not lost.
    assert committed.plan({name: KafkaRange(0, 8)}, MANY) == {}
    producer.commit_transaction()
    producer.close()
    wait_until(lambda: spans(committed.plan({}, MANY)) == {"0": (0, 9)}, "the transaction is committed")
    rest = committed.plan(after({}, plan), MANY)
    assert spans(rest) == {"0": (5, 9)}
    assert committed.reached(after(after({}, plan), rest), targets)
    assert committed.held_back == {}


def test_new_partitions_begin_at_their_beginning(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 5)
    coordinator = open_plan(unique, start="latest")
    last = after({}, coordinator.plan({}, MANY))
    topics.add_partitions(unique, 3)
    for number in range(3):
        fill(topics, unique, 4, number)
    wait_until(lambda: len(coordinator.plan(last, MANY)) == 3, "the new partitions are found")
    assert spans(coordinator.plan(last, MANY)) == {"0": (5, 9), "1": (0, 4), "2": (0, 4)}


def test_what_retention_took_is_lost_or_a_recorded_gap(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 100)
    name = f"{unique}/0"
    coordinator = open_plan(unique)
    last = after({}, coordinator.plan({}, 10))
    topics.delete_before(unique, 0, 10)
    assert spans(coordinator.plan(last, 5)) == {"0": (10, 15)}
    topics.delete_before(unique, 0, 60)
    with pytest.raises(DataLostError, match=f"{name} cannot go on at offset 10: .* begins at offset 60"):
        coordinator.plan(last, 5)
    with pytest.raises(DataLostError, match="cannot be read again from offset 0 to 10"):
        coordinator.unreadable(last)
    skipping = open_plan(unique, on_data_loss="skip")
    plan = skipping.plan(last, 5)
    assert plan[name] == KafkaRange(60, 65, last[name].topic_id, skipped_from=10, leader_epoch=0)
    assert skipping.plan(after(last, plan), 5)[name] == KafkaRange(
        65, 70, last[name].topic_id, leader_epoch=0
    )
    topics.delete_before(unique, 0, 100)
    plan = skipping.plan(last, 5)  # nothing is left to read, but the place moves on
    assert plan[name] == KafkaRange(100, 100, last[name].topic_id, skipped_from=10)
    with pytest.raises(DataLostError, match="cannot be read again"):  # a stored plan is never skipped
        skipping.unreadable(last)


def test_a_topic_created_again(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 10)
    name = f"{unique}/0"
    running, skipping = open_plan(unique), open_plan(unique, on_data_loss="skip")
    last = after({}, running.plan({}, MANY))
    topics.delete(unique)
    with pytest.raises(DataLostError, match=f"the topic '{unique}' no longer exists"):
        wait_until(lambda: running.plan(last, MANY).get("never"), "the loss is noticed")
    assert isinstance(skipping.plan(last, MANY)[name], Unavailable)
    topics.create(unique)
    restarted = open_plan(unique)
    for records in (0, 5):  # fewer than the old topic had: no goal may count as reached
        fill(topics, unique, records)
        targets = restarted.targets()
        assert not restarted.reached(last, targets)
        assert restarted.lag_records(last, targets) == records
    fill(topics, unique, 25)  # more than the old topic had: offsets alone do not show that it is another one
    with pytest.raises(DataLostError, match="deleted and created again"):
        wait_until(lambda: restarted.plan(last, MANY).get("never"), "the loss is noticed")
    with pytest.raises(DataLostError, match="deleted and created again"):
        wait_until(lambda: restarted.unreadable(last).get("never"), "the loss is noticed")
    wait_until(lambda: isinstance(skipping.plan(last, MANY)[name], KafkaRange), "the new topic is read")
    meta = skipping.plan(last, MANY)[name]
    assert (meta.start, meta.end, meta.skipped_from) == (0, 30, 10)
    assert meta.topic_id != last[name].topic_id
    assert skipping.reached({name: meta}, skipping.targets())
    assert not skipping.reached(last, skipping.targets())
    older = {name: replace(target, topic_id=last[name].topic_id) for name, target in targets.items()}
    assert skipping.reached({name: meta}, older), "a goal that was set before the topic went"


def test_a_log_that_was_cut_back(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 10)
    name = f"{unique}/0"
    coordinator = open_plan(unique)
    beyond = {name: KafkaRange(0, 11)}
    with pytest.raises(DataLostError, match="offset 11: the log ends at offset 10"):
        coordinator.plan(beyond, MANY)
    with pytest.raises(DataLostError, match="the log ends at offset 10"):
        coordinator.unreadable(beyond)
    assert open_plan(unique, on_data_loss="skip").plan(beyond, MANY)[name].skipped_from == 11


def test_a_missing_topic_is_said_within_seconds_and_not_created(topics: Topics, unique: str) -> None:
    topics.create(unique)
    began = time.monotonic()
    for names in ([f"{unique}-none"], [unique, f"{unique}-none"]):
        source = KafkaSource(names, topics.address)
        with pytest.raises(
            ServiceUnavailableError, match=f"topic '{unique}-none' does not exist.*txstream topic create"
        ):
            source.coordinator(SpoutContext("planning", "lines", {}, connect_timeout_seconds=1.5))
    assert time.monotonic() - began < 25, "kafka-python's own answer takes 30 s"
    assert f"{unique}-none" not in topics.admin.list_topics()


def test_one_missing_partition_does_not_touch_the_others(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique)
    fill(topics, unique, 4)
    coordinator = open_plan(unique)
    plan = coordinator.plan({f"{unique}/7": KafkaRange(0, 3)}, MANY)
    assert isinstance(plan[f"{unique}/7"], Unavailable)
    assert plan[f"{unique}/0"].end == 4
    assert set(coordinator.unreadable({f"{unique}/7": KafkaRange(0, 3)})) == {f"{unique}/7"}
