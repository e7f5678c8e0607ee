"""`txstream run` of tracked tuples: signals, standbys, operators, and a killed driver."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient
from support.kafka_topics import Topics, wait_until
from support.runs import Launcher, Outcome, RunningCommand
from support.tracked_files import MODULE

from txstream.plugins.local.embedded import EmbeddedKafka
from txstream.zookeeper import ROOT, Paths
from txstream.zookeeper.requests import Asked


class Files:
    """The folder that the spout and the bolt of `MODULE` share, and the commands that run them."""

    def __init__(self, folder: Path, launcher: Launcher, topology_id: str) -> None:
        self.folder = folder
        self.launcher = launcher
        self.id = topology_id
        self.started: list[RunningCommand] = []
        (folder / "queue").mkdir()
        (launcher.directory / "tracked_files.py").write_text(MODULE, encoding="utf-8")

    def add(self, *words: str) -> None:
        for word in words:
            (self.folder / "queue" / word).touch()

    def lines(self, name: str) -> list[str]:
        file = self.folder / name
        return file.read_text(encoding="utf-8").split() if file.exists() else []

    @property
    def is_empty(self) -> bool:
        return not list((self.folder / "queue").iterdir())

    def arguments(self, *more: str) -> list[str]:
        target = ("tracked_files:topology", "-p", f"folder={self.folder}", "--id", self.id)
        return ["run", *target, "--session-timeout", "2", *more]

    def run(self, command: str, *more: str) -> Outcome:
        return self.launcher.run(command, self.id, *more)

    def start(self, *more: str) -> RunningCommand:
        self.started.append(self.launcher.start(*self.arguments(*more)))
        return self.started[-1]


@pytest.fixture
def files(launcher: Launcher, tmp_path: Path, unique: str) -> Iterator[Files]:
    files = Files(tmp_path, launcher.without_spark, unique)
    yield files
    for command in files.started:
        command.kill()


def test_a_run_ends_when_every_spout_is_quiet_and_no_tree_is_open(files: Files) -> None:
    files.add("a", "b", "c")
    ended = files.launcher.run(*files.arguments("--until", "caught-up", "--json"))
    assert ended.status == 0, ended.stderr
    report = ended.json()
    assert (report["records"], report["acked"], report["open_trees"]) == (3, 3, 0)
    assert report["caught_up"]
    assert sorted(files.lines("words")) == ["a", "b", "c"]
    assert files.is_empty
    assert files.lines("closed") == ["0"]
    shown = files.launcher.run("status", files.id, "--json").json()
    assert shown["trees"]["components"]["queue"]["acked"] == 3
    assert shown["trees"]["components"]["note"]["messages"] == 3
    assert shown["trees"]["open_trees"] == 0
    (listed,) = [line for line in files.launcher.run("topologies").stdout.splitlines() if files.id in line]
    assert "tracked" in listed.split()
    checked = files.launcher.run("fsck", files.id)
    assert (checked.status, checked.stdout) == (0, f"{files.id}: all is well\n")
    assert "tracked tuples" in checked.stderr


def test_sigterm_lets_what_is_open_end_and_closes_the_spouts(files: Files) -> None:
    (files.folder / "hold").touch()
    files.add("a", "b")
    running = files.start()
    wait_until((files.folder / "entered").exists, "the bolt to be called")
    files.add("c")
    running.process.send_signal(signal.SIGTERM)
    running.wait_for_line("stopping")
    (files.folder / "hold").unlink()
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    assert files.lines("closed") == ["0"]
    assert {"a", "b"} <= set(files.lines("words"))
    assert "trees acked" in ended.stdout


def test_what_was_open_when_a_driver_is_killed_comes_again(files: Files) -> None:
    (files.folder / "hold").touch()
    files.add("a", "b")
    running = files.start()
    wait_until((files.folder / "entered").exists, "the bolt to be called")
    standby = files.start("--until", "caught-up")
    standby.wait_for_line("standing by")
    assert files.lines("words") == []
    running.process.kill()
    running.wait()
    (files.folder / "hold").unlink()
    ended = standby.wait()
    assert ended.status == 0, ended.stderr
    assert sorted(files.lines("words")) == ["a", "b"]
    assert files.is_empty


def test_a_standby_that_never_led_stops_at_once_and_leaves_the_leader_alone(files: Files) -> None:
    leader = files.start()
    leader.wait_for_line("is running")
    standby = files.start()
    standby.wait_for_line("standing by")
    standby.process.send_signal(signal.SIGTERM)
    ended = standby.wait()
    assert ended.status == 0, ended.stderr
    files.add("a")
    wait_until(lambda: files.is_empty, "the leader to go on")
    second = files.start()
    second.wait_for_line("standing by")
    assert files.launcher.run("stop", files.id).status == 0
    for command in (leader, second):
        ended = command.wait()
        assert ended.status == 0, ended.stderr
    assert files.lines("closed") == ["0"]


def test_operators_pause_resume_and_stop_it(files: Files) -> None:
    running = files.start()
    running.wait_for_line("is running")
    assert files.launcher.run("pause", files.id).status == 0
    files.add("a")
    status = files.launcher.run("status", files.id).stdout
    assert "paused" in status
    assert files.lines("words") == []
    assert files.launcher.run("resume", files.id).status == 0
    wait_until(lambda: files.is_empty, "the message to be acked")
    assert files.launcher.run("stop", files.id).status == 0
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    assert files.lines("closed") == ["0"]


@pytest.mark.soak
def test_it_is_scaled_while_it_runs_and_status_shows_what_it_waits_for(files: Files) -> None:
    running = files.start("-p", "spouts=2")
    running.wait_for_line("is running")
    (files.folder / "hold").touch()
    files.add("a")
    wait_until((files.folder / "entered").exists, "the bolt to be called")
    assert files.run("scale", "queue=1", "note=1").stdout.splitlines() == [
        f"{files.id}: note went from 2 to 1 slot",
        f"{files.id}: queue went from 2 to 1 slot",
    ]

    def shown() -> str:
        return " ".join(files.run("status").stdout.split())

    wait_until(lambda: "health waiting for the open trees since" in shown(), "the wait to be shown")
    assert "(`txstream scale` changes the tasks of 'queue')" in shown()
    assert files.lines("closed") == []
    (files.folder / "hold").unlink()
    wait_until(lambda: files.lines("closed") == ["0", "0"], "both tasks to be closed")
    files.add("b", "c", "d", "e")
    wait_until(lambda: files.is_empty, "the messages to be acked by the one task")

    def components() -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = files.run("status", "--json").json()["trees"]["components"]
        return found

    wait_until(lambda: components()["queue"]["acked"] == 5, "the note")
    assert {name: row["slots"] for name, row in components().items()} == {"queue": 1, "note": 1}
    assert "now waiting" not in shown()
    assert sorted(files.lines("words")) == ["a", "b", "c", "d", "e"]
    for command, words in (
        ("scale note=3", "it has 2 tasks; declare it with .set_num_tasks(3)"),
        ("scale queue=3", "at most its parallelism of 2; declare it with parallelism=3"),
        ("stop --at 3", "what it does has no txids; leave --at out"),
    ):
        name, *more = command.split()
        refused = files.run(name, *more)
        assert (refused.status, words in refused.stderr) == (2, True), (command, refused.stderr)
    assert files.run("stop").status == 0
    assert running.wait().status == 0
    assert files.lines("closed") == ["0", "0", "0"]


def test_a_corrupt_znode_of_requests_stops_nothing_and_later_requests_are_answered(files: Files) -> None:
    running = files.start()
    running.wait_for_line("is running")
    assert files.run("pause").status == 0
    with contextlib.closing(KazooClient(files.launcher.services.zookeeper)) as client:
        client.start()
        asked = Paths(ROOT, files.id).asked
        client.set(asked, b"{")
        running.wait_for_line("what operators ask cannot be read now")
        client.set(asked, Asked().encode())
        client.stop()
    files.add("a")
    assert files.run("resume").status == 0
    wait_until(lambda: files.is_empty, "the message to be acked")
    assert files.run("stop").status == 0
    assert running.wait().status == 0


@pytest.mark.soak
def test_a_pause_that_is_asked_for_between_two_runs_is_shown_and_obeyed(files: Files) -> None:
    assert files.launcher.run(*files.arguments("--until", "caught-up")).status == 0
    files.add("a")
    assert files.launcher.run("pause", files.id, "--later").status == 0
    shown, document = files.launcher.run_together([["status", files.id], ["status", files.id, "--json"]])
    assert "paused not yet, asked for since 20" in " ".join(shown.stdout.split())
    assert document.json()["paused"] is None
    assert "@" in document.json()["paused_next"]["by"]
    running = files.start("--until", "caught-up")
    nothing = "0 tuples, 0 trees open, 0 acked, 0 failed or timed out"
    running.wait_for_line(f"{nothing}, waiting for `txstream resume {files.id}`")
    shown = files.launcher.run("status", files.id)
    assert "health paused" in " ".join(shown.stdout.split())
    assert not files.is_empty
    assert files.launcher.run("resume", files.id).status == 0
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    assert files.is_empty


def test_without_a_state_there_is_no_database_and_what_is_about_batches_says_so(files: Files) -> None:
    file = files.folder / "state.db"
    files.launcher = replace(files.launcher, database=f"sqlite:///{file}")
    files.add("a")
    ended = files.launcher.run(*files.arguments("--until", "caught-up"))
    assert ended.status == 0, ended.stderr
    elsewhere = replace(files.launcher, database="postgresql://nobody@127.0.0.1:1/nothing")
    told = f"topology '{files.id}' tracks tuples: it has no batches; `txstream status {files.id}` shows"
    for launcher, command in (
        *((files.launcher, f"batches {files.id}"), (files.launcher, f"show {files.id} 1")),
        *((files.launcher, f"show {files.id} 1 --tree"), (files.launcher, f"show {files.id} 1 --story")),
        (files.launcher, f"state list {files.id}"),
        *((files.launcher, f"status {files.id} --tasks"), (files.launcher, f"replay {files.id} 1")),
        *((elsewhere, f"recover {files.id} --from-ledger --yes"), (elsewhere, f"batches {files.id}")),
    ):
        refused = launcher.run(*command.split())
        assert (refused.status, told in refused.stderr) == (2, True), (command, refused.stderr)
    for arguments in (["status", files.id], ["fsck", files.id], files.arguments("--until", "caught-up")):
        ended = elsewhere.run(*arguments)
        assert ended.status == 0, ended.stderr
    assert not file.exists()


_QUEUE = """
from pathlib import Path

from txstream import BasicBolt, KafkaQueueSpout, KafkaSource, TopologyBuilder


class Note(BasicBolt):
    def __init__(self, file):
        self.file = file

    def execute(self, tup, collector):
        with open(self.file, "a") as file:
            print(tup["value"], file=file)


def topology(topic: str, file: str):
    builder = TopologyBuilder(topic, max_spout_pending=200)
    builder.set_spout("queue", KafkaQueueSpout(KafkaSource(topic), session_timeout_seconds=6), 2)
    builder.set_bolt("note", Note(file), 2).shuffle_grouping("queue")
    return builder.build()
"""


@pytest.mark.soak
def test_a_run_after_a_kill_waits_for_what_the_dead_member_of_the_group_has(
    launcher: Launcher, tmp_path: Path, unique: str
) -> None:
    launcher = launcher.without_spark
    (launcher.directory / "kafka_queue_words.py").write_text(_QUEUE, encoding="utf-8")
    words, arguments = tmp_path / "words", ["run", "kafka_queue_words:topology", "--session-timeout", "2"]
    arguments += ["-p", f"topic={unique}", "-p", f"file={words}"]
    with Topics(launcher.services.kafka) as topics:
        topics.create(unique, 2)
        for number in range(2):
            topics.send(unique, [b"%d" % n for n in range(number, 6000, 2)], number)
    killed = launcher.start(*arguments)
    wait_until(words.exists, "some records are processed")
    killed.process.kill()
    killed.wait()
    ended = launcher.run(*arguments, "--until", "caught-up")
    assert ended.status == 0, ended.stderr
    assert {int(word) for word in words.read_text().split()} == set(range(6000))


@pytest.mark.soak
def test_a_kafka_that_is_frozen_is_waited_for_and_has_no_end_meanwhile(
    launcher: Launcher, own_kafka: EmbeddedKafka, tmp_path: Path, unique: str
) -> None:
    launcher = replace(launcher.without_spark, services=replace(launcher.services, kafka=own_kafka.address))
    (launcher.directory / "kafka_queue_words.py").write_text(_QUEUE, encoding="utf-8")
    words, arguments = tmp_path / "words", ["run", "kafka_queue_words:topology", "--until", "caught-up"]
    arguments += ["-p", f"topic={unique}", "-p", f"file={words}"]
    with Topics(own_kafka.address) as topics:
        topics.create(unique, 2)
        for number in range(2):
            topics.send(unique, [b"%d" % n for n in range(number, 20_000, 2)], number)
    running = launcher.start(*arguments)
    wait_until(words.exists, "some records are processed")
    brokers = [psutil.Process(own_kafka.identities[node].pid) for node in own_kafka.nodes]
    for broker in brokers:
        broker.suspend()
    try:
        running.wait_for_line("an answer of Kafka about the ends")
        assert running.process.poll() is None
    finally:
        for broker in brokers:
            broker.resume()
    ended = running.wait()
    assert ended.status == 0, ended.stderr
    assert {int(word) for word in words.read_text().split()} == set(range(20_000))


@pytest.mark.soak
def test_another_topology_may_not_take_its_id(files: Files) -> None:
    files.add("a")
    assert files.launcher.run(*files.arguments("--until", "caught-up")).status == 0
    module = files.launcher.directory / "tracked_files.py"
    module.write_text(
        MODULE.replace('set_spout("queue"', 'set_spout("other"').replace(
            'grouping("queue")', 'grouping("other")'
        )
    )
    refused = files.launcher.run(*files.arguments("--until", "caught-up"))
    assert refused.status == 1
    assert "was first run with other code: the source's tracked was" in refused.stderr
