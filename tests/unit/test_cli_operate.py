"""`txstream scale`, `pause`, `resume` and `stop`: the request, the leader's answer, and what is printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.bolts import CountByHand, word_count
from support.coordinators import make, metas
from support.inmemory import MemoryLog
from support.memory_zookeeper import MemoryZooKeeper

from txstream.cli import operate
from txstream.cli.main import main
from txstream.core.transaction import Txid
from txstream.engine.loop.operator_changes import Steering
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.zookeeper import ROOT, Paths

ADDRESS = ["--zookeeper", "127.0.0.1:1"]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "FAULT"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    zookeeper = MemoryZooKeeper()
    monkeypatch.setattr(operate, "open_zookeeper", zookeeper.opened)
    return zookeeper


@pytest.fixture
def leader(zookeeper: MemoryZooKeeper) -> MemoryProgress:
    """A leader that answers at once and ends when it is told to. Txid 7 is the last committed."""
    store = zookeeper.run_topology("words")
    topology = word_count(MemoryLog({"a": []}), CountByHand(), parallelism=2, tasks=4)
    coordinator = make(current=Txid(8), stored={Txid(7): metas(0, 10)})
    steering = Steering(topology, coordinator)
    steering.restore(store.read_requests())

    def answer() -> None:
        for request in store.read_requests().waiting:
            judgement = steering.judge(request)
            store.answer_request(request, judgement.refused, judgement.told)
        if coordinator.is_draining:
            leave(zookeeper)

    store.watch_requests(answer)
    return store


def leave(zookeeper: MemoryZooKeeper) -> None:
    """Remove the leader, as if the driver had ended."""
    path = Paths(ROOT, "words").leader
    for name in zookeeper.memory.children(path) or ():
        zookeeper.memory.remove(f"{path}/{name}")


def run(*arguments: str) -> int:
    return main([*arguments, *ADDRESS])


def test_what_changed_is_printed(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "words", "lines=1", "count=3", *ADDRESS]) == 0
    out, err = capsys.readouterr()
    assert out == "words: count went from 2 to 3 slots\nwords: lines went from 2 to 1 slot\n"
    assert err == ""
    assert leader.read_requests().in_force.slots == {"count": 3, "lines": 1}
    assert main(["scale", "words", "count=3", *ADDRESS]) == 0
    assert capsys.readouterr().out == "words: count stays at 3 slots\n"


def test_json_has_what_was_before(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "words", "count=3", "--json", *ADDRESS]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document.pop("request")) == 32
    assert document == {"topology": "words", "applied": True, "slots": {"count": {"before": 2, "asked": 3}}}


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ("cuont=3", ["'cuont'", "count, lines, split, store", "words stays as it is"]),
        ("count=5", ["5 slots", "4 tasks", ".set_num_tasks(5)"]),
    ],
)
def test_the_leaders_reason_is_the_error(
    leader: MemoryProgress, slots: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "words", slots, "--json", *ADDRESS]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err
    assert leader.read_requests().in_force.slots == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["words"], ["COMPONENT=N"]),
        (["words", "count"], ["'count'", "COMPONENT=N"]),
        (["words", "=3"], ["'=3'", "COMPONENT=N"]),
        (["words", "count="], ["'count='", "1 or more"]),
        (["words", "count=0"], ["'count=0'", "1 or more"]),
        (["words", "count=two"], ["'count=two'", "1 or more"]),
        (["words", "count=-1"], ["'count=-1'", "1 or more"]),
        (["words", "count=1.5"], ["'count=1.5'", "1 or more"]),
        (["words", f"count={'9' * 5000}"], ["1 or more"]),
        (["words", "count=2", "count=3"], ["'count'", "twice"]),
        (["words", "count=2", "--timeout", "0"], ["--timeout"]),
        (["words", "count=2"], ["no ZooKeeper was given"]),
    ],
)
def test_usage_errors_are_one_line_and_status_2(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert all(word in err for word in words), err


def test_a_name_that_cannot_be_is_refused(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "words", "c\x01=3", *ADDRESS]) == 2
    assert r"no component 'c\x01'" in capsys.readouterr().err


def test_an_unknown_topology_names_the_command_that_lists_them(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "nobody", "count=3", *ADDRESS]) == 1
    err = capsys.readouterr().err
    assert "'nobody'" in err
    assert "`txstream topologies`" in err


def test_what_nobody_runs_is_scaled_later_only(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words", driver=False)
    assert main(["scale", "words", "count=3", *ADDRESS]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing runs topology 'words'" in err
    assert "--later" in err
    assert store.read_requests().waiting == ()

    assert main(["scale", "words", "count=3", "--later", *ADDRESS]) == 0
    out, err = capsys.readouterr()
    assert out == "words: count is to have 3 slots\n"
    assert "now or next" in err
    assert main(["scale", "words", "count=1", "--later", "--json", *ADDRESS]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["applied"], document["slots"]) == (False, {"count": {"before": None, "asked": 1}})
    assert [dict(request.body) for request in store.read_requests().waiting] == [{"count": 3}, {"count": 1}]


def test_a_driver_that_does_not_answer_is_told_and_the_request_stays(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words")
    assert main(["scale", "words", "count=3", "--timeout", "0.1", *ADDRESS]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "has not answered within 0.1 s" in err
    assert zookeeper.leader("words") in err  # type: ignore[operator]  # it is elected
    assert len(store.read_requests().waiting) == 1


def test_help_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  {name} " in shown for name in ("scale", "pause", "resume", "stop"))
    assert main(["scale", "--help"]) == 0
    assert "COMPONENT=N" in capsys.readouterr().out
    assert main(["stop", "--help"]) == 0
    assert "--at" in capsys.readouterr().out


# --- pause and resume ------------------------------------------------------------------------------------


def test_a_pause_says_where_and_a_second_one_since_when(
    leader: MemoryProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pause", "words") == 0
    assert capsys.readouterr().out == "words: is paused; nothing is opened after txid 7\n"
    paused = leader.read_requests().in_force.paused
    assert paused is not None
    assert run("pause", "words") == 0
    assert f"is paused already, {paused.shown}" in capsys.readouterr().out
    assert run("pause", "words", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document.pop("request")) == 32
    assert document == {
        "topology": "words",
        "applied": True,
        "after": 7,
        "already": True,
        "since": paused.asked_at.isoformat(),
        "by": paused.asked_by,
    }
    assert run("resume", "words") == 0
    assert capsys.readouterr().out == f"words: goes on; it was paused {paused.shown}\n"
    assert leader.read_requests().in_force.paused is None
    assert run("resume", "words") == 0
    assert capsys.readouterr().out == "words: was not paused\n"


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_what_nobody_runs_is_paused_and_resumed_later_only(
    name: str, zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words", driver=False)
    assert run(name, "words") == 1
    assert "nothing runs topology 'words' now" in capsys.readouterr().err
    assert store.read_requests().waiting == ()
    assert run(name, "words", "--later") == 0
    assert "words: is to " in capsys.readouterr().out
    assert [request.kind for request in store.read_requests().waiting] == [name]


# --- stop ------------------------------------------------------------------------------------------------


def test_a_stop_is_waited_for(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("stop", "words") == 0
    assert capsys.readouterr().out == "words: ended after txid 7\n"


def test_a_stop_at_a_txid_is_not_waited_for(
    leader: MemoryProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("stop", "words", "--at", "12") == 0
    assert capsys.readouterr().out == "words: ends after txid 12\n"
    assert run("stop", "words", "--at", "11", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["applied"], document["after"], document["ended"]) == (True, 11, False)


def test_a_stop_before_what_is_committed_is_refused(
    leader: MemoryProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("stop", "words", "--at", "6") == 2
    err = capsys.readouterr().err
    assert "txid 6 is committed already: the first that the run can end after is txid 7" in err
    assert leader.read_requests().in_force.stopped is None
    assert run("stop", "words", "--at", "0") == 2


def test_what_nobody_runs_cannot_be_stopped(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words", driver=False)
    assert run("stop", "words") == 1
    assert "nothing runs topology 'words' now" in capsys.readouterr().err
    assert store.read_requests().waiting == ()
    assert run("stop", "nobody") == 1
    assert "'nobody'" in capsys.readouterr().err


def test_a_driver_that_does_not_end_in_time_is_told(
    leader: MemoryProgress, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.leave", lambda zookeeper: None)
    assert run("stop", "words", "--timeout", "0.1") == 1
    assert "ends topology 'words' when txid 7 is committed" in capsys.readouterr().err
