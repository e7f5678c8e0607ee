"""`txstream doctor` asks executors: a master that is away, packages that they lack, places out of reach."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from support.runs import Launcher

from txstream.embedded import Services

NOBODY = "127.0.0.1:1"
DATABASE = f"postgresql://me:hush-hush@{NOBODY}/results"


def doctor(folder: Path, *arguments: str, **variables: str) -> tuple[dict[str, Any], str]:
    """Return the checks by name, and all that was printed. Whatever service it asks is away."""
    away = Services(NOBODY, NOBODY, folder, 0, (), ())
    launcher = Launcher(away, folder, DATABASE, environment=variables)
    done = launcher.run("doctor", *arguments, "--connect-timeout", "1", "--json")
    assert done.status == 1
    return {check["name"]: check for check in done.json()["checks"]}, done.stdout + done.stderr


def test_a_master_that_is_not_there(tmp_path: Path) -> None:
    checks, _ = doctor(tmp_path, "--master", f"spark://{NOBODY}")
    assert not checks["spark"]["ok"]
    assert "there is no Spark master" in checks["spark"]["message"]
    assert "--master" in checks["spark"]["remedy"]
    assert not checks[f"port {NOBODY}"]["ok"]


def test_executors_without_packages_and_without_a_way(tmp_path: Path, bare_python: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import rich\nfrom txstream.examples.word_count import topology as words\n\n\n"
        "def topology():\n    return words()\n"
    )
    checks, printed = doctor(
        tmp_path, "mine:topology", "--master", "local[1]", PYSPARK_PYTHON=os.fspath(bare_python)
    )
    assert checks["spark"]["ok"]
    [python] = [check for name, check in checks.items() if name.endswith(": python")]
    [network] = [check for name, check in checks.items() if name.endswith(": network")]
    lacks = python["message"].partition(" lacks ")[2].split(", ")
    assert lacks == ["txstream", "sqlalchemy", "psycopg", "rich"]
    assert python["remedy"].startswith(f"{bare_python} -m pip install 'txstream==")
    assert "txstream package" in python["remedy"]
    assert NOBODY in network["message"]
    assert not network["ok"]
    assert checks["clocks"]["ok"]
    assert "executors on" in checks["clocks"]["message"]
    assert "hush" not in printed
