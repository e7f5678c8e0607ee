"""Ports, locks, small files, the state file, and what is read from logs."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from support.lists import each

from txstream.core.errors import CorruptStateError, ServiceUnavailableError, UsageError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import EmbeddedKafka, down, process, running, up
from txstream.plugins.local.embedded.files import java_properties, locked, try_lock, write_atomically
from txstream.plugins.local.embedded.kafka import cluster_view
from txstream.plugins.local.embedded.kafka_storage import (
    cluster_id_of,
    format_storage,
    formatted_nodes,
    refuse_data_without_identity,
)
from txstream.plugins.local.embedded.ports import HOST, free_port, is_free, require_free
from txstream.plugins.local.embedded.process import ProcessIdentity, ServerProcess, meaningful_line
from txstream.plugins.local.embedded.services import ServerRecord, ServicesState, read_state, write_state
from txstream.settings import Settings


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield server


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads its own group and that only the test may end."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        yield process
        process.kill()


def test_a_free_port_is_outside_of_the_range_of_outgoing_connections() -> None:
    port = free_port()
    assert is_free(port)
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if ephemeral.exists():
        assert port < int(ephemeral.read_text().split()[0])
    assert free_port(frozenset({port})) != port


def test_a_taken_port_is_refused_naming_who_has_it(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert not is_free(port)
    with pytest.raises(ServiceUnavailableError, match=f"127.0.0.1:{port}.*process {os.getpid()} "):
        require_free(port, "ZooKeeper")


@each("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ServiceUnavailableError, match="ports are 1 to 65535"):
        require_free(port, "Kafka")


def test_a_lock_keeps_others_out_until_it_is_left(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with locked(path, waiting_for="testing", timeout_seconds=1):
        assert try_lock(path) is None
        with (
            pytest.raises(ServiceUnavailableError, match="another process has been testing"),
            locked(path, waiting_for="testing", timeout_seconds=0.1),
        ):
            pytest.fail("two holders of one lock")
    descriptor = try_lock(path)
    assert descriptor is not None
    os.close(descriptor)


def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_java_properties_are_ascii_whatever_the_path() -> None:
    assert java_properties({"dir": "/home/José/\U0001f600 a\\b"}) == (
        "dir=/home/Jos\\u00e9/\\ud83d\\ude00 a\\\\b\n"
    )


def test_the_last_words_of_a_log_are_its_last_error() -> None:
    log = (
        "INFO starting\nERROR cannot start\nCaused by: java.net.BindException: Address already in use\n"
        "\tat java.base/Net.bind(Net.java)\nERROR ServiceUtils: Exiting JVM with code 1\nINFO bye\n\n"
    )
    assert meaningful_line(log) == "Caused by: java.net.BindException: Address already in use"
    assert meaningful_line("one\ntwo\n\n") == "two"
    assert meaningful_line("") == ""


def test_a_process_is_known_by_pid_and_start_time(sleeper: subprocess.Popen[bytes]) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    assert identity.alive()
    another = ProcessIdentity(sleeper.pid, identity.start_time - 60)
    assert not another.alive()
    assert not another.stop()
    assert sleeper.poll() is None
    assert identity.stop()
    assert not identity.alive()


def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    server = ServerProcess("Test server", tmp_path / "logs" / "test.log")
    with pytest.raises(ServiceUnavailableError, match=r"Test server could not be started.*/no/such/java"):
        server.start(["/no/such/java", "-version"])
    assert not server.alive()


def test_a_server_whose_pid_cannot_be_recorded_is_not_left_running() -> None:
    reader, writer = os.pipe()
    full = os.open("/dev/full", os.O_RDWR)
    guard = Path(process.__file__).with_name("guard.py")
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            guard,
            "detached",
            "1",
            f"/dev/fd/{writer}",
            str(full),
            "--",
            "sleep",
            "60",
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=(writer, full),
        check=False,
    )
    for descriptor in (writer, full):
        os.close(descriptor)
    assert done.stdout.startswith(b"error ")
    # The read end sees the end of the file once the server, the last to hold the other end, is gone.
    assert select.select([reader], [], [], 30)[0]
    os.close(reader)


def test_a_server_that_ends_while_starting_is_told_with_its_last_words(tmp_path: Path) -> None:
    server = ServerProcess("Test server", tmp_path / "test.log")
    server.start(["/bin/sh", "-c", "echo INFO hello; echo ERROR no disk; exit 3"])
    with pytest.raises(ServiceUnavailableError, match=r"while starting.*ERROR no disk \(log: .*test\.log"):
        server.wait_ready(lambda: False, deadline=float("inf"))
    server.stop()


def test_a_server_that_never_answers_is_told_at_the_deadline(tmp_path: Path) -> None:
    with ServerProcess("Test server", tmp_path / "test.log") as server:
        server.start(["/bin/sh", "-c", "echo waiting for nothing; exec sleep 100"])
        assert wait_until(lambda: "waiting" in server.log_since_start(), 60)
        with pytest.raises(ServiceUnavailableError, match=r"did not answer.*waiting for nothing"):
            server.wait_ready(lambda: False, deadline=0.0)
        assert server.alive()
    assert not server.alive()


def test_a_server_that_ignores_sigterm_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    server = ServerProcess("Test server", tmp_path / "test.log", grace_seconds=0.2)
    server.start(["/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.1; done"])
    assert wait_until(lambda: "deaf" in server.log_since_start(), 60)
    assert server.stop()
    assert not server.alive()
    assert not server.stop()


def test_two_servers_cannot_have_the_same_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock_path = tmp_path / "data" / "in-use.lock"
    with ServerProcess("First", tmp_path / "1.log", lock_path=lock_path) as first:
        identity = first.start(["/bin/sleep", "100"])
        second = ServerProcess("Second", tmp_path / "2.log", lock_path=lock_path)
        refused = pytest.raises(ServiceUnavailableError, match=f"Second .*: process {identity.pid} has it")
        with monkeypatch.context() as patch, refused:
            patch.setattr(process, "wait_until", lambda known, _: known() or pytest.fail("it waits"))
            second.start(["/bin/sleep", "100"])
        first.kill()
        second.start(["/bin/sleep", "100"])
        assert second.stop()


def test_a_lock_that_a_fork_holds_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers are formatted by threads side by side: each one's fork has copies of the others' locks."""
    lock_path = tmp_path / "data" / "in-use.lock"
    copy = try_lock(lock_path)
    assert copy is not None
    copies = [copy]

    def try_and_let_go(path: Path) -> int | None:
        found = try_lock(path)
        if copies:
            os.close(copies.pop())
        return found

    monkeypatch.setattr(process, "try_lock", try_and_let_go)
    with ServerProcess("Server", tmp_path / "1.log", lock_path=lock_path) as server:
        assert server.start(["sleep", "60"]).pid > 0


def test_a_big_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    log = tmp_path / "test.log"
    with log.open("wb") as file:
        file.truncate(11 * 1024 * 1024)
    with ServerProcess("Test server", log) as server:
        server.start(["/bin/sh", "-c", "echo fresh"])
        assert wait_until(lambda: server.log_since_start() == "fresh\n", 60)
    assert (tmp_path / "test.log.1").stat().st_size == 11 * 1024 * 1024


def record(name: str, port: int, identity: ProcessIdentity) -> ServerRecord:
    return ServerRecord(name, port, identity.pid, identity.start_time, f"/logs/{name}.log")


def test_the_state_file_gives_back_what_was_written(tmp_path: Path) -> None:
    identity = ProcessIdentity(12345, 1.5)
    state = ServicesState(record("ZooKeeper", 1, identity), {1: record("Kafka", 2, identity)}, 1, 3, True)
    write_state(tmp_path, state)
    assert read_state(tmp_path) == state
    assert state.complete
    assert not ServicesState(state.zookeeper, state.kafka, 2, 3, True).complete
    assert not ServicesState(state.zookeeper, state.kafka, 1, 3, False).complete


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"format": 2}),
        json.dumps({"format": 1, "zookeeper": {"pid": 1}, "kafka": {}, "brokers": 1, "controller_port": 1}),
    ],
)
def test_a_state_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "services.json").write_text(text)
    with pytest.raises(CorruptStateError, match="is not a list of running services"):
        running(tmp_path)
    with pytest.raises(CorruptStateError):
        down(tmp_path)


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    now = ProcessIdentity.of(sleeper.pid)
    assert now is not None
    stale = ProcessIdentity(sleeper.pid, now.start_time - 3600)
    write_state(
        tmp_path, ServicesState(record("ZooKeeper", 1, stale), {1: record("Kafka", 2, stale)}, 1, 3, True)
    )
    assert running(tmp_path) is None
    console = Console(record=True, width=400, file=(tmp_path / "said").open("w"))
    assert down(tmp_path, console=console) == []
    assert "nothing was running any more" in console.export_text()
    assert sleeper.poll() is None
    assert not (tmp_path / "services.json").exists()


def test_what_lives_is_used_and_what_has_ended_is_named(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    now = ProcessIdentity.of(sleeper.pid)
    assert now is not None
    gone = ProcessIdentity(sleeper.pid, now.start_time - 3600)
    brokers = {node: record(f"Kafka broker {node}", node, now) for node in (1, 2)}

    def resolved(zookeeper: ProcessIdentity, third: ProcessIdentity, *, ready: bool = True) -> Settings:
        three = {**brokers, 3: record("Kafka broker 3", 3, third)}
        write_state(tmp_path, ServicesState(record("ZooKeeper", 9, zookeeper), three, 3, 8, ready))
        caplog.clear()
        return Settings(data_dir=tmp_path).resolve()

    found = resolved(now, gone)
    assert (found.zookeeper, found.kafka) == ("127.0.0.1:9", "127.0.0.1:1,127.0.0.1:2")
    assert caplog.messages == [
        "embedded services that have ended: Kafka broker 3 at 127.0.0.1:3; `txstream up` starts them again"
    ]
    brokers = {node: record(f"Kafka broker {node}", node, gone) for node in (1, 2)}
    assert resolved(now, gone).kafka == "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", (
        "who asks says where nobody answers"
    )
    assert resolved(gone, gone).kafka is None
    brokers = {node: record(f"Kafka broker {node}", node, now) for node in (1, 2)}
    found = resolved(gone, now)
    assert (found.zookeeper, found.kafka) == (None, "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    assert "ZooKeeper at 127.0.0.1:9" in caplog.text
    assert resolved(now, now).kafka == "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
    assert resolved(now, now, ready=False).kafka is None, "`up` is still at work"
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("there", "wanted", "said"),
    [
        (1, 3, "there is 1 Kafka broker, not 3: for 3, type `txstream down`, then `txstream up --brokers 3`"),
        (3, 2, "there are 3 Kafka brokers, not 2"),
        (3, 1, ""),
        (3, 3, ""),
    ],
)
def test_up_says_how_many_brokers_run_already(
    tmp_path: Path,
    sleeper: subprocess.Popen[bytes],
    caplog: pytest.LogCaptureFixture,
    there: int,
    wanted: int,
    said: str,
) -> None:
    now = ProcessIdentity.of(sleeper.pid)
    assert now is not None
    brokers = {node: record(f"Kafka broker {node}", node, now) for node in range(1, there + 1)}
    write_state(tmp_path, ServicesState(record("ZooKeeper", 9, now), brokers, there, 8, ready=True))
    assert len(up(tmp_path, brokers=wanted).kafka_pids) == there
    assert said in caplog.text if said else caplog.messages == []


def test_down_without_services_says_so(tmp_path: Path) -> None:
    console = Console(record=True, width=400, file=(tmp_path / "said").open("w"))
    assert down(tmp_path / "none", console=console) == []
    assert "nothing is running" in console.export_text()
    assert not (tmp_path / "none").exists()


def test_a_cluster_id_is_made_once_and_kept(tmp_path: Path) -> None:
    made = cluster_id_of(tmp_path)
    assert len(made) == 22
    assert cluster_id_of(tmp_path) == made
    (tmp_path / "cluster-id").unlink()
    assert cluster_id_of(tmp_path) != made


def node(home: Path, number: int, cluster_id: str) -> Path:
    folder = home / f"node-{number}"
    folder.mkdir(parents=True)
    (folder / "meta.properties").write_text(f"#\n#Sat\nnode.id={number}\ncluster.id={cluster_id}\n")
    return folder


def test_the_cluster_id_is_found_again_in_the_nodes_data(tmp_path: Path) -> None:
    node(tmp_path, 1, "abc")
    node(tmp_path, 2, "abc")
    assert cluster_id_of(tmp_path) == "abc"
    assert (tmp_path / "cluster-id").read_text() == "abc\n"
    assert formatted_nodes(tmp_path) == 2


def test_data_of_two_clusters_are_refused(tmp_path: Path) -> None:
    node(tmp_path, 1, "abc")
    node(tmp_path, 2, "xyz")
    with pytest.raises(CorruptStateError, match=r"more than one Kafka cluster: abc in .*, xyz in"):
        cluster_id_of(tmp_path)


def test_a_half_written_formatting_does_not_count_as_data(tmp_path: Path) -> None:
    node(tmp_path, 1, "abc").rename(tmp_path / "node-1.formatting")
    assert formatted_nodes(tmp_path) == 0
    assert cluster_id_of(tmp_path) != "abc"


@pytest.mark.parametrize("free", [0, 1 << 30])
def test_a_formatting_that_a_full_disk_cut_short_leaves_no_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    """`free` bytes are left afterwards. All that it writes may be there, or the identity may be cut off."""
    meta = tmp_path / "node-1.formatting" / "meta.properties"
    text = "cluster.id=abc\n" if free == 0 else ""
    program = f"import pathlib; pathlib.Path({str(meta)!r}).write_text({text!r})"
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(ServiceUnavailableError, match="Kafka could not format") as raised:
        format_storage(
            tmp_path / "node-1",
            "abc",
            lambda _: {},
            lambda *_: [sys.executable, "-c", program],
            tmp_path / "node-1.lock",
        )
    assert meta.exists(), "the program has run"
    assert ("its disk is full" in str(raised.value)) is (free == 0)
    assert not (tmp_path / "node-1").exists()


def test_data_without_their_identity_are_never_formatted_over(tmp_path: Path) -> None:
    folder = node(tmp_path, 1, "abc")
    refuse_data_without_identity(folder)
    (folder / "topic-0").mkdir()
    (folder / "meta.properties").unlink()
    with pytest.raises(CorruptStateError, match=r"without meta\.properties"):
        refuse_data_without_identity(folder)


def test_wrong_numbers_and_places_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1 or more"):
        EmbeddedKafka(tmp_path, 0)
    with pytest.raises(UsageError, match="2 Kafka ports were given for 1 broker"):
        EmbeddedKafka(tmp_path, 1, [1, 2])
    with pytest.raises(UsageError, match="comma"):
        EmbeddedKafka(tmp_path / "a,b")
    with pytest.raises(UsageError, match="no Kafka broker 3; the brokers are 1, 2"):
        EmbeddedKafka(tmp_path, 2).stop_broker(3)
    with pytest.raises(ServiceUnavailableError, match="before it is started"):
        _ = EmbeddedKafka(tmp_path).address


def serve_once(listener: socket.socket, answer: bytes) -> threading.Thread:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def metadata_answer(brokers: list[int], cluster_id: str) -> bytes:
    body = (1).to_bytes(4, "big") + (0).to_bytes(4, "big") + len(brokers).to_bytes(4, "big")
    for number in brokers:
        body += number.to_bytes(4, "big") + b"\x00\x09127.0.0.1" + (9092).to_bytes(4, "big") + b"\xff\xff"
    body += len(cluster_id).to_bytes(2, "big") + cluster_id.encode() + (1).to_bytes(4, "big") + bytes(4)
    return len(body).to_bytes(4, "big") + body


def test_a_brokers_answer_gives_cluster_and_brokers(listener: socket.socket) -> None:
    thread = serve_once(listener, metadata_answer([1, 2], "abc"))
    view = cluster_view(HOST, listener.getsockname()[1])
    thread.join()
    assert view is not None
    assert view.cluster_id == "abc"
    assert view.brokers == {1, 2}


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n", metadata_answer([1], "abc")[:-20]])
def test_an_answer_that_is_not_kafkas_counts_as_none(listener: socket.socket, answer: bytes) -> None:
    thread = serve_once(listener, answer)
    assert cluster_view(HOST, listener.getsockname()[1]) is None
    thread.join()
