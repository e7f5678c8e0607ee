"""The client against addresses where no Kafka answers: it keeps deadlines, and messages say what to do."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.kafka_batches import plain
from support.lists import each

from txstream.api.spouts import SpoutContext
from txstream.core.errors import PartitionUnavailableError, ServiceUnavailableError, UsageError
from txstream.core.transaction import AttemptId, TransactionAttempt, Txid
from txstream.spouts.kafka import KafkaOptions, KafkaRange, KafkaSource
from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.protocol import Leader, Partition


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
    source = KafkaSource(
        "lines", refusing, client=KafkaOptions({"security_protocol": "SSL", option: missing})
    )
    with pytest.raises(UsageError, match=f"{option} '{missing}' cannot be read on .*: no such file"):
        source.coordinator(SpoutContext("counts", "lines", {}))


def answering(answer: Callable[[int, Any], Any]) -> KafkaClient:
    """A client whose brokers answer requests as the function of node and request says."""
    client = KafkaClient.__new__(KafkaClient)
    asked: Any = client
    asked.ask = lambda requests, _timeout: {
        node: [answer(node, request) for request in some] for node, some in requests.items()
    }
    return client


@each(
    ("error_code", "records", "expected"),
    [
        (0, plain(6, b"a", b"b", epoch=3), 3),
        (0, plain(8, b"beyond a gap", epoch=3), None),
        (0, plain(7, b"from a broker without epochs", epoch=-1), None),
        (1, b"", None),
        (0, b"", "it sent no records"),
        (75, b"", "UnknownLeaderEpoch"),
    ],
    ids=["there", "gap", "unnamed", "out-of-range", "throttled", "error"],
)
def test_the_leader_epoch_of_a_record(error_code: int, records: bytes, expected: object) -> None:
    def answer(_node: int, request: Any) -> Any:
        assert request.topics[0].partitions[0].fetch_offset == 7
        data = SimpleNamespace(error_code=error_code, records=records)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[data])])

    found = answering(answer).epoch_at(Partition("lines", 0), Leader(1, 9), 7, 1.0)
    if isinstance(expected, str):
        assert expected in str(found)
    else:
        assert found == expected


def test_where_epochs_end_is_one_round_over_all_brokers() -> None:
    def answer(_node: int, request: Any) -> Any:
        topics = [
            SimpleNamespace(
                topic=topic.topic,
                partitions=[
                    SimpleNamespace(
                        partition=one.partition,
                        error_code=74 if topic.topic == "fenced" else 0,
                        leader_epoch=one.leader_epoch,
                        end_offset=100 * one.partition + one.leader_epoch,
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return SimpleNamespace(topics=topics)

    asked = {
        Partition("a", 0): (Leader(1, 9), [8]),
        Partition("a", 1): (Leader(1, 9), [3, 4, 8]),
        Partition("fenced", 0): (Leader(1, 9), [1, 2]),
        Partition("b", 2): (Leader(2, 5), [2, 4]),
    }
    told, unanswered = answering(answer).epoch_ends(asked, 1.0)
    assert unanswered == {}
    assert str(told.pop(Partition("fenced", 0))) == "FencedLeaderEpoch"
    assert told == {
        Partition("a", 0): {8: (8, 8)},
        Partition("a", 1): {3: (3, 103), 4: (4, 104), 8: (8, 108)},
        Partition("b", 2): {2: (2, 202), 4: (4, 204)},
    }


@pytest.mark.parametrize(("silent", "expected"), [([], 7), ([3], None)])
def test_only_all_brokers_together_know_the_newest_leader_epoch(
    silent: list[int], expected: int | None
) -> None:
    known = {1: 5, 2: 7, 3: 6}

    def answer(node: int, _request: Any) -> Any:
        partitions = [
            SimpleNamespace(partition_index=number, leader_epoch=known[node] + 10 * number)
            for number in (0, 1)
        ]
        return SimpleNamespace(topics=[SimpleNamespace(partitions=partitions)])

    client: Any = answering(answer)
    answers = client.ask
    client.ask = lambda *given: {**answers(*given), **dict.fromkeys(silent, OSError("silent"))}
    brokers = [SimpleNamespace(node_id=node) for node in known]
    client._manager = SimpleNamespace(cluster=SimpleNamespace(brokers=lambda: brokers))
    assert client.newest_leader_epoch(Partition("lines", 0), 1.0) == expected
