"""The commands of README.md and docs/, typed one after the other in an empty folder, and what they print.

`NOT_RUN` names those that cannot be run here; tests/unit/test_guide_commands.py checks that they exist.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kazoo.client import KazooClient
from support.guide import DOCS, GUIDES, ShownCommand, commands_of, files_of, python_of
from support.nursery import nursery
from support.runs import SPARK_STARTS_SOONER
from support.schema_registry import FakeRegistry
from support.texts import make_lines

from txstream.plugins.local.embedded import running

SUPPORT = Path(__file__).parents[1] / "support"
NURSERY, SPARKLESS = SUPPORT / "nursery.py", SUPPORT / "sparkless.py"

# Commands that check this project itself, need a cluster or a running driver, belong to systemd, or install
# (test_readme.py types those). Some would go on until somebody stops them, some have ID where the reader's
# topology goes.
NOT_RUN = re.compile(
    r"^(make|systemctl|journalctl|pip|\.|python3 -m venv|txstream (pause|resume|stop)) "
    r"|--master spark://|--metrics [0-9]| ID\b"
)
# What a guide shows when ZooKeeper has lost the topology.
LOST = re.compile("it knows nothing of this topology|nothing in ZooKeeper")
# The databases that a reader has, each with the file that stands for it here, and how that is copied.
PLACEHOLDERS = {
    "pg_dump results | psql --host new-host results": "cp .txstream/state.db moved.db",
    "postgresql://me@new-host/results": "sqlite:///{folder}/moved.db",
    "'postgresql://me:${PASSWORD}@db/results'": "sqlite:///{folder}/results.db",
    "postgresql://me@db/results": "sqlite:///{folder}/results.db",
    "sqlite:////srv/other.db": "sqlite:///{folder}/other.db",
}


def english() -> str:
    """Return 4,000 lines of the words of this project's licence."""
    licence = (GUIDES[0].parent / "LICENSE").read_text(encoding="utf-8").lower()
    words = [word for word, _ in Counter(re.findall("[a-z]+", licence)).most_common(300)]
    lines = make_lines(4_000, vocabulary=300)
    return "".join(re.sub(r"w(\d+)é", lambda found: words[int(found[1])], line) + "\n" for line in lines)


# What everybody types first; a change of a guide runs the others, too (tools/affected.py).
OF_THE_GATE = {"README.md", "tutorial.md"}
# What a reader has already.
SUPPLIES = {"text.txt": english(), "word_count.py": python_of(GUIDES[0]), "results.db": ""}


class Desk:
    """A folder with running services; `txstream` and `python` are on the path."""

    def __init__(self, folder: Path, registry: str) -> None:
        self.folder = folder / "desk"
        self.folder.mkdir()
        self.inside = self.folder  # where what is typed runs
        programs = folder / "bin"
        programs.mkdir()
        # A run without Spark starts 5 s faster; README's run, and what `python` runs, are on Spark.
        typed = f"-P {NURSERY} {nursery().address} -P {SPARKLESS}"
        for name, call in {"txstream": typed, "python": ""}.items():
            (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
            (programs / name).chmod(0o755)
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("TXSTREAM_", "PYTEST_"))
        }
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {
            **ours,
            **SPARK_STARTS_SOONER,
            "PATH": path,
            "TXSTREAM_MASTER": "local[2]",
            "TXSTREAM_SCHEMA_REGISTRY": registry,
            "COLUMNS": "80",
            "TERM": "dumb",
        }
        self.type("txstream up")
        services = running(self.folder / ".txstream")
        assert services is not None
        self.services = services

    def type(self, line: str) -> tuple[int, str]:
        """Type a line; return its exit status, and what a terminal of 80 columns shows."""
        if line.startswith("cd "):
            self.inside /= line.removeprefix("cd ")
            (self.inside / ".txstream").symlink_to(self.folder / ".txstream")  # the services that run already
            return 0, ""
        terminal, inside = os.openpty()
        process = subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.inside,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        with os.fdopen(terminal, encoding="utf-8") as shown:
            lines: list[str] = []
            with contextlib.suppress(OSError):  # Linux's way of saying that nobody writes there any more
                lines += shown
        return process.wait(), "".join(lines)

    def clear(self) -> None:
        """Remove files, topics and topologies for the next guide; the services go on."""
        self.inside = self.folder
        for path in [*self.folder.glob("[!.]*"), *(self.folder / ".txstream").glob("state.db*")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.lose_zookeepers_data()
        admin = KafkaAdminClient(bootstrap_servers=self.services.kafka)
        admin.delete_topics([name for name in admin.list_topics() if not name.startswith("__")])
        admin.close()

    def lose_zookeepers_data(self) -> None:
        # security.md shows znodes that are for this user alone.
        mine = [("digest", "counter:correct-horse")]
        zookeeper = KazooClient(self.services.zookeeper, auth_data=mine)
        zookeeper.start()
        zookeeper.delete("/txstream", recursive=True)
        zookeeper.stop()
        zookeeper.close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with FakeRegistry() as registry:
        made = Desk(tmp_path_factory.mktemp("guides"), registry.url)
        yield made
        made.type("txstream down")


@pytest.mark.parametrize(
    "guide",
    [
        pytest.param(guide, marks=[pytest.mark.soak] * (guide.name not in OF_THE_GATE), id=guide.name)
        for guide in GUIDES
        if commands_of(guide)
    ],
)
def test_its_commands_do_what_it_shows(guide: Path, desk: Desk) -> None:
    desk.clear()
    for name, text in {**SUPPLIES, **files_of(guide)}.items():
        (desk.folder / name).write_text(text, encoding="utf-8")
    commands = commands_of(guide)
    if guide.name == "README.md" and guide.parent != DOCS:  # its quick start has a test of its own
        commands = commands[[command.text for command in commands].index("txstream down") + 1 :]
    for command in commands:
        if not NOT_RUN.search(command.text):
            check(command, desk)


def check(command: ShownCommand, desk: Desk) -> None:
    line = command.text
    for url, stand_in in PLACEHOLDERS.items():
        line = line.replace(url, stand_in.format(folder=desk.folder))
    if LOST.search(" ".join(command.shown.split())):
        desk.lose_zookeepers_data()
    status, printed = desk.type(line)
    told = printed.replace(f"sqlite:///{desk.folder}/.txstream/", "sqlite:////data/")
    fails = re.search(r"^(txstream: |ERROR |WRONG |txid \d+ of \w+ differs)", command.shown, re.M) is not None
    assert (status != 0) == fails, f"line {command.line}, {line}: status {status}\n{printed}"
    assert re.search(pattern(command.shown), comparable(told)), f"line {command.line}, {line}:\n{told}"


def comparable(printed: str) -> str:
    """Leave out what differs from run to run: times, durations, steps that may take no time at all,
    addresses, uuids, and how wide a table is."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\d+\.\d+\s+s\b", "TIME", printed)
    text = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    text = re.sub(r"\b[0-9a-f]{4}(\.\.\.|[0-9a-f]{4}-[0-9a-f-]{27})", "UUID", text)
    text = " ".join(re.sub(r"─+", "─", text).split())
    return re.sub(r"\b(merge|wait) TIME, ", "", text)


def pattern(shown: str) -> str:
    """Return the regular expression of what a guide shows; `...` stands for anything left out."""
    return re.escape(comparable(shown)).replace(r"\.\.\.", ".*")
