"""The embedded ZooKeeper and Kafka as real processes: used, killed, restarted, refused."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.errors import UnknownTopicOrPartitionError
from kazoo.client import KazooClient

from txstream.core.errors import ServiceUnavailableError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import EmbeddedKafka, EmbeddedZooKeeper, process
from txstream.plugins.local.embedded.kafka import cluster_view
from txstream.plugins.local.embedded.ports import HOST, is_free


@pytest.fixture
def zookeeper(own_zookeeper: EmbeddedZooKeeper) -> EmbeddedZooKeeper:
    return own_zookeeper


@pytest.fixture
def kafka(own_kafka: EmbeddedKafka) -> EmbeddedKafka:
    """Two brokers, over what a killed formatting left, in a folder with a blank and an accent in its name."""
    return own_kafka


def client_of(server: EmbeddedZooKeeper, timeout_seconds: float = 10.0) -> KazooClient:
    client = KazooClient(hosts=server.address, timeout=timeout_seconds)
    client.start(timeout=60)
    return client


def create_topic(kafka: EmbeddedKafka, topic: str, assignments: dict[int, list[int]]) -> None:
    with KafkaAdminClient(bootstrap_servers=kafka.address) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments=assignments)])
        admin.wait_for_topics([topic])


def produce(kafka: EmbeddedKafka, topic: str, partition: int, values: list[bytes]) -> None:
    with KafkaProducer(bootstrap_servers=kafka.address) as producer:
        for value in values:
            producer.send(topic, value, partition=partition).get(timeout=60)


def consume(kafka: EmbeddedKafka, topic: str, partition: int, count: int) -> list[bytes]:
    """Return the first `count` values of a partition, or fewer if they do not come within a minute."""
    values: list[bytes] = []
    # Broker 1 is never stopped here; a client that begins with a dead broker may wait long.
    first = f"{HOST}:{kafka.port_of(1)}"
    with KafkaConsumer(bootstrap_servers=first, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, partition)])

        def enough() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        wait_until(enough, 60)
    return values


def test_zookeeper_keeps_what_it_acknowledged_through_sigkill(zookeeper: EmbeddedZooKeeper) -> None:
    client = client_of(zookeeper)
    client.create("/kept", b"value")
    client.stop()
    client.close()
    address = zookeeper.address
    zookeeper.kill()
    assert not zookeeper.alive()
    zookeeper.start()
    assert zookeeper.address == address
    client = client_of(zookeeper)
    try:
        assert client.get("/kept")[0] == b"value"
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("seconds", [1.0, 60.0])
def test_zookeeper_grants_the_session_timeout_asked_for(zookeeper: EmbeddedZooKeeper, seconds: float) -> None:
    client = client_of(zookeeper, seconds)
    try:
        assert client._session_timeout == seconds * 1000  # what the server granted, in ms
    finally:
        client.stop()
        client.close()


def test_a_second_zookeeper_on_the_same_data_is_refused(
    zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "DATA_WAIT_SECONDS", 0.1)
    assert zookeeper.identity is not None
    second = EmbeddedZooKeeper(zookeeper.data_dir)
    with pytest.raises(ServiceUnavailableError, match=f"process {zookeeper.identity.pid} has it"):
        second.start()
    assert zookeeper.alive()


@pytest.mark.soak
def test_records_go_in_and_come_out_of_every_broker(kafka: EmbeddedKafka) -> None:
    create_topic(kafka, "both", {0: [1], 1: [2]})
    produce(kafka, "both", 0, [b"a", b"b"])
    produce(kafka, "both", 1, [b"c"])
    assert consume(kafka, "both", 0, 2) == [b"a", b"b"]
    assert consume(kafka, "both", 1, 1) == [b"c"]


@pytest.mark.soak
def test_consumer_groups_work(kafka: EmbeddedKafka) -> None:
    create_topic(kafka, "grouped", {0: [1]})
    produce(kafka, "grouped", 0, [b"x"])
    values: list[bytes] = []
    with KafkaConsumer(
        "grouped", bootstrap_servers=kafka.address, group_id="readers", auto_offset_reset="earliest"
    ) as consumer:

        def came() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value for record in records)
            return bool(values)

        assert wait_until(came, 60)
        consumer.commit()
    assert values == [b"x"]


def test_a_misspelt_topic_is_not_created(kafka: EmbeddedKafka) -> None:
    with KafkaAdminClient(bootstrap_servers=kafka.address) as admin:
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics(["mispelt"])
        with KafkaConsumer(bootstrap_servers=kafka.address) as consumer:
            assert not consumer.partitions_for_topic("mispelt")
        assert "mispelt" not in admin.list_topics()


@pytest.mark.soak
def test_one_broker_killed_takes_its_partitions_along_and_brings_them_back(kafka: EmbeddedKafka) -> None:
    create_topic(kafka, "outage", {0: [1], 1: [2]})
    produce(kafka, "outage", 0, [b"one"])
    produce(kafka, "outage", 1, [b"two"])
    kafka.stop_broker(2, kill=True)
    assert kafka.alive(1)
    assert not kafka.alive(2)
    assert is_free(kafka.port_of(2))
    assert consume(kafka, "outage", 0, 1) == [b"one"]

    def noticed() -> bool:
        view = cluster_view(HOST, kafka.port_of(1))
        return view is not None and view.brokers == {1}

    assert wait_until(noticed, 60)
    kafka.start_broker(2)
    assert consume(kafka, "outage", 1, 1) == [b"two"]


def test_everything_listens_on_loopback_only(zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka) -> None:
    identities = [zookeeper.identity, *kafka.identities.values()]
    for identity in identities:
        assert identity is not None
        connections = psutil.Process(identity.pid).net_connections(kind="inet")
        listening = [
            connection.laddr for connection in connections if connection.status == psutil.CONN_LISTEN
        ]
        assert listening
        for address in listening:
            assert address.ip.removeprefix("::ffff:") == HOST


def test_what_servers_log_goes_to_their_files(zookeeper: EmbeddedZooKeeper, kafka: EmbeddedKafka) -> None:
    assert zookeeper.log_path == kafka.log_path.parent / "zookeeper.log"
    assert zookeeper.log_path.parent == zookeeper.data_dir / "logs"
    assert "binding to port" in zookeeper.log_path.read_text()
    for log in kafka.log_paths:
        # A broker answers a moment before it logs that it has started.
        assert wait_until(partial(has_started, log), 60)


def has_started(log: Path) -> bool:
    return "Kafka Server started" in log.read_text()


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServiceUnavailableError, match=f"ZooKeeper cannot listen on .*:{port}"):
            EmbeddedZooKeeper(tmp_path, port).start()
        with pytest.raises(ServiceUnavailableError, match=f"Kafka broker 1 cannot listen on .*:{port}"):
            EmbeddedKafka(tmp_path, port=port).start()
    assert not (tmp_path / "logs").exists()


def test_a_server_that_cannot_start_is_told_with_log_and_reason(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    (tmp_path / "zookeeper" / "data").mkdir(parents=True)
    (tmp_path / "zookeeper" / "data" / "version-2").write_text("not a directory")
    with pytest.raises(ServiceUnavailableError, match=r"ended while starting.*logs/zookeeper\.log") as failed:
        server.start()
    assert "version-2" in str(failed.value)
    assert not server.alive()


OWNER = """
import sys
from pathlib import Path
from txstream.plugins.local.embedded import EmbeddedZooKeeper
with EmbeddedZooKeeper(Path(sys.argv[1])) as server:
    print(server.port, server.identity.pid, flush=True)
    sys.stdin.read()
"""


def test_a_server_ends_with_its_owner(tmp_path: Path) -> None:
    owners = {
        number: subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path / number.name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
    }
    servers = []
    for number, owner in owners.items():
        with owner:
            assert owner.stdout is not None
            port, pid = map(int, owner.stdout.readline().split())
            assert psutil.pid_exists(pid)
            owner.send_signal(number)
            owner.wait(timeout=60)
        servers.append((number, port, pid))
    for number, port, pid in servers:
        assert wait_until(partial(is_gone, pid), 60), number.name
        assert is_free(port), number.name


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


FORKING_OWNER = """
import os, sys, time
from pathlib import Path
from txstream.plugins.local.embedded import EmbeddedZooKeeper
server = EmbeddedZooKeeper(Path(sys.argv[1])).start()
forked = os.fork()
if forked == 0:
    time.sleep(300)
print(server.identity.pid, forked, flush=True)
sys.stdin.read()
"""


def test_a_forked_child_of_the_owner_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    """Such a child has inherited the pipe whose end tells the guard that the owner has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKING_OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        pid, forked = map(int, owner.stdout.readline().split())
        try:
            owner.kill()
            owner.wait(timeout=60)
            assert wait_until(partial(is_gone, pid), 60)
            assert psutil.pid_exists(forked)
        finally:
            psutil.Process(forked).kill()


def test_a_server_does_not_outlive_a_killed_guard(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path).start()
    assert server.identity is not None
    guard = psutil.Process(server.identity.pid).parent()
    assert guard is not None
    assert "guard.py" in " ".join(guard.cmdline())
    guard.kill()
    assert server.identity.wait_gone(60)
    server.stop()
