"""One of two brokers frozen or gone: what an outage costs, and that its partitions come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import KafkaConsumer
from support.kafka_topics import Topics, attempt, ranges, wait_until
from support.states import Rig, word_table

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.batch_metas import BatchMetas
from txstream.core.dead_letters import DeadLetter
from txstream.core.errors import PartitionUnavailableError
from txstream.core.transaction import Txid
from txstream.inspect.snapshot import Snapshot
from txstream.inspect.source import KAFKA_SOURCE, SourceNow, source_now
from txstream.plugins.local.embedded import EmbeddedKafka
from txstream.plugins.monitoring.letter_topic import Letters, follower
from txstream.settings import Settings
from txstream.spouts.kafka import KafkaOptions, KafkaRange, KafkaSource
from txstream.spouts.kafka.letter_topic import KafkaLetterTopic
from txstream.state import open_database

ATTEMPT = attempt()
MANY = 1_000_000
DEADLINE_SECONDS = 2.0  # for a plan; what cannot be read by then is left out


@pytest.fixture
def kafka(steady_kafka: EmbeddedKafka) -> EmbeddedKafka:
    return steady_kafka


@pytest.fixture
def topics(kafka: EmbeddedKafka) -> Iterator[Topics]:
    with Topics(kafka.address) as opened:
        yield opened


@pytest.fixture
def topic(topics: Topics, unique: str) -> str:
    """Partition 0 on broker 1, partition 1 on broker 2, ten records each."""
    topics.create(unique, replicas={0: [1], 1: [2]})
    for partition in (0, 1):
        topics.send(unique, [b"%d" % number for number in range(10)], partition)
    return unique


@pytest.fixture
def freeze(kafka: EmbeddedKafka) -> Iterator[Callable[..., None]]:
    """Stops a broker by SIGSTOP, and lets it go on."""

    def switch(frozen: bool, node: int = 2) -> None:
        process = kafka.identities[node].pid
        os.kill(process, signal.SIGSTOP if frozen else signal.SIGCONT)
        if frozen:  # the others still answer until its first thread has run
            wait_until(lambda: has_stopped(process), f"broker {node} has stopped")

    yield switch
    for node in kafka.nodes:
        switch(False, node)


def has_stopped(process: int) -> bool:
    states = [(task / "stat").read_text() for task in Path(f"/proc/{process}/task").iterdir()]
    return all(state.rpartition(") ")[2].startswith("T") for state in states)


def timed(call: Callable[[], object]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def test_a_frozen_broker_costs_one_deadline(
    kafka: EmbeddedKafka, topic: str, freeze: Callable[..., None]
) -> None:
    source = KafkaSource(topic, kafka.address, client=KafkaOptions(partition_discovery_seconds=0.5))
    coordinator = source.coordinator(SpoutContext("outage", "lines", {}))
    emitter = source.emitter(SpoutContext("outage", "lines", {}, fetch_timeout_seconds=2.0))
    on_both = ranges(coordinator.plan({}, MANY))
    list(emitter.emit_many(ATTEMPT, on_both))
    freeze(True)
    assert 0.75 * DEADLINE_SECONDS < timed(lambda: coordinator.plan({}, MANY)) < 2 * DEADLINE_SECONDS
    # Had each waited, they would have taken five deadlines.
    assert timed(lambda: [coordinator.plan({}, MANY) for _ in range(5)]) < 2 * DEADLINE_SECONDS
    plan = coordinator.plan({}, MANY)
    assert isinstance(plan[f"{topic}/1"], Unavailable)
    assert plan[f"{topic}/0"] == on_both[f"{topic}/0"]
    assert coordinator.is_ready()
    assert set(coordinator.unreadable(on_both)) == {f"{topic}/1"}
    with pytest.raises(PartitionUnavailableError, match=f"{topic}/1: "):
        coordinator.targets()
    with pytest.raises(PartitionUnavailableError, match=f"partition {topic}/1 gave nothing for 2 s"):
        list(emitter.emit_many(ATTEMPT, on_both))
    assert [b.num_rows for b in emitter.emit(ATTEMPT, f"{topic}/0", on_both[f"{topic}/0"])] == [10]
    freeze(False)
    wait_until(lambda: coordinator.plan({}, MANY) == on_both, "both partitions are planned again")
    assert coordinator.unreadable(on_both) == {}
    rows = {name: batch.num_rows for name, batch in emitter.emit_many(ATTEMPT, on_both)}
    assert rows == {f"{topic}/0": 10, f"{topic}/1": 10}
    emitter.close()
    coordinator.close()


@pytest.mark.soak
@pytest.mark.parametrize("frozen", [1, 2])
def test_a_start_goes_on_without_the_frozen_broker(
    kafka: EmbeddedKafka, topic: str, freeze: Callable[..., None], frozen: int
) -> None:
    freeze(True, frozen)
    coordinator = KafkaSource(topic, kafka.address).coordinator(SpoutContext("outage", "lines", {}))
    plan = coordinator.plan({}, MANY)
    # A partition's number is one less than its broker's.
    assert {name for name, meta in plan.items() if isinstance(meta, Unavailable)} == {f"{topic}/{frozen - 1}"}
    with pytest.raises(PartitionUnavailableError, match=f"{topic}/{frozen - 1}: "):
        coordinator.targets()
    freeze(False, frozen)
    wait_until(
        lambda: not any(isinstance(meta, Unavailable) for meta in coordinator.plan({}, MANY).values()),
        "both partitions are planned",
    )
    coordinator.close()


def test_a_partition_that_is_away_when_a_topology_begins_has_its_place_once_it_can_be_asked(
    topics: Topics, topic: str, freeze: Callable[..., None]
) -> None:
    source = KafkaSource(topic, topics.address, start="latest")
    context = SpoutContext("outage", "lines", {})
    coordinator = source.coordinator(context)
    freeze(True)
    metas = BatchMetas.from_plan({}, coordinator.plan({}, MANY))
    assert metas.begun == [f"{topic}/0"]
    assert set(metas.unavailable) == {f"{topic}/1"}
    topics.send(topic, [b"new"], 0)
    metas = BatchMetas.from_plan(metas.positions(), coordinator.plan(metas.positions(), MANY))
    assert {name: (meta.start, meta.end) for name, meta in metas.partitions.items()} == {
        f"{topic}/0": (10, 11)
    }
    last = metas.positions()
    coordinator.close()
    # The next driver knows only what is committed.
    coordinator = source.coordinator(context)
    freeze(False)
    wait_until(lambda: ranges_of(coordinator.plan(last, MANY)), "broker 2 answers again")
    topics.send(topic, [b"new"], 1)
    metas = BatchMetas.from_plan(last, coordinator.plan(last, MANY))
    assert (metas.begun, metas.partitions) == ([f"{topic}/1"], {})
    plan = ranges(coordinator.plan(metas.positions(), MANY))
    assert {name: (meta.start, meta.end) for name, meta in plan.items()} == {f"{topic}/1": (10, 11)}
    coordinator.close()


def ranges_of(plan: Mapping[str, KafkaRange | Unavailable]) -> list[KafkaRange]:
    return [meta for meta in plan.values() if isinstance(meta, KafkaRange)]


def test_a_broker_that_is_gone_and_comes_back(kafka: EmbeddedKafka, topics: Topics, topic: str) -> None:
    moving = topics.create(f"{topic}-moving", replicas={0: [2, 1]})
    topics.send(moving, [b"a", b"b", b"c"])
    source = KafkaSource([topic, moving], kafka.address, client=KafkaOptions(partition_discovery_seconds=0.5))
    coordinator = source.coordinator(SpoutContext("outage", "lines", {}))
    emitter = source.emitter(SpoutContext("outage", "lines", {}, fetch_timeout_seconds=2.0))
    planned = {
        name: KafkaRange(0, meta.end // 2, meta.topic_id, leader_epoch=0)
        for name, meta in ranges(coordinator.plan({}, MANY)).items()
    }
    list(emitter.emit_many(ATTEMPT, planned))
    kafka.stop_broker(2)
    assert timed(lambda: coordinator.plan({}, MANY)) < 2 * DEADLINE_SECONDS
    last = BatchMetas.from_plan({}, planned).positions()
    wait_until(
        lambda: isinstance(coordinator.plan(last, MANY)[f"{moving}/0"], KafkaRange), "broker 1 leads now"
    )
    plan = coordinator.plan(last, MANY)
    assert isinstance(plan[f"{topic}/1"], Unavailable)
    assert plan[f"{topic}/0"] == KafkaRange(5, 10, last[f"{topic}/0"].topic_id, leader_epoch=0)
    moved = plan[f"{moving}/0"]
    assert isinstance(moved, KafkaRange)
    assert [b.num_rows for b in emitter.emit(ATTEMPT, f"{moving}/0", moved)] == [2]
    with pytest.raises(PartitionUnavailableError, match=f"partition {topic}/1 gave nothing"):
        list(emitter.emit_many(ATTEMPT, planned))
    kafka.start_broker(2)
    wait_until(
        lambda: isinstance(coordinator.plan(last, MANY)[f"{topic}/1"], KafkaRange), "partition 1 is back"
    )
    # The epoch is that of the last record, not that of the leader that the broker has become since.
    back = KafkaRange(5, 10, last[f"{topic}/1"].topic_id, leader_epoch=0)
    assert coordinator.plan(last, MANY)[f"{topic}/1"] == back
    rows = {name: batch.num_rows for name, batch in emitter.emit_many(ATTEMPT, planned)}
    assert rows == {f"{topic}/0": 5, f"{topic}/1": 5, f"{moving}/0": 1}
    emitter.close()
    coordinator.close()


def test_status_says_at_once_which_partitions_of_an_idle_topology_are_away(
    kafka: EmbeddedKafka, topic: str, freeze: Callable[..., None]
) -> None:
    identity: Any = SimpleNamespace(spout=KAFKA_SOURCE, source={"topics": [topic]})
    committed = BatchMetas({f"{topic}/{number}": {"start": 0, "end": 4} for number in (0, 1)})
    progress: Any = SimpleNamespace(current=2, batches={1: SimpleNamespace(metas=committed)})
    snapshot = Snapshot("idle", identity, progress)
    settings = Settings(kafka=kafka.address)
    assert source_now(settings, snapshot) == SourceNow(lag_records=12)
    freeze(True)
    began = time.monotonic()
    found = source_now(settings, snapshot)
    assert time.monotonic() - began < DEADLINE_SECONDS  # what a run waits for such a broker
    assert found.lag_records is None
    assert {name: "broker 2 does not answer" in why for name, why in found.unavailable.items()} == {
        f"{topic}/1": True
    }
    assert found.lags == {f"{topic}/0": 6}, "of the others it is known"
    freeze(False)
    wait_until(lambda: source_now(settings, snapshot).lag_records == 12, "the lag is known again")


def test_without_any_broker_nothing_is_ready(kafka: EmbeddedKafka, topic: str) -> None:
    """Last, because it stops the cluster."""
    coordinator = KafkaSource(topic, kafka.address).coordinator(SpoutContext("outage", "lines", {}))
    planned = coordinator.plan({}, MANY)
    kafka.stop()
    plan = coordinator.plan({}, MANY)
    assert set(plan) == set(planned)
    assert all(isinstance(entry, Unavailable) for entry in plan.values())
    assert not coordinator.is_ready()
    assert timed(lambda: [coordinator.plan({}, MANY) for _ in range(5)]) < 2 * DEADLINE_SECONDS
    kafka.start()
    wait_until(lambda: coordinator.plan({}, MANY) == planned, "the cluster is back")
    assert coordinator.is_ready()
    coordinator.close()


@pytest.mark.soak
def test_dead_letters_wait_for_the_broker_of_their_topic(
    kafka: EmbeddedKafka,
    topics: Topics,
    unique: str,
    tmp_path: Path,
    freeze: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = f"{unique}-dead"
    topics.create(topic, replicas={0: [2]})
    url, noted = f"sqlite:///{tmp_path / 'state.db'}", list[Mapping[str, Txid]]()
    with closing(open_database(url)) as opened:
        made = Rig(opened, url, word_table()).join()
        for txid in (1, 2, 3):
            letter = DeadLetter(
                f"{unique}/0@{txid}",
                unique,
                0,
                txid,
                1_767_000_000_000,
                None,
                b"{",
                None,
                "parse",
                "E",
                "",
                "",
            )
            made.states.commit(replace(made.whole(made.next(txid), {"a": 1}), letters=[letter]))
        life = made.states.life
        connect = partial(KafkaLetterTopic, topic, kafka.address, {}, 2.0)
        letters = Letters(life.topology, life.uuid, topic, [made.states.store], connect)
        sender = follower(letters, lambda: Txid(4), dict, noted.append)
        freeze(True)
        sender.start()
        wait_until(lambda: "dead letters wait to be sent" in caplog.text, "a record has been given up")
        assert noted == []
        freeze(False)
        wait_until(lambda: noted == [{topic: 3}], "all are sent once the broker answers")
        sender.stop(60)
    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.address, auto_offset_reset="earliest", consumer_timeout_ms=5000
    )
    sent = [int(dict(record.headers)["__streams.errors.offset"]) for record in consumer]
    consumer.close()
    # At least once: a record that was given up may have come to the broker all the same.
    assert list(dict.fromkeys(sent)) == [1, 2, 3]
