"""`txstream doctor` asks executors: a master that is away, packages that they lack, places out of reach."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from support.runs import Launcher
from support.spark_standalone import SparkStandalone

from other_pythons import find, supported
from txstream.plugins.doctor.checks import Check
from txstream.plugins.local.embedded import Services

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


@pytest.mark.soak
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


def another_python(folder: Path) -> Path:
    """Return a Python of another minor version, or one that says it is, where there is none."""
    mine = ".".join(platform.python_version_tuple()[:2])
    for version in reversed(supported()):
        if version != mine and (found := find(version)) is not None:
            return found
    venv.create(folder, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    fields = "major minor micro releaselevel serial"
    (packages / "other.pth").write_text(
        "import collections, sys; sys.version_info = "
        f"collections.namedtuple('other', '{fields}')(3, 99, 0, 'final', 0)\n"
    )
    return folder / "bin" / "python"


EXAMINE = """
import json, sys
from dataclasses import asdict

from txstream.plugins.doctor.examination import Examination
from txstream.settings import Settings

settings, seconds, conf = json.loads(sys.argv[1])
checks = Examination(Settings(**settings), spark_conf=conf, spark_seconds=seconds).ask()
print(json.dumps([asdict(check) for check in checks]))
"""


def examine(
    cluster: SparkStandalone, folder: Path, *, seconds: float = 120.0, **conf: str
) -> dict[str, Check]:
    """Return the checks by name. A process of its own asks: this one may have a Spark session already."""
    settings = {"master": cluster.url, "zookeeper": NOBODY, "connect_timeout_seconds": 3.0}
    given = [settings, seconds, {f"spark.executor.{name}": value for name, value in conf.items()}]
    done = subprocess.run(
        [sys.executable, "-c", EXAMINE, json.dumps(given)],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=seconds + 120,
        check=True,
    )
    return {check["name"]: Check(**check) for check in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.soak
def test_another_python_on_the_workers(
    cluster: SparkStandalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(another_python(tmp_path / "other")))
    checks = examine(cluster, tmp_path, memory="512m")
    assert checks["spark"].ok
    python = checks["executors: python"]
    assert not python.ok
    mine = ".".join(platform.python_version_tuple()[:2])
    assert f"than that in driver: {mine}" in python.message
    assert str(python.remedy).startswith(f"set PYSPARK_PYTHON to a Python {mine} that is on every worker")


@pytest.mark.soak
def test_a_python_that_is_not_on_the_workers(
    cluster: SparkStandalone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    python = examine(cluster, tmp_path, memory="512m")["executors: python"]
    assert not python.ok
    assert "/no/such/python" in python.message
    assert "PYSPARK_PYTHON" in str(python.remedy)


@pytest.mark.soak  # Spark tells it after 15 s; test_spark_cluster.py shows that a run says so
def test_a_cluster_that_gives_no_executor(cluster: SparkStandalone, tmp_path: Path) -> None:
    spark = examine(cluster, tmp_path, seconds=35.0, memory="100g")["spark"]
    assert not spark.ok
    assert "no worker has a free core(s) and 100g of memory" in spark.message
    assert "spark.executor.memory" in str(spark.remedy)
