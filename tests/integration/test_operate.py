"""`txstream pause`, `resume` and `stop` for drivers in other processes, over a real ZooKeeper."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.pid_namespaces import in_another_pid_namespace
from support.runs import WORD_COUNT, Launcher, RunningCommand
from support.tables import read_counts
from support.texts import count_words, fill_topic, make_lines, produce

from txstream.core.waits import wait_until
from txstream.plugins.local.embedded import Services
from txstream.zookeeper import Paths, ZooKeeper

LINES = 60
DEADLINE_SECONDS = 120


@contextmanager
def driver(launcher: Launcher, name: str, *more: str) -> Iterator[RunningCommand]:
    """Run a topology without an end, with a few lines to a batch."""
    run = launcher.without_spark.start(
        *("run", WORD_COUNT, "--id", name, "-p", f"topic={name}", "-p", f"table={name}"),
        *("-p", "max_records_per_partition=10", "--json", "--session-timeout", "1", *more),
    )
    try:
        yield run
    finally:
        run.kill()


def until_counted(launcher: Launcher, name: str, truth: dict[str, int]) -> None:
    assert wait_until(lambda: read_counts(launcher.database, name) == truth, DEADLINE_SECONDS)


def test_a_pause_survives_the_driver_and_a_stop_ends_it_between_two_batches(
    launcher: Launcher, services: Services, unique: str
) -> None:
    lines = make_lines(LINES)
    truth = fill_topic(services.kafka, unique, lines, partitions=2)
    with driver(launcher, unique) as first:
        first.wait_for_line("is running")
        until_counted(launcher, unique, truth)
        paused = launcher.run("pause", unique)
        assert (paused.status, paused.stderr) == (0, "")
        assert "is paused; nothing is opened after txid 3" in paused.stdout
        assert f"waiting for `txstream resume {unique}`" in first.wait_for_line("paused by")
        first.process.send_signal(signal.SIGKILL)
        first.wait()

    produce(services.kafka, unique, lines, partitions=2)
    with driver(launcher, unique) as second:
        second.wait_for_line(f"waiting for `txstream resume {unique}`")
        shown, as_document = launcher.run_together([["status", unique], ["status", unique, "--json"]])
        assert "paused since" in " ".join(shown.stdout.split())
        assert f"`txstream resume {unique}`" in shown.stdout
        document = as_document.json()
        assert document["current_txid"] == 4
        assert "@" in document["paused"]["by"]
        assert document["paused"]["since"].startswith("20")
        assert read_counts(launcher.database, unique) == truth
        resumed = launcher.run("resume", unique)
        assert resumed.status == 0, resumed.stderr
        assert "goes on; it was paused since" in resumed.stdout
        truth = {word: 2 * count for word, count in truth.items()}
        until_counted(launcher, unique, truth)
        assert launcher.run("status", unique, "--json").json()["paused"] is None

        past = launcher.run("stop", unique, "--at", "2")
        assert past.status == 2
        assert "txid 2 is committed already" in past.stderr
        stopped = launcher.run("stop", unique, "--json")
        assert stopped.status == 0, stopped.stderr
        assert stopped.json()["ended"] is True
        ended = second.wait()
    assert ended.status == 0, ended.stderr
    assert ended.json()["last_txid"] == stopped.json()["after"] == 6
    assert ended.json()["stopped_by"] == document["paused"]["by"]
    assert read_counts(launcher.database, unique) == truth
    nobody = launcher.run("stop", unique)
    assert nobody.status == 1
    assert f"nothing runs topology '{unique}' now" in nobody.stderr


@pytest.mark.soak
def test_a_driver_in_another_pid_namespace_is_not_taken_for_dead(
    launcher: Launcher, services: Services, unique: str
) -> None:
    """Its pid is missing there. `delete` waits for the end of its session before it takes anything away."""
    outside = in_another_pid_namespace()
    truth = fill_topic(services.kafka, unique, make_lines(LINES), partitions=2)
    delete = [
        *outside,
        *launcher.command("delete", unique, "--drop-state", "--yes"),
    ]

    def start_to_delete() -> RunningCommand:
        process = subprocess.Popen(
            delete, cwd=launcher.directory, env=launcher.variables(), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        return RunningCommand(process)

    with driver(launcher, unique) as leader:
        leader.wait_for_line("is running")
        until_counted(launcher, unique, truth)
        refused = start_to_delete()
        refused.wait_for_line(f"to see whether {socket.gethostname()}:{leader.process.pid} still runs")
        ended = refused.wait()
        assert ended.status == 1, ended.stderr
        assert f"is run by {socket.gethostname()}:{leader.process.pid}" in ended.stderr
        assert read_counts(launcher.database, unique) == truth
    deleted = start_to_delete().wait()  # the driver was killed, and its session may last
    assert deleted.status == 0, deleted.stderr
    assert f"dropped {unique}" in deleted.stdout


def test_a_stop_at_a_txid_ends_leader_and_standby(
    launcher: Launcher, services: Services, unique: str
) -> None:
    lines = make_lines(LINES)
    fill_topic(services.kafka, unique, lines[:20], partitions=2)
    with driver(launcher, unique) as leader:
        leader.wait_for_line("is running")
        with driver(launcher, unique) as standby:
            with ZooKeeper(services.zookeeper) as zookeeper:
                candidates = Paths(zookeeper.root, unique).leader
                assert wait_until(
                    lambda: len(zookeeper.tree().children(candidates) or ()) == 2, DEADLINE_SECONDS
                ), "no standby"
            told = launcher.run("stop", unique, "--at", "2")
            assert told.status == 0, told.stderr
            assert f"{unique}: ends after txid 2" in told.stdout
            produce(services.kafka, unique, lines[20:], partitions=2)
            first, second = leader.wait(), standby.wait()
    assert (first.status, second.status) == (0, 0), first.stderr + second.stderr
    assert (first.json()["last_txid"], second.json()["last_txid"]) == (2, 2)
    assert second.json()["batches"] == 0
    with driver(launcher, unique, "--until", "caught-up") as later:
        outcome = later.wait()
    assert outcome.status == 0, outcome.stderr
    assert outcome.json()["first_txid"] == 3
    assert read_counts(launcher.database, unique) == count_words(lines)
