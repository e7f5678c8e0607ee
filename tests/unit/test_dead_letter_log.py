"""With dead letters, what records hold is kept out of the log, ZooKeeper and the ledger."""

from __future__ import annotations

import ast
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from txstream import (
    BasicBolt,
    BatchFailedError,
    DeadLetters,
    MemorySpout,
    OpaqueSpout,
    OutputCollector,
    SqlState,
    SqlStateBolt,
    Tuple,
    custom,
    inspect,
)
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.api.topology import Topology
from txstream.cli.logs import JsonLines
from txstream.cli.run import summary
from txstream.engine.loop import processing
from txstream.engine.loop.report import RunReport
from txstream.inspect.phases import phases
from txstream.plugins.local.local_runner import InProcessRunner
from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.settings import Settings

pytest.importorskip("prometheus_client")
from support.measured import MeasuredRun

SECRET = "4929-1234"
KINDS = ["raises", "evaluates", "emits", "fails", "is refused", "once"]
LEFT_OUT = ["raises", "evaluates", "emits"]
"""In the first attempt."""


class Check(BasicBolt):
    """Fails at each record in the way that it names, and tells all of it."""

    output = "word string, n bigint"
    seen: ClassVar[Counter[str]] = Counter()

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        kind, card = tup["kind"], tup["card"]
        self.seen[kind] += 1
        if kind == "raises":
            raise ValueError(f"bad card {card}\n  of {card}")
        if kind == "evaluates":
            ast.literal_eval(f"({card}")
        if kind == "emits":
            collector.emit((kind, card))
        if kind in ("fails", "once") and self.seen[kind] == 1:
            raise (BatchFailedError if kind == "fails" else KeyError)(card)
        collector.emit(("checked", 13 if kind == "is refused" else 1))


def whole(stored: int, new: int) -> int:
    if 13 in (stored, new):
        raise ValueError(f"not with {SECRET}")
    return stored + new


def topology(source: MemorySpout, dead_letters: DeadLetters | None) -> Topology:
    spout = OpaqueSpout(source, max_batch_records=2)
    builder = TransactionalTopologyBuilder("cards", "cards", spout, dead_letters=dead_letters)
    builder.set_bolt("check", Check()).shuffle_grouping("cards")
    store = SqlStateBolt(SqlState("counts", key="word string", value="n bigint"), n=custom(whole, None))
    builder.set_committer_bolt("store", store).fields_grouping("check", "word")
    return builder.build()


@contextmanager
def all_lines() -> Iterator[list[str]]:
    """Yield everything that is logged, whatever its level, as plain lines and as JSON."""
    lines: list[str] = []
    of_json, plain, handler = JsonLines("cards"), logging.Formatter(), logging.Handler()

    def emit(record: logging.LogRecord) -> None:
        lines.append(plain.format(record))
        lines.append(json.loads(of_json.format(record))["message"])

    handler.emit = emit  # type: ignore[method-assign]
    loggers = [logging.getLogger(), logging.getLogger("txstream")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    loggers[0].addHandler(handler)
    try:
        yield lines
    finally:
        loggers[0].removeHandler(handler)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def stored(database: Path, tree: MemoryTree) -> str:
    """Return all that is in ZooKeeper, and in all tables but that of dead letters."""
    nodes = ((path, tree.get(path)) for path in tree.below(""))
    found = [f"{path}: {node.data.decode(errors='replace')}" for path, node in nodes if node is not None]
    with closing(sqlite3.connect(database)) as opened:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in sorted({*tables} - {"txstream_dead_letter"}):
            found += [f"{table}: {row}" for row in opened.execute(f'SELECT * FROM "{table}"')]
    return "\n".join(found)


def run(kind: str, database: Path, dead_letters: DeadLetters | None) -> tuple[str, str, RunReport]:
    """Run a batch of good records, then one that fails so. Return what is logged, stored and reported."""
    Check.seen.clear()
    tree = MemoryTree()
    with MemorySpout(
        "kind string, card string", {"p": [("good", "1"), ("good", "2"), (kind, SECRET)]}
    ) as source:
        measured = MeasuredRun(topology(source, dead_letters), database, tree)
        with all_lines() as lines:
            measured.start()
            measured.wait_for(2)
            measured.stop()
    taken = measured.driver.taken
    assert taken is not None
    report = measured.driver.tier.report(taken, 1.0)
    assert bool(report.failed_attempts) == (dead_letters is None or kind not in LEFT_OUT)
    return "\n".join(lines), stored(database, tree), report


@pytest.mark.parametrize("kind", KINDS)
def test_with_dead_letters_nothing_says_what_the_failing_record_holds(kind: str, tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    log, kept, report = run(kind, database, DeadLetters())
    assert [line for line in log.splitlines() if SECRET in line] == []
    assert [line for line in kept.splitlines() if SECRET in line] == []
    assert SECRET not in summary(report)
    assert SECRET not in str(report.to_document())
    assert "the run's output has the message" not in log + kept
    told = log.count("failed and will be replayed: ")
    assert told == (0 if kind in LEFT_OUT else 2), "a plain line and a JSON line"
    with closing(sqlite3.connect(database)) as opened:
        letters = [str(row) for row in opened.execute("SELECT * FROM txstream_dead_letter")]
    assert [SECRET in one for one in letters] == ([] if kind in ("fails", "once") else [True])


def test_the_seconds_of_a_search_are_logged_and_those_of_its_batch_add_up(tmp_path: Path) -> None:
    database = tmp_path / "state.db"
    log, _, _ = run("is refused", database, DeadLetters())
    one = inspect.batch("cards", 2, Settings(database=f"sqlite:///{database}")).batch
    spent, row = phases(one), one.first
    assert row.committed_at is not None
    whole = spent["plan"] + (row.committed_at - row.planned_at).total_seconds() + spent.get("advance", 0.0)
    assert sum(spent.values()) == pytest.approx(whole, abs=1e-4)
    assert f"1 dead letter: StateValueError in component 'store'; search {spent['search']:.3f} s" in log


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_what_is_left_out_at_once_took_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its job took to begin."""
    clock, process = Clock(), InProcessRunner.run

    def slow(*given: Any) -> Any:
        clock.now += 100
        return process(*given)

    monkeypatch.setattr(processing, "time", clock)
    monkeypatch.setattr(InProcessRunner, "run", slow)
    log, *_ = run("raises", tmp_path / "state.db", DeadLetters())
    assert "1 dead letter: ValueError in component 'check'; search 0.000 s" in log


def test_without_dead_letters_log_and_ledger_say_it(tmp_path: Path) -> None:
    log, kept, report = run("once", tmp_path / "state.db", None)
    assert f"KeyError: '{SECRET}'" in log
    assert f"KeyError: '{SECRET}'" in summary(report)
    assert [SECRET in line for line in kept.splitlines() if "txstream_batch: " in line] == [False, True]
    (failing,) = (line for line in kept.splitlines() if "/failing: " in line)
    assert "KeyError" in failing
    assert "the run's output has the message" in failing
    assert SECRET not in failing
