"""The client against addresses where no Kafka answers: it keeps deadlines, and messages say what to do."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from txstream.api.errors import PartitionUnavailableError, ServiceUnavailableError, UsageError
from txstream.api.spouts import SpoutContext
from txstream.spouts.kafka import KafkaRange, KafkaSource
from txstream.spouts.kafka_client import KafkaClient
from txstream.transaction import AttemptId, TransactionAttempt, Txid


@pytest.fixture
def refusing() -> Iterator[str]:
    """An address that refuses connections."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that accepts connections and says nothing, as a frozen broker does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def hanging_up() -> Iterator[str]:
    """An address that closes every connection, as a proxy without a broker behind it does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("kind", ["refusing", "silent", "hanging_up"])
def test_connecting_has_a_deadline(kind: str, request: pytest.FixtureRequest) -> None:
    address = request.getfixturevalue(kind)
    source = KafkaSource("lines", address)
    began = time.monotonic()
    with pytest.raises(ServiceUnavailableError, match=f"no Kafka broker answered at {address} within 0.5 s"):
        source.coordinator(SpoutContext("counts", "lines", {}, connect_timeout_seconds=0.5))
    assert time.monotonic() - began < 8, "ten seconds are the default"


def test_on_an_executor_it_is_an_outage(refusing: str) -> None:
    emitter = KafkaSource("lines", refusing).emitter(
        SpoutContext("counts", "lines", {}, connect_timeout_seconds=0.3)
    )
    attempt = TransactionAttempt(Txid(1), AttemptId(1))
    assert list(emitter.emit(attempt, "lines/0", KafkaRange(3, 3))) == []
    with pytest.raises(PartitionUnavailableError, match=refusing):
        list(emitter.emit(attempt, "lines/0", KafkaRange(3, 4)))
    emitter.close()


@pytest.mark.parametrize("address", ["broker:port", "a:1,b:x"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        KafkaClient(address, {}, client_id="test")


def test_requests_that_carry_passwords_are_not_logged() -> None:
    names = ("kafka.net", "kafka.protocol")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in names:
            logging.getLogger(name).setLevel(logging.DEBUG)
        options = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "me",
            "sasl_plain_password": "hunter2",
        }
        KafkaClient("127.0.0.1:1", options, client_id="test").close()
        assert not any(logging.getLogger(name).isEnabledFor(logging.DEBUG) for name in names)
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


@pytest.mark.parametrize("option", ["ssl_cafile", "ssl_certfile", "ssl_crlfile"])
def test_a_file_that_cannot_be_read_is_named(option: str, refusing: str, tmp_path: Path) -> None:
    missing = str(tmp_path / "none.pem")
    source = KafkaSource("lines", refusing, client_options={"security_protocol": "SSL", option: missing})
    with pytest.raises(UsageError, match=f"{option} '{missing}' cannot be read on .*: no such file"):
        source.coordinator(SpoutContext("counts", "lines", {}))
