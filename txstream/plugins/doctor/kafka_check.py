"""Kafka: brokers, and of each topic that a topology reads its partitions, the right to read it, and the
format of its records; the consumer groups; the topic for dead letters."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import MemberToRemove
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    GroupIdNotFoundError,
    KafkaError,
    NotCoordinatorError,
)

from txstream.api.spouts import SpoutContext
from txstream.api.topology import Topology
from txstream.core.wording import counted
from txstream.plugins.doctor.checks import Check, WrongError
from txstream.plugins.tracked.builder import TrackedTopology
from txstream.settings import Settings
from txstream.spouts.kafka import KafkaSource
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.compaction import WHAT_FOLLOWS, compacted
from txstream.spouts.kafka.options import check_files
from txstream.spouts.kafka.protocol import (
    EARLIEST,
    Leader,
    Partition,
    PartitionError,
    TopicInfo,
    one_batch_request,
    partition_error,
    reason_of,
)

# Nobody answers for groups at the moment.
_NOT_YET = (CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError)
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
    rights = _Rights(address, str(options.get("sasl_plain_username") or "NAME"))
    client = KafkaClient(address, options, client_id="txstream-doctor")
    try:
        client.connect(seconds)
        found = source.selection.look(client, (), seconds)
        for name in found if source.selection.pattern is not None else source.selection.names:
            yield _topic(client, rights, name, found.get(name), seconds)
        if context.is_transactional:
            for name in compacted(client, found, seconds):
                yield Check(f"kafka topic {name}, compaction", True, f"note: it is compacted; {WHAT_FOLLOWS}")
        if source.selection.pattern is not None and not found:
            yield Check(
                "kafka topics", True, f"none matches {source.selection} yet; new ones are found later"
            )
        if letters is not None:
            found = client.topics([letters], seconds)
            with contextlib.closing(_admin(options, address, seconds)) as admin:
                yield _letters(client, admin, rights, letters, found.get(letters))
    finally:
        client.close()
    if group is not None:
        yield _group(group, options, rights, seconds)


@dataclass(frozen=True)
class _Rights:
    """What the account of the topology's `client` options may do."""

    bootstrap: str
    user: str

    def lacks(self, operation: str, kind: str, name: str, error: object = "") -> WrongError:
        """Return that an operation on a topic or a group is not allowed. `error` is what Kafka says."""
        return WrongError(
            f"User:{self.user} may not {operation} it" + (f": {error}" if error else ""),
            f"kafka-acls.sh --bootstrap-server {self.bootstrap} --add --allow-principal "
            f"{shlex.quote(f'User:{self.user}')} --operation {operation} --{kind} {name}",
        )

    def blamed(self, error: object, operation: str, topic: str, otherwise: str) -> WrongError:
        """Return what an error of Kafka about a topic means, when it was asked for this operation."""
        if "Authorization" in str(error):
            return self.lacks(operation, "topic", topic, error)
        return WrongError(f"{otherwise}: {error}", "look into the broker's log")


def _topic(client: KafkaClient, rights: _Rights, name: str, topic: TopicInfo | None, seconds: float) -> Check:
    try:
        leaders = _leaders(client, rights, name, topic)
        return Check(f"kafka topic {name}", True, _read_a_little(client, rights, name, leaders, seconds))
    except WrongError as error:
        return Check(f"kafka topic {name}", False, str(error), error.remedy)


def _letters(client: KafkaClient, admin: Any, rights: _Rights, name: str, topic: TopicInfo | None) -> Check:
    """Look at the topic for dead letters. It is written to, and perhaps may not be read."""
    try:
        leaders = _leaders(client, rights, name, topic)
        [described] = admin.describe_topics([name])
        if not _may("WRITE", described):
            raise rights.lacks("Write", "topic", name)
        return Check(f"kafka topic {name}", True, f"{counted(len(leaders), 'partition')}, for dead letters")
    except WrongError as error:
        return Check(f"kafka topic {name}", False, str(error), error.remedy)


def _may(operation: str, described: Mapping[str, Any]) -> bool:
    """Whether an operation is among those that Kafka says are allowed; True if it does not say."""
    allowed = described.get("authorized_operations")
    return not allowed or operation in allowed


def _leaders(
    client: KafkaClient, rights: _Rights, name: str, topic: TopicInfo | None
) -> dict[Partition, Leader]:
    """Raises WrongError if there is no such topic, it may not be described, or a partition has no leader."""
    if topic is None:
        raise WrongError(f"does not exist at {client.bootstrap}", f"txstream topic create {name}")
    if topic.refused:
        raise rights.blamed(topic.refused, "Describe", name, "Kafka does not describe it")
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
    client: KafkaClient, rights: _Rights, name: str, leaders: Mapping[Partition, Leader], seconds: float
) -> str:
    """Read the first record batch of each partition. Raises WrongError."""
    firsts, silent = client.offsets(leaders, [EARLIEST], seconds)
    for node, error in silent.items():
        raise WrongError(f"broker {node} does not answer: {reason_of(error)}", "start it, or open its port")
    formats: set[int] = set()
    for place, leader in leaders.items():
        first, what = firsts[place], f"partition {place.number} cannot be read"
        if isinstance(first, PartitionError):
            raise rights.blamed(first, "Describe", name, what)
        answer = client.ask({leader.node: [one_batch_request(place, leader, first[0])]}, seconds)[leader.node]
        if isinstance(answer, Exception):
            raise rights.blamed(reason_of(answer), "Read", name, what)
        data = answer[0].responses[0].partitions[0]
        refused = partition_error(data.error_code)
        if refused is not None:
            raise rights.blamed(refused, "Read", name, what)
        if data.records is not None and len(data.records) > _MAGIC_AT:
            formats.add(memoryview(data.records)[_MAGIC_AT])
    old = sorted(one for one in formats if one < _NEWEST_FORMAT)
    if old:
        raise WrongError(
            f"its oldest records are in message format {old[0]}, which txstream does not read",
            "begin behind them (start=), or copy the topic with a producer of Kafka 0.11 or newer",
        )
    empty = "" if formats else ", which are empty"
    return f"{counted(len(leaders), 'partition')}{empty}, readable"


def _admin(options: Mapping[str, Any], address: str, seconds: float) -> Any:
    check_files(options)
    known = {name: value for name, value in options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
    timeouts = {"request_timeout_ms": int(seconds * 1000), "bootstrap_timeout_ms": int(seconds * 1000)}
    return KafkaAdminClient(**{**known, **timeouts}, bootstrap_servers=address.split(","))


def _group(group: str, options: Mapping[str, Any], rights: _Rights, seconds: float) -> Check:
    shown = f"kafka group {group}"
    described: Mapping[str, Any] = {}
    may_read = True
    try:
        with contextlib.closing(_admin(options, rights.bootstrap, seconds)) as admin:
            described = _described(admin, group, time.monotonic() + seconds)
            may_read = _may_read(admin, group)
        refused = described.get("error")
    except (KafkaError, OSError) as error:
        refused = reason_of(error)
    is_new = refused is not None and GroupIdNotFoundError.__name__ in refused
    if refused is not None and not is_new:
        wrong = WrongError(f"Kafka does not describe it: {refused}", "look into the broker's log")
        if "Authorization" in refused:
            wrong = rights.lacks("Describe", "group", group, refused)
    elif not may_read:
        wrong = rights.lacks("Read", "group", group)
    elif is_new:
        return Check(shown, True, "may be used; it is not there yet")
    else:
        return Check(shown, True, f"may be used; it has {counted(len(described['members']), 'member')} now")
    return Check(shown, False, str(wrong), wrong.remedy)


def _may_read(admin: Any, group: str) -> bool:
    """Whether the account may be in a group and commit to it. Kafka does not say so about a group that is not
    there, so this asks to remove a member that nobody is, which needs the same right and changes nothing."""
    try:
        admin.remove_group_members(group, [MemberToRemove(f"txstream-doctor-{uuid.uuid4().hex}")])
    except GroupAuthorizationFailedError:
        return False
    except KafkaError:
        return True  # whatever it says about the member, the right was there
    return True


def _described(admin: Any, group: str, deadline: float) -> Mapping[str, Any]:
    """Describe a group. The first question about any group makes Kafka create the topic that it keeps groups
    in, and until that is there, nobody answers for them."""
    while True:
        try:
            found: Mapping[str, Any] = admin.describe_groups([group])[group]
        except _NOT_YET:
            if time.monotonic() >= deadline:
                raise
        else:
            not_yet = any(one.__name__ in str(found.get("error")) for one in _NOT_YET)
            if not not_yet or time.monotonic() >= deadline:
                return found
        threading.Event().wait(_AGAIN_SECONDS)
