"""A broker that demands TLS and a password, and that soon closes idle connections."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.kafka_topics import Topics, attempt, ranges, wait_until

from txstream.api.spouts import SpoutContext
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.local.embedded import EmbeddedKafka, find_java
from txstream.plugins.local.embedded.ports import HOST, free_port
from txstream.spouts.kafka import KafkaOptions, KafkaSource

PASSWORD = "correct-horse"
MANY = 1_000_000


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A key store for the broker, and its certificate for clients."""
    folder = tmp_path_factory.mktemp("tls")
    keytool = str(find_java().path.resolve().with_name("keytool"))
    store = ["-alias", "broker", "-keystore", str(folder / "broker.p12"), "-storepass", PASSWORD]
    subject = ["-dname", "CN=broker", "-ext", f"SAN=ip:{HOST}", "-validity", "2"]
    for command in (
        ["-genkeypair", *store, "-storetype", "PKCS12", "-keyalg", "EC", *subject],
        ["-exportcert", *store, "-rfc", "-file", str(folder / "broker.pem")],
    ):
        subprocess.run([keytool, "-J-XX:TieredStopAtLevel=1", *command], check=True, capture_output=True)
    return folder / "broker.p12", folder / "broker.pem"


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, certificate: tuple[Path, Path]
) -> Iterator[tuple[EmbeddedKafka, str]]:
    """The broker, and the address of its SASL_SSL listener."""
    plain = free_port()
    secure = free_port(frozenset({plain}))
    controller = free_port(frozenset({plain, secure}))
    client = f"PLAINTEXT://{HOST}:{plain},SASL_SSL://{HOST}:{secure}"
    overrides = {
        "listeners": f"{client},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": client,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": (
            f'org.apache.kafka.common.security.plain.PlainLoginModule required user_me="{PASSWORD}";'
        ),
        "ssl.keystore.location": str(certificate[0]),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "connections.max.idle.ms": "1500",
    }
    folder = tmp_path_factory.mktemp("secured")
    with EmbeddedKafka(folder, port=plain, controller_port=controller, overrides=overrides) as kafka:
        yield kafka, f"{HOST}:{secure}"


def options(certificate: tuple[Path, Path], **changes: Any) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(certificate[1]),
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": "me",
        "sasl_plain_password": PASSWORD,
        **changes,
    }


def test_client_options_reach_driver_and_executor(
    secured: tuple[EmbeddedKafka, str], certificate: tuple[Path, Path], unique: str
) -> None:
    kafka, address = secured
    with Topics(kafka.address) as topics:
        topics.create(unique)
        topics.send(unique, [b"a", b"b"])
    source = KafkaSource(unique, address, client=KafkaOptions(options(certificate)))
    context = SpoutContext("secured", "lines", {})
    coordinator, emitter = source.coordinator(context), source.emitter(context)
    plan = ranges(coordinator.plan({}, MANY))
    [batch] = emitter.emit(attempt(1), f"{unique}/0", plan[f"{unique}/0"])
    assert batch.column("value").to_pylist() == ["a", "b"]
    # Both connections are idle from here until the broker has closed them.
    idle_since = time.monotonic()
    wait_until(lambda: time.monotonic() - idle_since > 3.0, "the broker closes idle connections")
    assert coordinator.plan({}, MANY) == plan
    [batch] = emitter.emit(attempt(2), f"{unique}/0", plan[f"{unique}/0"])
    assert batch.num_rows == 2
    coordinator.close()
    emitter.close()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sasl_plain_password": "wrong-horse"}, "refuses the connection|refuse a user name, a password"),
        ({"sasl_mechanism": "SCRAM-SHA-256"}, "refuses the connection|or a mechanism"),
        ({"ssl_cafile": None}, "certificate verify failed"),
        ({"security_protocol": "SASL_PLAINTEXT", "ssl_cafile": None}, "no Kafka broker answered"),
    ],
)
def test_wrong_credentials_are_said_and_not_shown(
    secured: tuple[EmbeddedKafka, str],
    certificate: tuple[Path, Path],
    caplog: pytest.LogCaptureFixture,
    change: dict[str, Any],
    reason: str,
) -> None:
    source = KafkaSource("lines", secured[1], client=KafkaOptions(options(certificate, **change)))
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match=reason) as caught:
        source.coordinator(SpoutContext("secured", "lines", {}, connect_timeout_seconds=2.0))
    assert time.monotonic() - began < 15
    assert "horse" not in str(caught.value) + caplog.text
