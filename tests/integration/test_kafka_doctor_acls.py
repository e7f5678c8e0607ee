"""`txstream doctor` asks a broker whose authorizer denies: each check names the operation that is missing,
and the kafka-acls command that it prints mends it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    ResourcePattern,
    ResourceType,
)
from support.kafka_topics import Topics

from txstream import (
    Count,
    DeadLetters,
    KafkaOptions,
    KafkaSource,
    OpaqueSpout,
    SqlState,
    SqlStateBolt,
    TransactionalTopologyBuilder,
)
from txstream.plugins.doctor.checks import Check
from txstream.plugins.doctor.examination import Examination
from txstream.plugins.local.embedded import EmbeddedKafka
from txstream.plugins.local.embedded.ports import HOST, free_port
from txstream.settings import Settings

PASSWORD = "correct-horse"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Two addresses of a broker with an authorizer: an administrator's, and one where `me` logs in, who may
    do nothing yet."""
    plain = free_port()
    asking = free_port(frozenset({plain}))
    controller = free_port(frozenset({plain, asking}))
    client = f"PLAINTEXT://{HOST}:{plain},SASL_PLAINTEXT://{HOST}:{asking}"
    overrides = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": client,
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
        ),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    folder = tmp_path_factory.mktemp("guarded")
    with EmbeddedKafka(folder, port=plain, controller_port=controller, overrides=overrides) as kafka:
        yield kafka.address, f"{HOST}:{asking}"


def type_as_administrator(address: str, command: str) -> None:
    """Do what a `kafka-acls.sh --add` does, for the administrator."""
    program, *words = shlex.split(command)
    assert program == "kafka-acls.sh"
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--allow-principal", required=True)
    parser.add_argument("--operation", action="append", required=True)
    resource = parser.add_mutually_exclusive_group(required=True)
    resource.add_argument("--topic")
    resource.add_argument("--group")
    given = parser.parse_args(words)
    kind = ResourceType.TOPIC if given.topic else ResourceType.GROUP
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_acls(
        [
            ACL(
                given.allow_principal,
                "*",
                ACLOperation[operation.upper()],
                ACLPermissionType.ALLOW,
                ResourcePattern(kind, given.topic or given.group),
            )
            for operation in given.operation
        ]
    )
    admin.close()


def examine(address: str, topic: str, folder: Path) -> dict[str, Check]:
    """Return the checks of Kafka by name. Nothing else is there."""
    options: dict[str, Any] = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": PASSWORD,
    }
    source = KafkaSource(topic, address, client=KafkaOptions(options), publish_group=f"{topic}-group")
    letters = DeadLetters(topic=f"{topic}-letters")
    builder = TransactionalTopologyBuilder("acls", "lines", OpaqueSpout(source), dead_letters=letters)
    state = SqlState(topic, key="value string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("lines", "value")
    settings = Settings(zookeeper=f"{HOST}:1", database=f"sqlite:///{folder / 'x.db'}", data_dir=folder)
    checks = Examination(settings, builder.build(), with_spark=False).ask()
    assert "horse" not in repr(checks)
    return {check.name: check for check in checks if check.name.startswith("kafka ")}


@pytest.mark.soak
def test_each_operation_is_named_and_what_is_said_mends_it(
    guarded: tuple[str, str], unique: str, tmp_path: Path
) -> None:
    administrator, address = guarded
    names = [f"kafka topic {unique}", f"kafka topic {unique}-letters", f"kafka group {unique}-group"]
    topic, letters, group = names
    with Topics(administrator) as topics:
        topics.create(unique)
        topics.create(f"{unique}-letters")
        topics.send(unique, [b"a"])
    found = examine(address, unique, tmp_path)
    assert set(names) == set(found)
    for name in names:
        assert not found[name].ok
        assert "User:me may not Describe it" in found[name].message
        assert "User:me" in str(found[name].remedy)
    # With the right to describe alone, each says what else it needs.
    for name in names:
        words = str(found[name].remedy).replace("--operation Read", "").replace("--operation Write", "")
        type_as_administrator(administrator, words)
    found = examine(address, unique, tmp_path)
    for name, operation in ((topic, "Read"), (letters, "Write"), (group, "Read")):
        assert not found[name].ok, found[name]
        assert f"User:me may not {operation}" in found[name].message
        assert f"--operation {operation}" in str(found[name].remedy)
        type_as_administrator(administrator, str(found[name].remedy))
    found = examine(address, unique, tmp_path)
    assert [check for check in found.values() if not check.ok] == []
    assert found[topic].message == "1 partition, readable"
