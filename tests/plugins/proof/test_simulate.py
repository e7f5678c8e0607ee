"""`simulate`: exact topologies pass; failures of wrong ones are found, shrunk and replayed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import simulated
from support.simulated import LINES, counts

from txstream import DataFrameBolt, TransactionalTopologyBuilder
from txstream.core.errors import UsageError
from txstream.examples import accounts, word_count
from txstream.plugins.proof.simulation.chances import Chances, Played, Step, Written
from txstream.plugins.proof.simulation.program import Program
from txstream.plugins.proof.simulation.runs import Hunt, replay, run_schedules
from txstream.plugins.proof.simulation.schedules import Schedule, outcome, shrunk
from txstream.plugins.proof.simulation.world import FAULTS, World, run_without_faults
from txstream.testing import SimulationError, simulate

pytestmark = pytest.mark.usefixtures("deterministic")


def words_in(lines: Any) -> dict[tuple[str], tuple[int]]:
    words = Counter(word for rows in lines.values() for line in rows for word in line.split())
    return {(word,): (n,) for word, n in words.items()}


# --- what is exact --------------------------------------------------------------------------------------


@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_a_topology_with_two_databases_is_exact(semantics: str) -> None:
    report = simulate(counts(semantics=semantics), schedules=15)
    assert (report.exact, report.schedules, report.semantics) == (True, 15, semantics)


def test_a_committer_with_a_state_of_its_own_is_exact() -> None:
    report = simulate(counts(committer=simulated.Adds), schedules=10)
    assert report.exact
    assert report.faults["task again"]


def test_rows_stand_for_those_of_a_topic() -> None:
    lines = [line for rows in LINES.values() for line in rows]
    report = simulate(word_count.topology(), [{"value": line} for line in lines], schedules=5)
    assert report.exact


def test_rows_of_one_account_stay_in_their_order() -> None:
    rows: dict[str, list[Any]] = {
        "p1": [("anna", 10), ("anna", -20), ("anna", 5)],
        "p2": [("bob", -1), {"account": "bob", "amount": 7}, ("bob", -7)],
    }
    assert simulate(accounts.topology(), rows, schedules=10).exact


def test_a_run_without_faults_leaves_what_the_rows_say() -> None:
    assert run_without_faults(Program(counts()))["words"] == words_in(LINES)


def test_some_schedules_are_on_sqlite() -> None:
    assert simulate(counts(), schedules=3, on_sqlite=1.0).on_sqlite == 3


def test_a_non_transactional_topology_is_reported() -> None:
    report = simulate(counts(semantics="non-transactional"), schedules=20)
    assert not report.exact
    assert report.failure is None
    assert report.inexact > 0
    assert "non-transactional" in report.lines()[-1]


# --- what is wrong --------------------------------------------------------------------------------------


def test_a_bolt_that_is_wrong_only_when_it_is_replayed_is_found_by_one_crash() -> None:
    with pytest.raises(SimulationError, match="with crashes at points") as raised:
        simulate(simulated.forgetful(), schedules=0, exhaustive=True)
    failure = raised.value.report.failure
    assert failure is not None
    assert len(failure.first.crashes or ()) == 1
    assert "about to crash" in failure.told


def found_by_seed(program: Program, expected: Any) -> tuple[Schedule, Exception]:
    for seed in range(100):
        schedule = Schedule(seed)
        error = outcome(schedule.world(program, expected))
        if error is not None:
            return schedule, error
    raise AssertionError("not found")


def test_a_schedule_is_shrunk_to_what_it_needs(tmp_path: Path) -> None:
    program = Program(simulated.forgetful())
    expected = run_without_faults(program)
    schedule, error = found_by_seed(program, expected)
    written = schedule.written(program, expected)
    smaller = shrunk(written, program, expected, type(error).__name__)
    assert written.history is not None
    assert smaller.history is not None
    assert decided(smaller.history) < decided(written.history) / 5
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps(smaller.to_document("counts", str(error))))
    told: list[str] = []
    again = replay(program, Schedule.load(file, "counts"), told.append)
    assert type(again) is type(error)
    assert told[0] == "step 1"
    assert any("committed" in line for line in told)


def decided(step: Step) -> int:
    inner = [one for steps in step.meanwhile for one in steps]
    return 1 + sum(draw > 0 for draw in step.draws) + sum(map(decided, inner))


def test_a_seed_is_the_same_history_whatever_is_known_by_then() -> None:
    program = Program(counts(committer=simulated.Adds))
    told = []
    for _ in range(4):
        world = World(program, Chances(11), steps=60)
        world.run()
        told.append(world.tell(100_000))
    assert len(set(told)) == 1


def test_several_processes_find_what_one_finds() -> None:
    one, two = (run_schedules(Program(counts()), schedules=8, jobs=jobs) for jobs in (1, 2))
    assert (one.exact, one.schedules) == (two.exact, two.schedules) == (True, 8)
    assert (one.faults, one.crash_points) == (two.faults, two.crash_points)


# --- exhaustive -----------------------------------------------------------------------------------------


def test_every_crash_point_of_a_short_run_is_tried_and_then_pairs() -> None:
    hunt = Hunt(Program(simulated.summed(), {"p1": [("a", 1), ("a", 2)]}), 30, 0.0)
    report = hunt.report()
    assert hunt.go_through(itertools.islice(hunt.crash_points(), 120), report) is None
    assert report.exhaustive == 120
    # The run crashed at every point that it passes.
    assert set(report.crash_points) == report.points
    assert len(report.crash_pairs) > len(report.points) / 2


@pytest.mark.soak
@pytest.mark.parametrize("semantics", ["opaque", "transactional"])
def test_every_pair_of_crash_points_is_exact(semantics: str) -> None:
    report = simulate(counts(semantics=semantics), schedules=0, exhaustive=True)
    assert report.exact
    assert report.exhaustive > 5000


# --- coverage -------------------------------------------------------------------------------------------


def test_a_report_has_the_crash_points_and_pairs_that_were_hit() -> None:
    report = simulate(counts(), schedules=10)
    document = report.to_document()
    assert document["crash_points"].keys() == report.points
    assert sum(document["crash_points"].values()) == report.crash_points.total() > 0
    assert sum(sum(row.values()) for row in document["crash_pairs"].values()) == report.crash_pairs.total()
    assert document["faults"]["crash"] == report.crash_points.total()
    assert json.loads(json.dumps(document))["schedules"] == 10
    assert any(line.startswith("crash points: ") for line in report.lines())


# --- what cannot be simulated ---------------------------------------------------------------------------


class Frame(DataFrameBolt):
    output = "line string"

    def transform(self, df: Any) -> Any:
        return df


def test_a_dataframe_bolt_is_refused() -> None:
    builder = TransactionalTopologyBuilder("f", "lines", counts().spout)
    builder.set_bolt("frame", Frame()).shuffle_grouping("lines")
    with pytest.raises(UsageError, match="'frame' is a DataFrameBolt"):
        simulate(builder._build(stacklevel=1))
    with pytest.raises(UsageError, match="needs a built Topology, not a str"):
        simulate("counts")  # type: ignore[arg-type]


def test_a_source_outside_needs_rows() -> None:
    with pytest.raises(UsageError, match=r"reads a KafkaSource.*rows="):
        simulate(word_count.topology())


def test_rows_must_fit() -> None:
    with pytest.raises(UsageError, match="'x' of type int64"):
        simulate(simulated.summed(), [("a", "one")])
    with pytest.raises(UsageError, match="'y', which the spout does not emit"):
        simulate(simulated.summed(), [{"k": "a", "y": 1}])
    with pytest.raises(UsageError, match="has 1 values"):
        simulate(simulated.summed(), ["a"])
    with pytest.raises(UsageError, match="there are no rows"):
        simulate(simulated.summed(), [])
    assert simulate(simulated.summed(), [("a", 1), ("a", 2), ("b", 3)], schedules=3).exact


# --- decisions ------------------------------------------------------------------------------------------


def test_what_was_written_down_is_played_again() -> None:
    program = Program(counts())
    written = Written(3)
    first = World(program, written, steps=60)
    first.run()
    played = World(program, Played(written.history), steps=60)
    played.run()
    assert played.tell(100_000) == first.tell(100_000)
    plain = World(program, Chances(3), steps=60)
    plain.run()
    assert plain.tell(100_000) == first.tell(100_000)
    assert set(first.happened) <= set(FAULTS)


def test_a_file_that_is_no_schedule_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "schedule.json"
    with pytest.raises(UsageError, match="cannot be read"):
        Schedule.load(file, "counts")
    file.write_text('{"format": 1, "topology": "other"}')
    with pytest.raises(UsageError, match="is a schedule of topology 'other'"):
        Schedule.load(file, "counts")
    file.write_text('{"format": 1, "topology": "counts", "seed": "x"}')
    with pytest.raises(UsageError, match="is no schedule"):
        Schedule.load(file, "counts")


# --- what shows nothing ---------------------------------------------------------------------------------


def test_rows_that_reach_no_table_show_nothing() -> None:
    with pytest.raises(SimulationError, match="nothing was shown: no row reaches a table"):
        simulate(counts(simulated.DropsAll, lines=LINES, by_line=False), schedules=3)


def test_one_batch_shows_nothing() -> None:
    with pytest.raises(SimulationError, match="nothing was shown: no schedule committed more than 1 batch;"):
        simulate(simulated.summed(), [("a", 1)], schedules=5)


def test_schedules_without_a_fault_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(World, "happens", lambda *_: False)
    with pytest.raises(SimulationError, match="nothing was shown: no fault struck in any schedule"):
        simulate(counts(), schedules=3)


def test_no_schedules_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one schedule"):
        simulate(counts(), schedules=0)


@pytest.mark.parametrize("lines", [{}, {"p0": []}])
def test_no_rows_are_refused(lines: Any) -> None:
    for given in (lines, None):
        with pytest.raises(UsageError, match="there are no rows"):
            simulate(counts(lines=lines), given, schedules=1)


def test_a_partition_may_be_empty() -> None:
    assert simulate(counts(lines={**LINES, "p0": []}), schedules=3).exact
