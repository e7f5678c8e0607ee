"""`txstream describe`: text, JSON, stages, the drawing, and the error messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support.bolts import Passing, words_state
from support.guide import DOCS, GUIDES, python_of
from support.lists import each
from support.topologies import Filter, branching, declared, eight_bolts, eight_components, storm_example

from txstream.api.reducers import Count
from txstream.api.topology import Topology
from txstream.bolts.sql import SqlStateBolt
from txstream.cli.batch_stages import plan_batch, plan_document, plan_text
from txstream.cli.main import main
from txstream.examples.word_count import topology as word_count

WORD_COUNT = "txstream.examples.word_count:topology"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No address is set, and nothing but drawings may be made in the working directory."""
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    assert sorted(path.name for path in here.iterdir() if path.suffix != ".svg") == []


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run the command, which must succeed with nothing on standard error, and return what it prints."""
    assert main(["describe", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# --- text and JSON -------------------------------------------------------------------------------------


def test_the_text_is_that_of_the_topology_with_the_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, WORD_COUNT, "-p", "parallelism=7", "-p", "semantics=transactional")
    assert shown == f"{word_count(parallelism=7, semantics='transactional').describe()}\n"
    assert shown.startswith("topology word-count (transactional)\n")


def test_json_is_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(told(capsys, "support.topologies:branching", "--json"))
    assert document == branching().to_document()
    with_plan = json.loads(told(capsys, "support.topologies:branching", "--json", "--stages"))
    assert with_plan == {**document, "plan": plan_document(plan_batch(branching()))}


def loud() -> Topology:
    print("from the factory")
    subprocess.run(["echo", "from a child"], check=True)
    return branching()


def test_json_is_only_json_whatever_the_factory_prints(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", f"{__name__}:loud", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out) == branching().to_document()
    assert sorted(err.splitlines()) == ["from a child", "from the factory"]


def test_the_stages_come_below_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, "support.topologies:storm_example", "--stages", "--width", "1")
    assert shown == f"{storm_example().describe()}\n\n{plan_text(plan_batch(storm_example(), 1))}\n"


def test_the_guide_shows_what_the_readmes_program_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = python_of(GUIDES[0])
    guide = (DOCS / "topologies.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^```text\n(topology .*?)^```$", guide, re.M | re.S)
    (tmp_path / "program_of_the_readme.py").write_text(program, encoding="utf-8")
    sys.path.insert(0, str(tmp_path))
    assert told(capsys, "program_of_the_readme:topology", "--stages") == shown


# --- stages --------------------------------------------------------------------------------------------


def test_eight_python_bolts_in_a_chain_are_one_python_stage() -> None:
    for width in (1, 2, 3, 4):
        plan = plan_batch(eight_bolts(), width)
        assert plan.python_stages == 1
        (stage,) = plan.stages
        assert stage.python == ("lines", *(f"b{number}" for number in range(1, 9)), "store")
        assert stage.spark_tasks == width
    assert plan_text(plan_batch(eight_bolts())) == EIGHT_BOLTS


EIGHT_BOLTS = """\
a batch worth 4 Spark tasks (the most for this topology): 1 Python stage

stage  phase    Spark tasks  runs
1      process  4            Python: lines, b1, b2, b3, b4, b5, b6, b7, b8, store

from   to     grouping          tuples
lines  b1     local_or_shuffle  stay in place
b1     b2     local_or_shuffle  stay in place
b2     b3     local_or_shuffle  stay in place
b3     b4     local_or_shuffle  stay in place
b4     b5     local_or_shuffle  stay in place
b5     b6     local_or_shuffle  stay in place
b6     b7     local_or_shuffle  stay in place
b7     b8     local_or_shuffle  stay in place
b8     store  global            stay in place: the driver merges its deltas

when the batch commits, in the order of txids, the driver writes deltas: store to table words
a run keeps 1 Spark task for batches that need no more"""


def test_the_same_chain_by_shuffle_is_a_stage_for_each_bolt() -> None:
    builder = declared("chain", 4)
    above = "lines"
    for number in range(1, 9):
        builder.set_bolt(f"b{number}", Passing(), 4).shuffle_grouping(above)
        above = f"b{number}"
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping(above)
    topology = builder.build()
    assert plan_batch(topology).python_stages == 9
    assert plan_batch(topology, 1).python_stages == 1


def test_the_stages_of_storms_example() -> None:
    assert (
        plan_text(plan_batch(storm_example()))
        == """\
a batch worth 2 Spark tasks (the most for this topology): 4 Python stages

stage  phase    Spark tasks  runs
1      process  2            Python: lines
2      process  2            Python: A
3      commit   2            Python: B, C
4      commit   1            Python: D

from   to  grouping          tuples
lines  A   shuffle           are exchanged, stage 1 to 2
A      B   fields(word)      are kept for the commit, stage 2 to 3
B      C   local_or_shuffle  stay in place
A      C   shuffle           are kept for the commit, stage 2 to 3
C      D   global            are exchanged, stage 3 to 4

stages 3 to 4 run when the batch commits, in the order of txids"""
    )


def test_the_stages_of_a_small_batch_of_storms_example() -> None:
    assert plan_text(plan_batch(storm_example(), 1)).splitlines()[:11] == [
        "a batch worth 1 Spark task: 2 Python stages",
        "",
        "stage  phase    Spark tasks  runs",
        "1      process  1            Python: lines, A",
        "2      commit   1            Python: B, C, D",
        "",
        "from   to  grouping          tuples",
        "lines  A   shuffle           stay in place: there is one Spark task",
        "A      B   fields(word)      are kept for the commit, stage 1 to 2",
        "B      C   local_or_shuffle  stay in place",
        "A      C   shuffle           are kept for the commit, stage 1 to 2",
    ]


def test_dataframes_and_tuples_that_pass_a_stage() -> None:
    document = plan_document(plan_batch(branching()))
    assert {name: document[name] for name in ("width", "largest_width", "python_stages")} == {
        "width": 3,
        "largest_width": 3,
        "python_stages": 4,
    }
    assert document["stages"][2] == {
        "stage": 3,
        "phase": "process",
        "spark_tasks": 1,
        "python": ["shout"],
        "spark_sql": ["filter"],
    }
    ways = {
        (edge["from"], edge["to"]): (edge["tuples"], edge["from_stage"], edge["to_stage"])
        for edge in document["edges"]
    }
    assert ways == {
        ("lines", "sort"): ("exchange", 1, 2),
        ("sort", "shout"): ("exchange", 2, 3),
        ("sort", "filter"): ("dataframe", 2, 3),
        ("shout", "lengths"): ("exchange", 3, 4),
        ("sort", "lengths"): ("exchange", 2, 4),
        ("filter", "lengths"): ("dataframe", 3, 4),
        ("lengths", "longest"): ("in place", 4, 4),
        ("lengths", "total"): ("in place", 4, 4),
    }
    assert document["states"] == [
        {"component": "longest", "table": "longest"},
        {"component": "total", "table": "total"},
    ]


def test_a_stage_that_only_hands_tuples_on_says_so() -> None:
    builder = declared("t", 2)
    builder.set_bolt("filter", Filter()).shuffle_grouping("lines")
    builder.set_bolt("join", Passing(), 2).shuffle_grouping("filter").shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping("join")
    shown = plan_text(plan_batch(builder.build())).splitlines()
    assert "2      process  2            Spark SQL: filter; tuples for later stages" in shown
    assert "3      process  2            Python: join, store" in shown


def test_spark_chooses_the_tasks_of_a_stage_without_python() -> None:
    builder = declared("t", 2)
    builder.set_bolt("filter", Filter()).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping("filter")
    plan = plan_batch(builder.build())
    assert [stage.spark_tasks for stage in plan.stages] == [2, None, 2]
    assert plan.python_stages == 2
    assert "2      process  Spark's      Spark SQL: filter" in plan_text(plan).splitlines()


# --- the drawing ---------------------------------------------------------------------------------------


def drawn(capsys: pytest.CaptureFixture[str], factory: str) -> ElementTree.Element:
    """Run the command and return its drawing, parsed."""
    out = Path("graph.svg")
    assert main(["describe", f"support.topologies:{factory}", "--svg", str(out)]) == 0
    assert capsys.readouterr().err == "wrote graph.svg\n"
    return ElementTree.fromstring(out.read_bytes())


def texts(svg: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()) for text in svg.iter(f"{SVG}text")]


@each(
    ("factory", "topology"),
    [
        ("branching", branching()),
        ("storm_example", storm_example()),
        ("eight_components", eight_components()),
    ],
)
def test_the_drawing_has_every_component_and_grouping(
    factory: str, topology: Topology, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = drawn(capsys, factory)
    shown = texts(svg)
    document = topology.to_document()
    for component in document["components"]:
        slots, tasks = component["slots"], component["tasks"]
        assert component["id"] in shown
        assert component["class"] in shown
        assert f"{slots} slot{'' if slots == 1 else 's'}, {tasks} task{'' if tasks == 1 else 's'}" in shown
    inputs = [given for component in document["components"] for given in component["inputs"]]
    for given in inputs:
        label = f"{given['grouping']}({', '.join(given['fields'])})" if given["fields"] else given["grouping"]
        if given["stream"] != "default":
            assert f"stream {given['stream']}, {label}" in shown
        else:
            assert label in shown
    committers = sum(component["committer"] for component in document["components"])
    assert shown.count("committer") == committers
    assert any(text.startswith(f"{topology.id}: {topology.kind}, ") for text in shown)
    boxes = [rect.get("class") for rect in svg.iter(f"{SVG}rect")]
    assert boxes.count("node committer") == committers
    assert len(boxes) == len(document["components"])
    edges = [path for path in svg.iter(f"{SVG}path") if path.get("class") == "edge"]
    assert len(edges) == len(inputs)


def test_the_file_needs_no_style_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    svg = drawn(capsys, "eight_components")
    (style,) = svg.iter(f"{SVG}style")
    rules = "".join(style.itertext())
    used = {name for one in svg.iter() for name in one.get("class", "").split()} - {"graph"}
    assert used >= {"node", "source", "commit", "committer", "edge", "head", "name", "middle"}
    assert all(f".{name} {{" in rules for name in used)


def test_a_drawing_is_the_same_bytes_in_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn(capsys, "branching")
    script = "from txstream.cli.main import main; main()"
    arguments = ["describe", "support.topologies:branching", "--svg", str(tmp_path / "other.svg")]
    subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert (tmp_path / "other.svg").read_bytes() == Path("graph.svg").read_bytes()


@each("name", ["$x_1$ & <b>", 'a"--]]>', "größe 語", "esc\x1b\x00\ufffe\ud800", "x" * 300])
def test_any_name_makes_a_readable_document(name: str) -> None:
    from txstream.plugins.notebook.topology import draw_topology

    builder = declared("odd")
    builder.set_bolt(name, Passing()).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping(name)
    shown = texts(ElementTree.fromstring(draw_topology(builder.build())))
    expected = {
        "esc\x1b\x00\ufffe\ud800": r"esc\x1b\x00\ufffe\ud800",
        "x" * 300: f"{'x' * 47}…",
    }
    assert expected.get(name, name) in shown


def test_the_commit_phase_is_below_the_processing() -> None:
    from txstream.plugins.notebook.topology import draw_topology

    svg = ElementTree.fromstring(draw_topology(eight_components()))
    height = {"".join(text.itertext()): float(text.get("y", "nan")) for text in svg.iter(f"{SVG}text")}
    phases = {component.id: str(component.phase) for component in eight_components().components}
    lowest = max(height[name] for name, phase in phases.items() if phase == "process")
    assert all(height[name] > lowest for name, phase in phases.items() if phase == "commit")


# --- errors --------------------------------------------------------------------------------------------


def refused(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    """Run the command, which must be refused, and return the one line that it prints."""
    assert main(["describe", *arguments]) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    return err


@each(
    ("arguments", "words"),
    [
        ([], ["MODULE:FACTORY"]),
        (["word_count"], ["'word_count'", "MODULE:FACTORY"]),
        (["no_such_module:topology"], ["no module 'no_such_module'"]),
        (["support.topologies:no_such"], ["no 'no_such'", "word_count", "storm_example"]),
        ([WORD_COUNT, "-p", "paralelism=2"], ["'paralelism'", "parallelism"]),
        ([WORD_COUNT, "-p", "parallelism=two"], ["an int", "'two'"]),
        ([WORD_COUNT, "--width", "2"], ["--width", "--stages"]),
        ([WORD_COUNT, "--stages", "--width", "0"], ["--width 0", "1 to 2 Spark tasks"]),
        ([WORD_COUNT, "--stages", "--width", "3"], ["--width 3", "no component has more than 2 slots"]),
        ([WORD_COUNT, "--svg", "."], ["--svg .", "folder", "topology.svg"]),
        ([WORD_COUNT, "--svg", "missing/graph.svg"], ["missing/graph.svg", "No such file or directory"]),
    ],
)
def test_usage_errors(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, 2, *arguments)
    assert all(word in message for word in words), message


def failing() -> None:
    raise LookupError("the file of stop words is missing")


def nothing() -> None:
    pass


class Connection:
    def __reduce__(self) -> str:
        raise TypeError("a connection stays here")


class Holding(Passing):
    def __init__(self) -> None:
        self.connection = Connection()


def unpicklable() -> Topology:
    builder = declared("holding")
    builder.set_bolt("hold", Holding()).shuffle_grouping("lines")
    builder.set_bolt("store", SqlStateBolt(words_state(), n=Count())).global_grouping("hold")
    return builder.build()


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("failing", ["raised LookupError: the file of stop words is missing"]),
        ("nothing", ["returned None, not a Topology", "builder.build()"]),
    ],
)
def test_a_factory_that_fails_ends_with_status_1(
    factory: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, 1, f"{__name__}:{factory}")
    assert all(word in message for word in words), message


def test_stages_refuse_a_bolt_that_cannot_be_shipped_which_the_text_alone_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told(capsys, f"{__name__}:unpicklable")
    message = refused(capsys, 1, f"{__name__}:unpicklable", "--stages")
    assert "component 'hold' cannot be shipped to executors" in message
    assert "prepare()" in message


def test_a_warning_of_build_is_told(tmp_path: Path) -> None:
    (tmp_path / "near.py").write_text(
        "from txstream import CountBolt\n"
        "from txstream.examples import word_count\n"
        "class Near(CountBolt):\n"
        "    def finishBatch(self): pass\n"
        "word_count.CountBolt = Near\n"
        "topology = word_count.topology\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "txstream", "describe", "near:topology", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout)
    assert done.stderr == "component 'count': Near.finishBatch is never called; did you mean finish_batch?\n"
