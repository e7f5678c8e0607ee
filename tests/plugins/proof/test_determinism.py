"""The determinism check: which bolt is named, for which input, and which bolts are left in peace."""

from __future__ import annotations

import datetime as dt
import random
import re
import time
import types
import uuid
from collections import Counter
from datetime import date, datetime
from time import time as now
from typing import Any

import pytest
from support import simulated
from support.simulated import counts, tops

from txstream import BasicBolt, BatchBolt, Count, OpaqueSpout, SqlState, SqlStateBolt, Topology
from txstream.api.builder import TransactionalTopologyBuilder
from txstream.examples import accounts
from txstream.plugins.proof.simulation import determinism
from txstream.plugins.proof.simulation.determinism import NotDeterministicError, check_determinism
from txstream.plugins.proof.simulation.program import Program
from txstream.spouts.memory import MemorySpout
from txstream.testing import SimulationError, simulate

WHY = "it reads a clock, chance, a global or the order of a set"
_calls = Counter[str]()


class Calls(BasicBolt):
    """Emits the user with what a function gives."""

    output = "user string, value string"

    def __init__(self, function: Any) -> None:
        self.function = function

    def execute(self, tup: Any, collector: Any) -> None:
        collector.emit((tup["user"], str(self.function(tup))))


def counted(tup: Any) -> int:
    _calls[tup["user"]] += 1
    return _calls[tup["user"]]


def minute(tup: Any) -> int:
    return int(time.time() // 60)


WRONG = {
    "a clock": minute,
    "a clock, imported": lambda _: int(now() // 60),
    "the date": lambda _: date.today(),
    "the time of day": lambda _: datetime.now(dt.UTC).minute,
    "the time as text": lambda _: time.strftime("%Y-%m"),
    "chance": lambda _: random.random(),
    "uuid1": lambda _: uuid.uuid1(),
    "uuid4": lambda _: uuid.uuid4(),
    "hash": lambda tup: hash(tup["user"]),
    "the order of a set": lambda tup: next(iter({tup["user"] * n for n in range(1, 9)})),
    "a global": counted,
}
RIGHT = {
    "a fixed time": lambda tup: datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=tup["n"]),
    "a parsed time": lambda _: datetime.fromisoformat("2020-01-01T00:00:00").strftime("%Y"),
    "a seeded generator": lambda tup: random.Random(tup["n"]).random(),
    "a name-based uuid": lambda tup: uuid.uuid5(uuid.NAMESPACE_DNS, tup["user"]),
    "a sorted set": lambda tup: sorted({tup["user"] * n for n in range(1, 9)}),
}


ROWS = {"p": [(f"u{n}", n) for n in range(1, 6)]}


def calls(functions: Any) -> Topology:
    builder = TransactionalTopologyBuilder(
        "calls", "rows", OpaqueSpout(MemorySpout("user string, n bigint", ROWS))
    )
    for name, function in functions.items():
        builder.set_bolt(name, Calls(function), 2).shuffle_grouping("rows")
    state = SqlState("t", key="value string", value="n bigint")
    store = builder.set_bolt("store", SqlStateBolt(state, n=Count()))
    for name in functions:
        store.fields_grouping(name, "value")
    return builder.build()


def check(topology: Topology, rows: Any = None) -> None:
    program = Program(topology, rows)
    check_determinism(program.topology, program.rows)


def told_of(functions: Any) -> list[str]:
    program = Program(calls(functions))
    return determinism.findings(program.topology, program.rows)


def test_whatever_is_not_deterministic_is_named_with_its_input() -> None:
    found = told_of(WRONG)
    assert len(found) == len(WRONG)
    for name, told in zip(WRONG, found, strict=True):
        # Of a set's orders, only those of the second input may differ.
        assert told.startswith(f"component {name!r} emitted other tuples for the same input: (u"), told
        assert re.search(rf"; {WHY}\. The input was \(u(\d), \1\) of 'rows'", told), told


@pytest.mark.soak
def test_whatever_is_deterministic_passes() -> None:
    assert told_of(RIGHT) == []


@pytest.mark.soak
def test_a_bolt_that_remembers_the_batch_before_is_found() -> None:
    with pytest.raises(SimulationError, match="component 'split' emitted other tuples for the same input"):
        simulate(counts(simulated.OnlyNewWords))


def test_random_output_is_found() -> None:
    with pytest.raises(SimulationError, match="component 'split' emitted other tuples for the same input"):
        simulate(counts(simulated.Guesses))


def test_what_is_counted_beside_the_transaction_is_found() -> None:
    with pytest.raises(SimulationError, match="component 'adds' wrote other values for the same input"):
        simulate(counts(committer=simulated.AddsOutside))


def test_the_check_comes_first_in_a_simulation() -> None:
    with pytest.raises(SimulationError, match=rf"'minute' emitted other tuples .*; {WHY}") as raised:
        simulate(calls({"minute": minute}))
    report = raised.value.report
    assert (report.exact, report.schedules, report.failure) == (False, 0, None)
    assert str(report.to_document()["not_deterministic"]).startswith("component 'minute'")


@pytest.mark.soak
def test_bolts_that_keep_to_the_rules_pass() -> None:
    check(counts(committer=simulated.Adds))
    check(tops())  # it depends on how batches are cut
    check(accounts.topology(), [("anna", 10), ("anna", -20), ("bob", 3)])


class FromASet(BasicBolt):
    """Emits its words once each, in the order of a set."""

    output = "word string"

    def execute(self, tup: Any, collector: Any) -> None:
        for word in set(tup["line"].split()):
            collector.emit((word,))


class FirstOfBatch(BatchBolt):
    """Emits the first word of a batch."""

    output = "word string"
    first = None

    def execute(self, tup: Any) -> None:
        self.first = self.first or tup["word"]

    def finish_batch(self) -> None:
        if self.first:
            self.collector.emit((self.first,))


def ordered(below: Any) -> Topology:
    lines = {"p": [" ".join(f"w{n}{at}" for n in range(9)) for at in range(4)]}
    builder = TransactionalTopologyBuilder("t", "lines", OpaqueSpout(MemorySpout("line string", lines)))
    builder.set_bolt("split", FromASet()).shuffle_grouping("lines")
    above = "split"
    if below is not None:
        builder.set_bolt("below", below).global_grouping("split")
        above = "below"
    state = SqlState("t", key="word string", value="n bigint")
    builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping(above, "word")
    return builder.build()


@pytest.mark.soak
def test_another_order_is_a_mistake_only_where_a_table_depends_on_it() -> None:
    check(ordered(None))
    with pytest.raises(
        NotDeterministicError, match="'split' emitted the same tuples in another order"
    ) as raised:
        check(ordered(FirstOfBatch()))
    assert "table 't' depends on that order" in str(raised.value)


def test_code_that_no_new_process_can_import_is_checked_in_a_copy_of_this_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module = types.ModuleType("made_by_a_test")
    monkeypatch.setitem(__import__("sys").modules, "made_by_a_test", module)
    source = (
        "import time\nfrom txstream import BasicBolt\n"
        "class Made(BasicBolt):\n    output = 'user string, value string'\n"
        "    def execute(self, tup, collector):\n"
        "        collector.emit((tup['user'], str(self.value())))\n"
        "class Clock(Made):\n    def value(self): return int(time.time() // 60)\n"
        "class Fixed(Made):\n    def value(self): return 1\n"
    )
    exec(source, vars(module))
    builder_of = {name: vars(module)[name] for name in ("Clock", "Fixed")}
    for name, made in builder_of.items():
        builder = TransactionalTopologyBuilder(
            "t", "rows", OpaqueSpout(MemorySpout("user string", {"p": ["u1", "u2"]}))
        )
        builder.set_bolt("made", made()).shuffle_grouping("rows")
        state = SqlState("t", key="value string", value="n bigint")
        builder.set_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("made", "value")
        if name == "Fixed":
            check(builder.build())
        else:
            with pytest.raises(NotDeterministicError, match="component 'made'"):
                check(builder.build())
    assert capfd.readouterr().err == ""
