"""The commands one after the other, as a user types them: `up`, `run`, what they show, `delete`, `down`."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.runs import Launcher, Outcome
from support.tables import read_counts, table_exists
from support.texts import fill_topic, make_lines

from txstream.plugins.local.embedded import Services

WORD_COUNT = "txstream.examples.word_count:topology"
ID = "word-count"


class Workshop:
    """A directory with its own services, started by `txstream up`, and a topic of 4,000 lines."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data_dir = directory / ".txstream"
        self.database = f"sqlite:///{self.data_dir / 'state.db'}"
        nowhere = Services("", "", self.data_dir, 0, (), ())
        # No address comes from the environment: the commands must find what is running here.
        nothing = dict.fromkeys(("TXSTREAM_ZOOKEEPER", "TXSTREAM_KAFKA", "TXSTREAM_DATABASE"), "")
        self.launcher = Launcher(nowhere, directory, "", nothing)
        self.services: dict[str, Any] = self.json("up")
        self.truth = fill_topic(self.services["kafka"], "lines", make_lines(4_000))

    def json(self, *arguments: str) -> Any:
        (document,) = self.documents(arguments)
        return document

    def documents(self, *commands: Sequence[str]) -> list[Any]:
        """Return what commands that only look print with --json; they run at the same time."""
        outcomes = self.launcher.run_together([*command, "--json"] for command in commands)
        for outcome in outcomes:
            assert outcome.status == 0, outcome.stderr
        return [outcome.json() for outcome in outcomes]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    made = Workshop(tmp_path_factory.mktemp("workshop"))
    yield made
    made.launcher.run("down")


@pytest.fixture(scope="module")
def first_run(workshop: Workshop) -> Outcome:
    """The outcome of a word count that has caught up."""
    outcome = workshop.launcher.run("run", WORD_COUNT, "--until", "caught-up", "--json")
    assert outcome.status == 0, outcome.stderr
    return outcome


@pytest.fixture(scope="module")
def counted(first_run: Outcome) -> dict[str, Any]:
    """The report of that run."""
    report: dict[str, Any] = first_run.json()
    return report


def test_the_run_is_exact_and_reports_it(workshop: Workshop, counted: dict[str, Any]) -> None:
    assert read_counts(workshop.database, "word_count") == workshop.truth
    assert (counted["topology"], counted["records"], counted["caught_up"]) == (ID, 4_000, True)
    assert (counted["first_txid"], counted["last_txid"]) == (1, counted["batches"])


def test_standard_error_of_a_run_has_our_lines_only(workshop: Workshop, first_run: Outcome) -> None:
    first, *others = first_run.stderr.splitlines()
    assert first == f"database: {workshop.data_dir / 'state.db'}"
    assert others
    assert {line.split(" ")[0].rstrip(":") for line in others} == {ID}, first_run.stderr
    logs = [path.name for path in (workshop.data_dir / "logs").iterdir()]
    assert [name for name in logs if name.startswith("spark-word-count-")]


def test_batches_list_every_range_once(workshop: Workshop, counted: dict[str, Any]) -> None:
    batches, newest = workshop.documents(["batches", ID], ["batches", ID, "-n", "1"])
    assert [batch["txid"] for batch in batches] == list(range(1, counted["batches"] + 1))
    assert {batch["status"] for batch in batches} == {"committed"}
    assert sum(batch["tuples"] for batch in batches) == 4_000
    places = dict.fromkeys((f"lines/{number}" for number in range(4)), 0)
    for batch in batches:
        for partition, taken in batch["partitions"].items():
            assert set(taken) == {"start", "end"}
            assert taken["start"] == places[partition]
            places[partition] = taken["end"]
    assert set(places.values()) == {1_000}
    assert [batch["txid"] for batch in newest] == [counted["last_txid"]]
    table = workshop.launcher.run("batches", ID).stdout
    assert "committed" in table
    assert "lines/3" in table


def test_status_shows_services_and_how_far_it_is(workshop: Workshop, counted: dict[str, Any]) -> None:
    answer, one = workshop.documents(["status"], ["status", ID])
    assert {name: found["reachable"] for name, found in answer["services"].items()} == {
        "zookeeper": True,
        "kafka": True,
        "database": True,
    }
    assert answer["services"]["kafka"]["address"] == workshop.services["kafka"]
    assert one["current_txid"] == counted["last_txid"] + 1
    assert (one["leader"], one["lag_records"], one["semantics"]) == (None, 0, "opaque")
    assert one["positions"] == {f"lines/{number}": 1_000 for number in range(4)}
    assert one["last_batch"]["txid"] == counted["last_txid"]
    assert "not running" in workshop.launcher.run("status", ID).stdout


def test_state_top_shows_the_greatest(workshop: Workshop, counted: dict[str, Any]) -> None:
    rows = workshop.json("state", "top", ID, "word_count", "-n", "3")
    greatest = sorted(workshop.truth.values(), reverse=True)[:3]
    assert [row["n"] for row in rows] == greatest
    assert list(rows[0]) == ["word", "n", "prev_n", "txid"]
    refused = workshop.launcher.run("state", "top", ID, "other")
    assert refused.status == 1
    assert "word_count" in refused.stderr


def test_topologies_lists_it(workshop: Workshop, counted: dict[str, Any]) -> None:
    (listed,) = workshop.json("topologies")
    assert (listed["id"], listed["semantics"], listed["txid"]) == (ID, "opaque", counted["last_txid"])
    assert listed["tables"] == ["word_count"]


def test_an_unknown_id_names_the_command_that_lists_them(workshop: Workshop) -> None:
    commands = [["status", "nobody"], ["batches", "nobody"], ["delete", "nobody"]]
    for outcome in workshop.launcher.run_together([*commands, ["state", "top", "nobody", "word_count"]]):
        assert outcome.status == 1
        assert "'nobody'" in outcome.stderr
        assert "`txstream topologies`" in outcome.stderr


def test_another_database_is_told(workshop: Workshop, counted: dict[str, Any], tmp_path: Path) -> None:
    outcome = workshop.launcher.run("batches", ID, "--database", f"sqlite:///{tmp_path}/other.db")
    assert outcome.status == 1
    assert "--database" in outcome.stderr
    assert not (tmp_path / "other.db").exists()


def test_a_refused_first_run_leaves_nothing(workshop: Workshop, counted: dict[str, Any]) -> None:
    fresh = ["run", WORD_COUNT, "--connect-timeout", "3", "--id"]
    missing, taken = workshop.launcher.without_spark.run_together(
        [[*fresh, "fresh1", "-p", "topic=nothing", "-p", "table=fresh"], [*fresh, "fresh2"]]
    )
    assert (missing.status, taken.status) == (1, 1)
    assert "'nothing' does not exist" in missing.stderr
    assert "word_count" in taken.stderr
    assert [one["id"] for one in workshop.json("topologies")] == [ID]


def test_a_running_topology_is_stopped_between_two_batches(
    workshop: Workshop, counted: dict[str, Any]
) -> None:
    command = workshop.launcher.without_spark.start("run", WORD_COUNT)
    try:
        command.wait_for_line("is running")
        assert workshop.json("status", ID)["leader"].endswith(f":{command.process.pid}")
        for outcome in workshop.launcher.run_together([["run", WORD_COUNT, "--no-wait"], ["delete", ID]]):
            assert outcome.status == 1
            assert f":{command.process.pid}" in outcome.stderr
        command.process.send_signal(signal.SIGINT)
        ended = command.wait(120)
    finally:
        command.kill()
    assert ended.status == 0, ended.stderr
    assert ended.stdout == f"{ID}: nothing to do, txid {counted['last_txid']} stays the last\n"


def test_package_and_db_upgrade(workshop: Workshop, counted: dict[str, Any]) -> None:
    written = workshop.json("package", "--out", "framework.zip")
    assert (workshop.directory / "framework.zip").stat().st_size == written["bytes"]
    revisions = workshop.json("db", "upgrade")
    assert revisions["from"] == revisions["to"]


def test_delete_keeps_the_table_unless_told_otherwise(workshop: Workshop, counted: dict[str, Any]) -> None:
    assert workshop.json("delete", ID, "-y")["dropped_tables"] == []
    assert workshop.json("topologies") == []
    assert read_counts(workshop.database, "word_count") == workshop.truth
    assert workshop.json("delete", ID, "--drop-state", "-y")["dropped_tables"] == ["word_count"]
    assert not table_exists(workshop.database, "word_count")
    assert workshop.launcher.run("delete", ID, "--drop-state", "-y").status == 1


def test_down_stops_exactly_what_up_started(workshop: Workshop) -> None:
    pids = {workshop.services["zookeeper_pid"], *workshop.services["kafka_pids"]}
    assert workshop.json("up")["already_running"]
    stopped = workshop.json("down")
    assert {service["pid"] for service in stopped} == pids
    assert not [pid for pid in pids if is_alive(pid)]
    assert workshop.json("down") == []
    answer = workshop.launcher.run("status", "--json")
    assert answer.status == 1
    assert "txstream up" in json.loads(answer.stdout)["services"]["zookeeper"]["error"]


def is_alive(pid: int) -> bool:
    """Return whether it runs. Where nothing reaps orphans, they stay as zombies."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
