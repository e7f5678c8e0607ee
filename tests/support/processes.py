"""Which test files each process of `pytest -n` collects and runs.

Whole files are given out, by the time that they took when tests/durations.json was written. Files that share
servers stand beside each other in one line of all files; the line is cut into pieces that take equally long,
so a server is started twice only where a cut goes through the files that use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

import pytest

from durations import ROOT, recorded

NEW_SECONDS: Final = 2.0  # of a file that was never timed

MYSQL = "mysql"
POSTGRES = "postgres"
KAFKA = "kafka"
SERVICES = "services"
SPARK = "spark"

_ON_KAFKA = ("test_kafka_", "test_embedded_")
_ON_SPARK = ("spark", "dataframe", "recomputation", "replay", "word_count")


def process_of(file: str) -> str:
    """Return a name; the files of one name share servers.

    Files in `integration/` form five groups. Those that end with `_mysql.py` use MariaDB and MySQL, and
    embedded services where drivers run over them; those of `_postgres.py` use a PostgreSQL of their own.
    Those named for Spark share a session, those named for Kafka or the embedded services use no database
    server, and the others share the remaining services. All other files stand alone: each file of
    `acceptance/` starts its own services, and unit tests have none.
    """
    if not file.startswith("tests/integration/"):
        return file
    if file.endswith("_mysql.py"):
        return MYSQL
    if file.endswith("_postgres.py"):
        return POSTGRES
    name = PurePosixPath(file).name
    if any(word in name for word in _ON_SPARK):
        return SPARK
    return KAFKA if name.startswith(_ON_KAFKA) else SERVICES


def shares(files: Collection[str], seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Return the files of each of `count` processes, in the order in which they run."""
    took = {file: seconds.get(file, NEW_SECONDS) for file in files}
    groups: dict[str, float] = {}
    for file, one in took.items():
        groups[process_of(file)] = groups.get(process_of(file), 0.0) + one
    line = sorted(files, key=lambda file: (-groups[process_of(file)], process_of(file), file))
    found: list[list[str]] = [[] for _ in range(count)]
    whole, before = sum(took.values()), 0.0
    for file in line:
        middle = before + took[file] / 2
        found[min(int(middle / whole * count), count - 1)].append(file)
        before += took[file]
    return found


def lane_of(markers: str) -> str:
    """Return the lane that pytest's `-m` chooses."""
    return "gate" if "not soak" in markers else "long"


def times(lane: str, record: Mapping[str, Mapping[str, tuple[int, float]]]) -> dict[str, float]:
    """Return the seconds that files take in a lane: none, if only another lane has tests of the file."""
    elsewhere = {file: 0.0 for files in record.values() for file in files}
    return elsewhere | {file: took for file, (_, took) in record[lane].items()}


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        # A process that took a dead one's place would collect other files than it did.
        if config.pluginmanager.hasplugin("xdist"):
            config.option.maxworkerrestart = "0"
        # A process that is given a file that is not there would run nothing, and the others pass.
        gone = [
            one for one in config.args if not Path(config.invocation_params.dir, one.split("::")[0]).exists()
        ]
        if gone:
            raise pytest.UsageError(f"there is no {', '.join(gone)}")
        return
    number, count = int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"]
    given: dict[str, list[str]] = {}  # file -> what was typed of it
    for argument in config.args:
        path = Path(config.invocation_params.dir, argument.partition("::")[0])
        for file in sorted(path.rglob("test_*.py")) if path.is_dir() else [path]:
            typed = argument if "::" in argument else str(file)
            given.setdefault(file.resolve().relative_to(ROOT).as_posix(), []).append(typed)
    mine = shares(given, times(lane_of(config.option.markexpr), recorded()), count)[number]
    config.args = [argument for file in mine for argument in given[file]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let each process run all that it has collected."""
    from xdist.scheduler import EachScheduling

    return EachScheduling(config, log)
