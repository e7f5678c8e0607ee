"""`txstream scale`: what is asked, what a leader answers, and what is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.memory_zookeeper import MemoryZooKeeper

from txstream.api.errors import UsageError
from txstream.cli import scale as scale_module
from txstream.cli.main import main
from txstream.engine.driver.scaling import check_scale
from txstream.zookeeper import MemoryProgress

COMPONENTS = {"lines": (2, 2), "count": (2, 4)}
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
    monkeypatch.setattr(scale_module, "open_zookeeper", zookeeper.opened)
    return zookeeper


def answer(store: MemoryProgress) -> None:
    """What a leader does between two batches."""
    for request in store.read_scale().waiting:
        try:
            check_scale(request.slots, COMPONENTS)
        except UsageError as error:
            store.answer_scale(request, refused=str(error))
        else:
            store.answer_scale(request, before={name: slots for name, (slots, _) in COMPONENTS.items()})


@pytest.fixture
def leader(zookeeper: MemoryZooKeeper) -> MemoryProgress:
    """One that answers as soon as it is asked."""
    store = zookeeper.run_topology("words")
    store.watch_scale(lambda: answer(store))
    return store


def test_what_changed_is_printed(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "words", "lines=1", "count=3", *ADDRESS]) == 0
    out, err = capsys.readouterr()
    assert out == "words: count went from 2 to 3 slots\nwords: lines went from 2 to 1 slot\n"
    assert err == ""
    assert leader.read_scale().slots == {"count": 3, "lines": 1}
    assert main(["scale", "words", "count=2", *ADDRESS]) == 0
    assert capsys.readouterr().out == "words: count stays at 2 slots\n"


def test_json_has_what_was_before(leader: MemoryProgress, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scale", "words", "count=3", "--json", *ADDRESS]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document.pop("request")) == 32
    assert document == {"topology": "words", "applied": True, "slots": {"count": {"before": 2, "asked": 3}}}


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ("cuont=3", ["'cuont'", "count, lines", "words stays as it is"]),
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
    assert leader.read_scale().slots == {}


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


def test_a_name_that_cannot_be_is_refused_before_it_is_stored(
    leader: MemoryProgress, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["scale", "words", "c\x01=3", *ADDRESS]) == 2
    assert "cannot be a component's name" in capsys.readouterr().err


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
    assert store.read_scale().waiting == ()

    assert main(["scale", "words", "count=3", "--later", *ADDRESS]) == 0
    out, err = capsys.readouterr()
    assert out == "words: count is to have 3 slots\n"
    assert "now or next" in err
    assert main(["scale", "words", "count=1", "--later", "--json", *ADDRESS]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["applied"], document["slots"]) == (False, {"count": {"before": None, "asked": 1}})
    assert [dict(request.slots) for request in store.read_scale().waiting] == [{"count": 3}, {"count": 1}]


def test_a_driver_that_does_not_answer_is_told_and_the_request_stays(
    zookeeper: MemoryZooKeeper, capsys: pytest.CaptureFixture[str]
) -> None:
    store = zookeeper.run_topology("words")
    assert main(["scale", "words", "count=3", "--timeout", "0.1", *ADDRESS]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "has not answered within 0.1 s" in err
    assert zookeeper.leader("words") in err  # type: ignore[operator]  # it is elected
    assert len(store.read_scale().waiting) == 1


def test_help_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "\n  scale " in capsys.readouterr().out
    assert main(["scale", "--help"]) == 0
    assert "COMPONENT=N" in capsys.readouterr().out
