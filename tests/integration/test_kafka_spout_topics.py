"""Topics by a pattern and starts by timestamp, against a real broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from support.kafka_topics import Topics, ranges, wait_until

from txstream.api.spouts import SpoutContext, Unavailable
from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import DataLostError, ServiceUnavailableError
from txstream.plugins.local.embedded import EmbeddedKafka, Services
from txstream.plugins.local.embedded.ports import HOST, free_port
from txstream.spouts.kafka import KafkaOptions, KafkaRange, KafkaSource
from txstream.spouts.kafka.coordinator import KafkaPartitionCoordinator

CONTEXT = SpoutContext("topics", "lines", {})
MANY = 1_000_000
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(scope="module")
def topics(services: Services) -> Iterator[Topics]:
    with Topics(services.kafka) as opened:
        yield opened


@pytest.fixture
def open_plan(topics: Topics) -> Iterator[Any]:
    opened: list[KafkaPartitionCoordinator] = []

    def start(**options: Any) -> KafkaPartitionCoordinator:
        options = {
            "bootstrap": topics.address,
            "client": KafkaOptions(partition_discovery_seconds=0.2),
            **options,
        }
        opened.append(KafkaSource(**options).coordinator(CONTEXT))
        return opened[-1]

    yield start
    for coordinator in opened:
        coordinator.close()


def fill(topics: Topics, name: str, records: int, partition: int = 0) -> None:
    topics.send(name, [b"%d" % number for number in range(records)], partition)


def spans(plan: Mapping[str, KafkaRange | Unavailable]) -> dict[str, tuple[int, int]]:
    return {name: (meta.start, meta.end) for name, meta in ranges(plan).items()}


def after(
    last: Mapping[str, KafkaRange], plan: Mapping[str, KafkaRange | Unavailable]
) -> Mapping[str, KafkaRange]:
    return BatchMetas.from_plan(last, plan).positions()


def lost(plan: Any, what: str) -> None:
    """Call plan until it raises DataLostError: a loss is reported once a second look has confirmed it."""
    with pytest.raises(DataLostError, match=what):
        wait_until(lambda: plan().get("never"), "the loss is noticed")


# --- a pattern -------------------------------------------------------------------------------------------


def test_a_pattern_reads_what_matches_and_finds_new_topics(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    eu, us = topics.create(f"{unique}-eu", 2), topics.create(f"{unique}-us")
    other = topics.create(f"other-{unique}-eu")
    for name in (eu, us, other):
        fill(topics, name, 5)
    coordinator = open_plan(topic_pattern=f"{unique}-[a-z]+|__.*", start="latest")
    targets = coordinator.targets()
    first = coordinator.plan({}, MANY)
    assert spans(first) == {f"{eu}/0": (5, 5), f"{eu}/1": (0, 0), f"{us}/0": (5, 5)}
    assert coordinator.is_ready()
    last = after({}, first)
    assert coordinator.reached(last, targets)
    late = topics.create(f"{unique}-late")
    fill(topics, late, 7)
    fill(topics, us, 1)
    wait_until(lambda: f"{late}/0" in coordinator.plan(last, MANY), "the new topic is found")
    assert spans(coordinator.plan(last, MANY)) == {f"{late}/0": (0, 7), f"{us}/0": (5, 6)}
    last = after(last, coordinator.plan(last, MANY))
    assert coordinator.reached(last, targets)
    assert coordinator.lag_records({}, open_plan(topic_pattern=f"{unique}-.*").targets()) == 18


def test_a_group_gets_the_places_of_a_pattern_that_has_no_topic_at_first(
    topics: Topics, unique: str, open_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = open_plan(topic_pattern=f"{unique}-.*", publish_group=unique)
    coordinator.committed({})  # the first batch holds nothing
    topic = topics.create(f"{unique}-eu")
    fill(topics, topic, 3)
    wait_until(lambda: f"{topic}/0" in coordinator.plan({}, MANY), "the topic is found")
    coordinator.committed(after({}, coordinator.plan({}, MANY)))
    admin = KafkaAdminClient(bootstrap_servers=topics.address)
    place = TopicPartition(topic, 0)

    def stored() -> Any:
        found = admin.list_group_offsets([unique])[unique].get(place)
        return found is not None and found.offset == 3

    with closing(admin):
        wait_until(stored, "the group has the place")
    assert not [one for one in caplog.records if one.name.endswith("publish_group")]


def test_a_pattern_leaves_out_what_the_topology_writes_to_and_says_so_once(
    topics: Topics, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if it was read before: a place in it is no lost data."""
    lines, dead = topics.create(unique), topics.create(f"{unique}-dead")
    for name in (lines, dead):
        fill(topics, name, 5)
    pattern = f"{unique}.*"
    read_before = KafkaSource(topic_pattern=pattern, bootstrap=topics.address)
    with closing(read_before.coordinator(CONTEXT)) as coordinator:
        last = after({}, coordinator.plan({}, MANY))
    assert last.keys() == {f"{lines}/0", f"{dead}/0"}
    fill(topics, lines, 2)
    fill(topics, dead, 2)
    with closing(read_before.leaving_out(dead).coordinator(CONTEXT)) as coordinator:
        assert spans(coordinator.plan({}, MANY)) == {f"{lines}/0": (0, 7)}
        assert spans(coordinator.plan(last, MANY)) == {f"{lines}/0": (5, 7)}
        assert list(coordinator.targets()) == [f"{lines}/0"]
    said = [text for text in caplog.messages if "is not read" in text]
    assert said == [
        f"the topic {dead!r} matches {pattern!r} and is not read, because the topology writes to it"
    ]


def test_a_pattern_that_matches_nothing_waits(
    topics: Topics, unique: str, open_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = open_plan(topic_pattern=f"{unique}.*", start="latest")
    assert coordinator.targets() == {}
    begun = coordinator.plan({}, MANY)
    assert spans(begun) == {"(no topic yet)/0": (0, 0)}, "that the run has begun is stored"
    last = after({}, begun)
    assert coordinator.plan(last, MANY) == {}
    assert not coordinator.is_ready()
    assert coordinator.reached(last, {})
    said = [text for text in caplog.messages if unique in text]
    assert said == [f"no topic matches '{unique}.*' yet"]
    topics.create(unique)
    fill(topics, unique, 3)
    wait_until(coordinator.is_ready, "the topic is found")
    # The topic did not exist when the run began, so nothing of it is passed over.
    assert spans(coordinator.plan(last, MANY)) == {f"{unique}/0": (0, 3)}


def test_a_topic_of_a_pattern_that_goes_is_lost_data(topics: Topics, unique: str, open_plan: Any) -> None:
    kept, gone = topics.create(f"{unique}-kept"), topics.create(f"{unique}-gone")
    for name in (kept, gone):
        fill(topics, name, 5)
    pattern = f"{unique}-.*"
    running, skipping = (
        open_plan(topic_pattern=pattern),
        open_plan(topic_pattern=pattern, on_data_loss="skip"),
    )
    targets = running.targets()
    last = after({}, running.plan({}, MANY))
    skipping.plan(last, MANY)
    topics.delete(gone)
    lost(lambda: running.plan(last, MANY), f"the topic '{gone}' no longer exists")
    assert running.is_ready()
    fill(topics, kept, 1)
    wait_until(lambda: f"{gone}/0" in skipping.plan(last, MANY), "the other topic is missed")
    plan = skipping.plan(last, MANY)
    assert plan[f"{gone}/0"] == Unavailable(f"topic {gone!r} does not exist")
    assert plan[f"{kept}/0"] == KafkaRange(5, 6, last[f"{kept}/0"].topic_id, leader_epoch=0)
    assert skipping.reached(last, targets)


def test_a_topic_of_a_pattern_that_went_while_nothing_ran(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    """Only the stored places show the loss: neither readiness nor a reached goal may hide it."""
    topics.create(unique)
    fill(topics, unique, 5)
    last = after({}, open_plan(topic_pattern=f"{unique}.*").plan({}, 3))
    topics.delete(unique)
    restarted = open_plan(topic_pattern=f"{unique}.*")
    targets = restarted.targets()
    assert targets == {}
    assert restarted.is_ready()
    assert not restarted.reached(last, targets)
    lost(lambda: restarted.plan(last, MANY), f"the topic '{unique}' no longer exists")
    assert restarted.is_ready()
    replaying = open_plan(topic_pattern=f"{unique}.*")
    lost(lambda: replaying.unreadable(last), f"the topic '{unique}' no longer exists")


def test_a_named_topic_that_goes_is_told_when_it_is_the_only_one(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    topics.create(unique)
    fill(topics, unique, 5)
    coordinator = open_plan(topics=unique)
    last = after({}, coordinator.plan({}, 3))
    topics.delete(unique)
    lost(lambda: coordinator.plan(last, MANY), f"the topic '{unique}' no longer exists")
    assert coordinator.is_ready(), "otherwise no plan is asked for, and the run idles on"


# --- timestamps ------------------------------------------------------------------------------------------


def send_at(topics: Topics, name: str, *moments: datetime, partition: int = 0) -> None:
    for moment in moments:
        stamp = int(moment.timestamp() * 1000)
        topics.send(name, [moment.isoformat().encode()], partition, timestamp_ms=stamp)


def test_a_start_by_timestamp(topics: Topics, unique: str, open_plan: Any) -> None:
    topics.create(unique, 4)
    send_at(topics, unique, *(NOON + number * SECOND for number in range(10)))
    send_at(
        topics, unique, NOON + 9 * SECOND, NOON, partition=1
    )  # out of order: found by the first that fits
    send_at(topics, unique, NOON, NOON + SECOND, partition=2)
    start = NOON + 4 * SECOND
    coordinator = open_plan(topics=unique, start=start)
    expected = {f"{unique}/0": (4, 4), f"{unique}/1": (0, 0), f"{unique}/2": (2, 2), f"{unique}/3": (0, 0)}
    targets = coordinator.targets()
    first = coordinator.plan({}, MANY)
    assert spans(first) == expected
    assert coordinator.lag_records({}, targets) == 8
    between = start - timedelta(milliseconds=999, microseconds=999)
    assert spans(open_plan(topics=unique, start=between).plan({}, MANY)) == expected
    rules = {"*": start, f"{unique}/0": NOON + 8 * SECOND, f"{unique}/1": 1, f"{unique}/2": "earliest"}
    mixed = open_plan(topics=unique, start=rules)
    plan = mixed.plan({}, MANY)
    assert spans(plan) == {f"{unique}/0": (8, 8), f"{unique}/1": (1, 1), f"{unique}/3": (0, 0)}
    plan = mixed.plan(after({}, plan), MANY)
    assert spans(plan) == {f"{unique}/0": (8, 10), f"{unique}/1": (1, 2), f"{unique}/2": (0, 2)}
    # What comes after the end that stood for the timestamp is read, even if its own timestamp is older.
    send_at(topics, unique, NOON, partition=2)
    assert spans(coordinator.plan({}, MANY)) == expected
    last = after({}, first)
    taken = coordinator.plan(last, MANY)
    assert spans(taken) == {f"{unique}/0": (4, 10), f"{unique}/1": (0, 2), f"{unique}/2": (2, 3)}
    # Stored places go before starts, and partitions that appear later are read from their beginning.
    last = after(last, taken)
    topics.add_partitions(unique, 5)
    send_at(topics, unique, NOON, partition=4)
    wait_until(lambda: f"{unique}/4" in coordinator.plan(last, MANY), "the new partition is found")
    appeared = {f"{unique}/4": (0, 1)}
    assert spans(coordinator.plan(last, MANY)) == appeared
    restarted = open_plan(topics=unique, start=start)
    assert restarted.lag_records(last, restarted.targets()) == 1
    assert spans(restarted.plan(last, MANY)) == appeared


def test_a_start_by_timestamp_sees_what_the_reader_may_see(
    topics: Topics, unique: str, open_plan: Any
) -> None:
    topics.create(unique)
    send_at(topics, unique, NOON)
    producer = topics.transactional_producer(unique)
    producer.begin_transaction()
    stamp = int((NOON + SECOND).timestamp() * 1000)
    for number in range(3):
        producer.send(unique, b"open", partition=0, timestamp_ms=stamp + number)
    producer.flush(10)
    send_at(topics, unique, NOON + 2 * SECOND)
    start = NOON + SECOND + timedelta(milliseconds=1)
    name = f"{unique}/0"
    committed = open_plan(topics=unique, start=start)
    everything = open_plan(topics=unique, start=start, isolation_level="read_uncommitted")
    assert spans(everything.plan({}, MANY)) == {name: (2, 2)}
    last = after({}, committed.plan({}, MANY))
    assert last[name].end == 1, "the end is where the open transaction begins"
    producer.commit_transaction()
    producer.close()
    wait_until(lambda: spans(committed.plan(last, MANY)) == {name: (1, 6)}, "the transaction is committed")
    assert spans(open_plan(topics=unique, start=start).plan({}, MANY)) == {name: (2, 2)}


# --- what a user may see ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedKafka, str]]:
    """A broker with access rules, and its address for logging in; without a login, everything is allowed."""
    plain = free_port()
    login = free_port(frozenset({plain}))
    controller = free_port(frozenset({plain, login}))
    client = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{login}"
    overrides = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": client,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="mine";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    folder: Path = tmp_path_factory.mktemp("guarded")
    with EmbeddedKafka(folder, port=plain, controller_port=controller, overrides=overrides) as kafka:
        yield kafka, f"{HOST}:{login}"


def test_topics_that_may_not_be_described_are_reported_and_not_taken_for_gone(
    guarded: tuple[EmbeddedKafka, str], unique: str, open_plan: Any, caplog: pytest.LogCaptureFixture
) -> None:
    kafka, address = guarded
    mine = {
        "bootstrap": address,
        "client": KafkaOptions(
            {
                "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "me",
                "sasl_plain_password": "mine",
            }
        ),
    }
    with Topics(kafka.address) as topics:
        shown, withdrawn, hidden = (topics.create(f"{unique}-{kind}") for kind in ("a", "b", "hidden"))
        for name in (shown, withdrawn, hidden):
            fill(topics, name, 4)
        allow(topics, shown)
        allow(topics, withdrawn)
        with pytest.raises(
            ServiceUnavailableError, match=f"does not describe the topic '{hidden}': TopicAuth"
        ):
            open_plan(topics=[shown, hidden], **mine)
        coordinator = open_plan(topic_pattern=f"{unique}-.*", **mine)
        first = wait_for_plan(coordinator, {f"{shown}/0": (0, 4), f"{withdrawn}/0": (0, 4)})
        last = after({}, first)
        refused = Unavailable("TopicAuthorizationFailed")
        withdraw(topics, withdrawn)
        said = f"Kafka does not describe the topic {withdrawn!r}: TopicAuthorizationFailed"
        wait_until(lambda: coordinator.plan(last, MANY) and said in caplog.messages, "the right is gone")
        assert coordinator.plan(last, MANY) == {f"{withdrawn}/0": refused}
        assert coordinator.unreadable(first) == {f"{withdrawn}/0": refused}
        assert caplog.messages.count(said) == 1
        allow(topics, withdrawn)
        fill(topics, withdrawn, 1)
        wait_until(
            lambda: (
                f"{withdrawn}/0" in coordinator.plan(last, MANY)
                and refused not in coordinator.plan(last, MANY).values()
            ),
            "the right is back",
        )
        assert spans(coordinator.plan(last, MANY)) == {f"{withdrawn}/0": (4, 5)}


def wait_for_plan(
    coordinator: KafkaPartitionCoordinator, expected: dict[str, tuple[int, int]]
) -> Mapping[str, KafkaRange]:
    """Wait for a plan: rules reach a broker some time after they are made."""

    def planned() -> bool:
        plan = coordinator.plan({}, MANY)
        return not any(isinstance(meta, Unavailable) for meta in plan.values()) and spans(plan) == expected

    wait_until(planned, f"the plan is {expected}")
    return ranges(coordinator.plan({}, MANY))


def allow(topics: Topics, name: str) -> None:
    rules = [
        ACL("User:me", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, name))
        for operation in (ACLOperation.DESCRIBE, ACLOperation.READ)
    ]
    assert topics.admin.create_acls(rules)["failed"] == []


def withdraw(topics: Topics, name: str) -> None:
    resource = ResourcePatternFilter(ResourceType.TOPIC, name, ACLResourcePatternType.LITERAL)
    topics.admin.delete_acls([ACLFilter("User:me", "*", ACLOperation.ANY, ACLPermissionType.ANY, resource)])
