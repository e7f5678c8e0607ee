"""Case 6: no time zone database in the image, neither the system's nor the package's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = '''
import sys
from datetime import UTC, datetime


class NoPackage:
    """Python falls back to the package tzdata, and Arrow to pytz."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("tzdata", "pytz"):
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, NoPackage())
from txstream import (
    BasicBolt, Count, DeadLetters, MemorySpout, OpaqueSpout, SqlState, SqlStateBolt,
    TransactionalTopologyBuilder,
)
from txstream.testing import TopologyTest


class Hours(BasicBolt):
    output = "word string, hour bigint"

    def execute(self, tup, collector):
        collector.emit((tup["word"], tup["at"].hour if READS else 0))


READS = sys.argv[1] == "reads"
noon = datetime(2026, 11, 28, 12, tzinfo=UTC)
source = MemorySpout("word string, at timestamp", {"p": [("a", noon), ("b", noon)]})
builder = TransactionalTopologyBuilder("hours", "s", OpaqueSpout(source), dead_letters=DeadLetters())
builder.set_bolt("hours", Hours()).shuffle_grouping("s")
state = SqlState("hours", "hour bigint, word string", "n bigint")
builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("hours", "hour")
# A table by time, which no bolt of Python reads: UTC works without a time zone database.
times = SqlStateBolt(SqlState("times", "at timestamp", "n bigint"), n=Count())
builder.set_committer_bolt("times", times).fields_grouping("s", "at")
with source, TopologyTest(builder.build(), database=sys.argv[2]) as test:
    test.run()
print("done")
'''


def run(folder: Path, how: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, which has no time zone database."""
    url = f"sqlite:///{folder}/{how}.db"
    (folder / "program.py").write_text(PROGRAM, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "program.py", how, url],
        cwd=folder,
        env={**os.environ, "PYTHONTZPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_time_that_is_not_read_needs_none(tmp_path: Path) -> None:
    done = run(tmp_path, "keeps")
    assert done.stdout == "done\n", done.stderr


def test_it_is_told_with_its_host_and_no_record_is_blamed(tmp_path: Path) -> None:
    done = run(tmp_path, "reads")
    assert done.returncode == 1
    last = done.stderr.rstrip().splitlines()[-1]
    assert "txstream.core.errors.UsageError: " in done.stderr
    assert "no time zone database on host " in done.stderr, last
    assert "install tzdata there" in done.stderr
    assert "dead letter" not in done.stderr
