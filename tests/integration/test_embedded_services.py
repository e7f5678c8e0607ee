"""`up`, `down`, `running` and `embedded` with real servers."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kazoo.client import KazooClient
from rich.console import Console

from txstream.core.errors import ServiceUnavailableError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import Services, down, embedded, process, running, up
from txstream.plugins.local.embedded.kafka import cluster_view
from txstream.plugins.local.embedded.ports import HOST, is_free
from txstream.plugins.local.embedded.zookeeper import four_letter_word

UP = "import pathlib, sys; from txstream.plugins.local.embedded import up; up(pathlib.Path(sys.argv[1]))"


def produce(bootstrap: str, values: list[bytes]) -> None:
    """Send the values to a new topic `kept` of one partition."""
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("kept", 1, 1)])
        admin.wait_for_topics(["kept"])
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            producer.send("kept", value).get(timeout=60)


def consume(bootstrap: str, count: int) -> list[bytes]:
    values: list[bytes] = []
    with KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("kept", 0)])

        def enough() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                values.extend(record.value for record in records)
            return len(values) >= count

        wait_until(enough, 60)
    return values


def recorder() -> Console:
    return Console(file=io.StringIO(), record=True, width=400)


def answer(services: Services) -> bool:
    """Return whether both services answer a client."""
    views = [cluster_view(HOST, port) for port in kafka_ports(services)]
    return "Mode: standalone" in four_letter_word(services.zookeeper, "srvr") and all(views)


def kafka_ports(services: Services) -> list[int]:
    return [int(address.rpartition(":")[2]) for address in services.kafka.split(",")]


def pids(services: Services) -> list[int]:
    return [services.zookeeper_pid, *services.kafka_pids]


def ended(pid: int) -> bool:
    """Detached servers are nobody's children: where no init process reaps them, they end as zombies."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
    except psutil.NoSuchProcess:
        return True


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert wait_until(lambda: ended(pid), 60)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    down(tmp_path / "data")


def test_up_and_down_make_a_round_trip(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert running(data_dir) is None
    # Two at once, in processes that end right after: one of them starts the services, both succeed.
    starters = [subprocess.Popen([sys.executable, "-c", UP, str(data_dir)]) for _ in range(2)]
    assert [starter.wait(timeout=120) for starter in starters] == [0, 0]
    services = running(data_dir)
    assert services is not None
    assert services.already_running
    assert answer(services)
    assert all(log.is_file() for log in services.logs)

    console = recorder()
    assert up(data_dir, brokers=2, kafka_port=1, console=console) == services
    said = console.export_text()
    assert f"already running: ZooKeeper at {services.zookeeper}, Kafka at {services.kafka}" in said
    assert "there is 1 Kafka broker, not 2" in caplog.text

    with embedded(data_dir) as used:
        assert used == services
    assert answer(services)

    # ZooKeeper has died: it alone is started again, at its old address.
    kill(services.zookeeper_pid)
    assert running(data_dir) is None
    monkeypatch.setattr(process, "DATA_WAIT_SECONDS", 0.1)
    with pytest.raises(ServiceUnavailableError, match="txstream down"), embedded(data_dir):
        pytest.fail("started a second Kafka over the first one's data")
    console = recorder()
    again = up(data_dir, console=console)
    assert "started ZooKeeper again" in console.export_text()
    assert again.kafka_pids == services.kafka_pids
    assert (again.zookeeper, again.kafka) == (services.zookeeper, services.kafka)
    assert answer(again)

    # It has died, and somebody has taken its port: it comes back at another one.
    kill(again.zookeeper_pid)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((HOST, int(services.zookeeper.rpartition(":")[2])))
        thief.listen()
        moved = up(data_dir)
    assert moved.kafka_pids == again.kafka_pids
    assert moved.zookeeper != services.zookeeper
    assert answer(moved)

    console = recorder()
    stopped = down(data_dir, console=console)
    assert {service.pid for service in stopped} == set(pids(moved))
    assert {service.name for service in stopped} == {"ZooKeeper", "Kafka broker 1"}
    assert str(moved.zookeeper_pid) in console.export_text()
    assert all(ended(pid) for pid in pids(moved))
    assert all(is_free(port) for port in kafka_ports(moved))
    assert running(data_dir) is None
    assert down(data_dir) == []


def test_a_failed_up_leaves_nothing_running(data_dir: Path) -> None:
    with socket.socket() as holder:
        holder.bind((HOST, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServiceUnavailableError, match=f"Kafka broker 1 cannot listen on .*:{port}"):
            up(data_dir, kafka_port=port)
    assert not (data_dir / "services.json").exists()
    lock = data_dir / "zookeeper" / "in-use.lock"
    assert ended(int(lock.read_text()))


@pytest.mark.soak
def test_what_a_killed_up_left_is_known_and_completed(data_dir: Path) -> None:
    """It is killed as soon as the first server is recorded: before that is ready, and before Kafka runs."""
    starter = subprocess.Popen([sys.executable, "-c", UP, str(data_dir)])
    assert wait_until((data_dir / "services.json").exists, 60)
    starter.kill()
    starter.wait()
    assert running(data_dir) is None
    left = json.loads((data_dir / "services.json").read_text())["zookeeper"]["pid"]
    services = up(data_dir)
    assert services.zookeeper_pid == left
    assert answer(services)


OWNER = """
import sys
from pathlib import Path
from txstream.plugins.local.embedded import embedded
with embedded(Path(sys.argv[1]), brokers=2) as services:
    print(services.zookeeper, services.kafka, services.zookeeper_pid, *services.kafka_pids, flush=True)
    sys.stdin.read()
"""


@pytest.mark.soak
def test_embedded_services_end_with_a_killed_owner_and_keep_their_data(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stderr is not None
        zookeeper, kafka, *children = owner.stdout.readline().split()
        client = KazooClient(hosts=zookeeper, timeout=10)
        client.start(timeout=60)
        client.create("/kept", b"yes")
        client.stop()
        client.close()
        assert len(kafka.split(",")) == 2
        assert len(children) == 3
        produce(kafka, [b"1", b"2"])
        owner.kill()
        owner.wait(timeout=60)
        assert owner.stderr.read() == ""

    # Right away, while the guards are still stopping the first run's servers.
    console = recorder()
    with embedded(tmp_path, console=console) as services:
        assert all(ended(int(child)) for child in children)
        assert len(services.kafka_pids) == 2
        assert "starting 2 Kafka brokers" in console.export_text()
        assert not services.already_running
        client = KazooClient(hosts=services.zookeeper, timeout=10)
        client.start(timeout=60)
        assert client.get("/kept")[0] == b"yes"
        assert services.kafka != kafka
        assert consume(services.kafka, 2) == [b"1", b"2"]
        client.stop()
        client.close()
    assert not any(psutil.pid_exists(pid) for pid in pids(services))
