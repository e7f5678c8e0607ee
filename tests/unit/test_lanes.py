"""What the gate may cost (tools/lanes.py), and which proofs a change asks for (tools/affected.py)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import affected
import durations
import lanes
from guards import GUARDS


def test_a_folder_over_its_budget_and_a_case_too_many_fail_and_are_named() -> None:
    budget = lanes.Budget(cases=10, seconds={"unit": 5.0, "integration": 60.0})
    within = {"tests/unit/test_a.py": (6, 3.0), "tests/integration/test_b.py": (4, 59.0)}
    lines, good = budget.judge(within)
    assert good
    assert not any("OVER" in line for line in lines)
    lines, good = budget.judge({**within, "tests/unit/test_c.py": (0, 2.5)})
    assert not good
    assert [line.split()[0] for line in lines if "OVER" in line] == ["tests/unit/"]
    lines, good = budget.judge({**within, "tests/unit/test_c.py": (1, 0.1)})
    assert not good
    assert "11 cases of 10  OVER" in lines[-1]
    assert not budget.judge({"tests/new/test_d.py": (1, 0.1)})[1], "a folder without a budget"


def test_every_folder_of_tests_has_a_budget() -> None:
    folders = {file.split("/")[1] for file in durations.recorded()["gate"]}
    assert folders <= lanes.Budget.read().seconds.keys()


def test_what_ran_is_noted_and_what_is_gone_is_forgotten(tmp_path: Path) -> None:
    notes = tmp_path / "durations.json"
    notes.write_text(json.dumps({"gate": {"old.py": [1, 1.0], "kept.py": [2, 2.0]}, "long": {}}))
    for name in ("kept.py", "new.py"):
        (tmp_path / name).touch()
    durations.record("gate", {"new.py": (3, 1.234)}, notes, tmp_path)
    assert json.loads(notes.read_text()) == {"gate": {"kept.py": [2, 2.0], "new.py": [3, 1.2]}, "long": {}}
    durations.record("gate", {"new.py": (3, 1.234)}, notes, tmp_path, whole=True)
    assert json.loads(notes.read_text()) == {"gate": {"new.py": [3, 1.2]}, "long": {}}


def test_the_nearest_come_first_and_the_time_is_kept() -> None:
    graph = {"a.py": {"help.py"}, "b.py": {"store.py"}, "help.py": {"store.py"}, "c.py": set()}
    near = affected.nearest({"store.py"}, ["a.py", "b.py", "c.py"], graph)
    assert near == {"a.py": 2, "b.py": 1}
    assert affected.chosen(near, {"a.py": 1.0, "b.py": 9.0}, 10.0) == (["b.py", "a.py"], [])
    assert affected.chosen(near, {"a.py": 1.0, "b.py": 9.0}, 9.5) == (["b.py"], ["a.py"])
    assert affected.chosen(near, {"a.py": 1.0, "b.py": 9.0}, 1.0) == (["a.py"], ["b.py"])


def test_guides_and_guards_are_near_to_their_tests() -> None:
    assert affected.nearest({"docs/kafka.md"}, affected.OF_GUIDES, {}) == dict.fromkeys(affected.OF_GUIDES, 0)
    guard = next(guard for guard in GUARDS if guard.test)
    test = guard.test.partition("::")[0]
    assert affected.nearest({guard.file}, [test], {}) == {test: 0}


def test_the_graph_has_what_tests_need_through_their_helpers() -> None:
    graph = affected.import_graph()
    far = affected.distances("tests/integration/test_state_mysql.py", graph)
    assert far["txstream/__init__.py"] > 0
    assert any(file.startswith("tests/support/") for file in far)
    assert any(file.startswith("txstream/state/sql/") for file in far)


def test_changes_are_those_of_commits_since_then(tmp_path: Path) -> None:
    def git(*arguments: str, day: str = "2026-01-01") -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        when = {"GIT_COMMITTER_DATE": f"{day}T00:00:00Z", "GIT_AUTHOR_DATE": f"{day}T00:00:00Z"}
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, env=when | {"PATH": "/usr/bin:/bin"}
        )

    git("init", "-q")
    for name, day in (("old.py", "2026-01-01"), ("new.py", "2026-02-01"), ("gone.py", "2026-02-01")):
        (tmp_path / name).touch()
        git("add", name)
        git("commit", "-q", "-m", name, day=day)
    (tmp_path / "gone.py").unlink()
    assert affected.changed_files("2026-01-15", tmp_path) == {"new.py"}
