"""A package that a stranger installs adds a command, as the rooms of this wheel do."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracked_wheel import ROOT
from txstream.core import entry_points
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.transaction import Txid
from txstream.engine.run import _installed, _tier
from txstream.engine.start.companions import Leading, installed_companions

GREETING = """
import typer

def register(app):
    @app.command()
    def greet(name: str) -> None:
        "Greet somebody."
        typer.echo(f"hello {name}")
"""


def installed(site: Path, declared: str, code: str) -> None:
    """Lay a package out as pip does."""
    information = site / "greetings-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: greetings\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[txstream.commands]\n{declared}\n")
    (site / "greetings.py").write_text(code)


def txstream(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "txstream", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(site)},
    )


def test_a_strangers_package_adds_a_command(tmp_path: Path) -> None:
    installed(tmp_path, "greet = greetings:register", GREETING)
    done = txstream(tmp_path, "greet", "Ada")
    assert (done.stdout, done.stderr, done.returncode) == ("hello Ada\n", "", 0)
    shown = txstream(tmp_path, "--help").stdout
    assert "Greet somebody." in shown
    assert " doctor " in shown


def test_one_that_cannot_be_loaded_is_told_and_takes_no_other_command_along(tmp_path: Path) -> None:
    installed(tmp_path, "greet = greetings:register [warm]", "import there_is_no_such_module")
    done = txstream(tmp_path, "--version")
    assert done.returncode == 0
    assert done.stdout.startswith("txstream ")
    assert done.stderr == (
        "txstream: the command 'greet' of greetings cannot be loaded from 'greetings:register' "
        "(No module named 'there_is_no_such_module'); install what it needs: pip install 'greetings[warm]'\n"
    )


def test_what_this_wheel_declares_can_be_loaded() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for group, declared in project["entry-points"].items():
        assert set(entry_points.names(group)) >= declared.keys()
        for name in declared:
            assert callable(entry_points.load(group, name, name)) or group == entry_points.TASKS


def test_nothing_several_and_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("twice", "json:loads", "a.group"), EntryPoint("twice", "json:dumps", "a.group")]
    points.append(EntryPoint("broken", "json:there_is_none", "a.group"))
    monkeypatch.setattr(entry_points, "_points", lambda group: points)
    assert entry_points.load("a.group", "none", "thing") is None
    with pytest.raises(UsageError, match="each have a thing; uninstall all but one"):
        entry_points.load("a.group", "twice", "thing")
    with pytest.raises(ServiceUnavailableError, match="the thing of a package cannot be loaded from 'json:t"):
        entry_points.load("a.group", "broken", "thing")


WATCHING = """
from txstream.engine.loop.open_batches import Watcher

class Noting(Watcher):
    def advanced(self, timing):
        print("txid", timing.txid, flush=True)

def watcher(topology):
    return Noting() if topology == "word-count" else None
"""


def test_a_strangers_package_watches_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "watching.py").write_text(WATCHING)
    monkeypatch.syspath_prepend(tmp_path)
    own = EntryPoint("noting", "watching:watcher", entry_points.WATCHERS)
    monkeypatch.setattr(entry_points, "_points", lambda group: [own] if group == own.group else [])
    topology: Any = SimpleNamespace(id="word-count")
    (told,) = _installed(topology)
    timing: Any = SimpleNamespace(txid=7)
    told.advanced(timing)
    assert capsys.readouterr().out == "txid 7\n"
    topology.id = "another"
    assert not _installed(topology)


def test_a_strangers_companion_runs_beside_what_it_is_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def companion(leading: Any) -> Any:
        return f"beside {leading.topology.id}" if leading.topology.id == "words" else None

    own: Any = SimpleNamespace(name="own", group=entry_points.COMPANIONS, load=lambda: companion)
    monkeypatch.setattr(entry_points, "_points", lambda group: [own] if group == own.group else [])
    topology: Any = SimpleNamespace(id="words")
    nothing: Any = None
    leading = Leading(topology, nothing, [], nothing, lambda: Txid(1))
    made: list[Any] = installed_companions(leading)
    assert made == ["beside words"]
    topology.id = "others"
    assert installed_companions(leading) == []


def test_a_tier_that_no_package_has_is_named() -> None:
    topology: Any = SimpleNamespace(id="t", tier="of-tomorrow")
    with pytest.raises(UsageError, match="needs the tier 'of-tomorrow', which no installed package has"):
        _tier(topology)
