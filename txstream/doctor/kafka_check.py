"""Kafka: brokers, and of each topic that a topology reads its partitions, the right to read it, and the
format of its records; the consumer groups; the topic for dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import CoordinatorNotAvailableError, GroupIdNotFoundError, KafkaError

from txstream.api.spouts import SpoutContext
from txstream.api.topology import Topology
from txstream.api.tracked_builder import TrackedTopology
from txstream.doctor.checks import Check, WrongError
from txstream.settings import Settings
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka_client import KafkaClient
from txstream.spouts.kafka_options import check_files
from txstream.spouts.kafka_protocol import (
    EARLIEST,
    Leader,
    Partition,
    PartitionError,
    TopicInfo,
    one_batch_request,
    partition_error,
    reason_of,
)
from txstream.wording import counted

_MAGIC_AT = 16
_NEWEST_FORMAT = 2
_AGAIN_SECONDS = 0.2


def look_at_brokers(settings: Settings) -> str:
    """Raises ServiceUnavailableError or UsageError."""
    client = KafkaClient(settings.require_kafka(), {}, client_id="txstream-doctor")
    try:
        client.connect(settings.connect_timeout_seconds)
        topics = client.topics(None, settings.connect_timeout_seconds)
    finally:
        client.close()
    return f"{settings.kafka} answers and shows {counted(len(topics), 'topic')}"


def kafka_sources(topology: Topology | None) -> dict[str, tuple[KafkaSource, str | None]]:
    """Return the sources in Kafka by component, each with the group that reads with it or gets its places."""
    if topology is None:
        return {}
    found: dict[str, tuple[KafkaSource, str | None]] = {}
    if isinstance(topology, TrackedTopology):
        for spout in topology.spouts:
            source = getattr(spout.instance, "source", None)
            if isinstance(source, KafkaSource):
                found[spout.id] = source, getattr(spout.instance, "group", None) or topology.id
    elif isinstance(topology.spout.source, KafkaSource):
        found[topology.components[0].id] = topology.spout.source, topology.spout.source.publish_group
    return found


def look_at_topics(
    source: KafkaSource, group: str | None, context: SpoutContext, letters: str | None
) -> Iterator[Check]:
    """Yield the checks of one source: each topic, its group, and the topic for dead letters."""
    seconds, address = context.connect_timeout_seconds, source.address(context)
    options = {
        name: value
        for name, value in source.client_options.items()
        if name not in ("fetch_max_bytes", "max_partition_fetch_bytes")
    }
    client = KafkaClient(address, options, client_id="txstream-doctor")
    try:
        client.connect(seconds)
        found = source.selection.look(client, (), seconds)
        for name in found if source.selection.pattern is not None else source.selection.names:
            yield _topic(client, name, found.get(name), seconds)
        if source.selection.pattern is not None and not found:
            yield Check(
                "kafka topics", True, f"none matches {source.selection} yet; new ones are found later"
            )
        if letters is not None:
            # It is written to, and perhaps may not be read.
            found = client.topics([letters], seconds)
            yield _topic(client, letters, found.get(letters), seconds, reads=False)
    finally:
        client.close()
    if group is not None:
        yield _group(group, options, address, seconds)


def _topic(
    client: KafkaClient, name: str, topic: TopicInfo | None, seconds: float, *, reads: bool = True
) -> Check:
    shown = f"kafka topic {name}"
    if topic is None:
        return Check(shown, False, f"does not exist at {client.bootstrap}", f"txstream topic create {name}")
    try:
        leaders = _leaders(client, topic)
        if not reads:
            return Check(shown, True, f"{counted(len(leaders), 'partition')}, for dead letters")
        return Check(shown, True, _read_a_little(client, topic, leaders, seconds))
    except WrongError as error:
        return Check(shown, False, str(error), error.remedy)


def _allow(client: KafkaClient, topic: TopicInfo) -> str:
    return (
        f"kafka-acls.sh --bootstrap-server {client.bootstrap} --add --allow-principal User:NAME "
        f"--operation Read --operation Describe --topic {topic.name}"
    )


def _leaders(client: KafkaClient, topic: TopicInfo) -> dict[Partition, Leader]:
    """Raises WrongError if the topic may not be described, or a partition has no leader."""
    if topic.refused:
        raise WrongError(f"Kafka does not describe it: {topic.refused}", _allow(client, topic))
    leaders = {Partition(topic.name, number): leader for number, leader in topic.leaders.items()}
    headless = sorted(place.number for place, leader in leaders.items() if not client.knows(leader.node))
    if headless or not leaders:
        raise WrongError(
            f"partitions {headless or 'unknown'} have no leader",
            f"start the brokers that hold them: kafka-topics.sh --bootstrap-server {client.bootstrap} "
            f"--describe --topic {topic.name}",
        )
    return leaders


def _read_a_little(
    client: KafkaClient, topic: TopicInfo, leaders: Mapping[Partition, Leader], seconds: float
) -> str:
    """Read the first record batch of each partition. Raises WrongError."""
    allow = _allow(client, topic)
    firsts, silent = client.offsets(leaders, [EARLIEST], seconds)
    for node, error in silent.items():
        raise WrongError(f"broker {node} does not answer: {reason_of(error)}", "start it, or open its port")
    formats: set[int] = set()
    for place, leader in leaders.items():
        first = firsts[place]
        if isinstance(first, PartitionError):
            raise WrongError(f"partition {place.number} cannot be read: {first}", allow)
        answer = client.ask({leader.node: [one_batch_request(place, leader, first[0])]}, seconds)[leader.node]
        if isinstance(answer, Exception):
            raise WrongError(
                f"partition {place.number} cannot be read: {reason_of(answer)}", "look into the broker's log"
            )
        data = answer[0].responses[0].partitions[0]
        refused = partition_error(data.error_code)
        if refused is not None:
            raise WrongError(f"partition {place.number} cannot be read: {refused}", allow)
        if data.records is not None and len(data.records) > _MAGIC_AT:
            formats.add(memoryview(data.records)[_MAGIC_AT])
    old = sorted(one for one in formats if one < _NEWEST_FORMAT)
    if old:
        raise WrongError(
            f"its oldest records are in message format {old[0]}, which txstream does not read",
            "begin behind them (starting_offsets), or copy the topic with a producer of Kafka 0.11 or newer",
        )
    empty = "" if formats else ", which are empty"
    return f"{counted(len(leaders), 'partition')}{empty}, readable"


def _group(group: str, options: Mapping[str, Any], address: str, seconds: float) -> Check:
    shown = f"kafka group {group}"
    check_files(options)
    known = {name: value for name, value in options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
    timeouts = {"request_timeout_ms": int(seconds * 1000), "bootstrap_timeout_ms": int(seconds * 1000)}
    try:
        admin = KafkaAdminClient(**{**known, **timeouts}, bootstrap_servers=address.split(","))
        try:
            described = _described(admin, group, time.monotonic() + seconds)
        finally:
            admin.close()
        refused = described.get("error")
    except (KafkaError, OSError) as error:
        refused = reason_of(error)
    if refused is None:
        return Check(shown, True, f"may be used; it has {counted(len(described['members']), 'member')} now")
    if GroupIdNotFoundError.__name__ in refused:
        return Check(shown, True, "may be used; it is not there yet")
    return Check(
        shown,
        False,
        f"Kafka does not describe it: {refused}",
        f"kafka-acls.sh --bootstrap-server {address} --add --allow-principal User:NAME "
        f"--operation Read --operation Describe --group {group}",
    )


def _described(admin: Any, group: str, deadline: float) -> Mapping[str, Any]:
    """Describe a group. The first question about any group makes Kafka create the topic that it keeps groups
    in, and until that is there, nobody answers for them."""
    while True:
        try:
            found: Mapping[str, Any] = admin.describe_groups([group])[group]
        except CoordinatorNotAvailableError:
            if time.monotonic() >= deadline:
                raise
            threading.Event().wait(_AGAIN_SECONDS)
        else:
            return found
