"""The guides say which keys `--json` documents have; here they are compared with what commands print."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.memory_zookeeper import MemoryZooKeeper
from support.replays import run

from txstream import BasicBolt, DeadLetters, MemorySpout, OutputCollector, Settings, Tuple
from txstream.cli import failures_shown, status
from txstream.cli.context import Cli
from txstream.cli.factory import load_topology
from txstream.cli.main import main
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.transaction import AttemptId, Epoch, TransactionAttempt, Txid, attempt_id
from txstream.inspect import overview, source
from txstream.inspect.source import SourceNow
from txstream.plugins.audit import fsck_run
from txstream.plugins.compare.attempts import Made, Timeline
from txstream.plugins.compare.command import Comparison, _tell
from txstream.plugins.compare.run import Outcome
from txstream.plugins.compare.schedule import Fault, Injector
from txstream.plugins.notebook.attempt_chart import Fate
from txstream.zookeeper import FAILING, ROOT, WAITING, Paths
from txstream.zookeeper.candidates import candidate_data
from txstream.zookeeper.notes import Note

pytest.importorskip("prometheus_client")
from support.measured import MeasuredRun, counting

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [(DOCS / name).read_text(encoding="utf-8") for name in ("inspection.md", "reference/formats.md")]
Printed = Callable[..., Any]


class Check(BasicBolt):
    """Fails at a bad line. It counts its tuples, so an attempt fails before the line is left out."""

    output = "word string"
    tuples = 0

    def execute(self, tup: Tuple, collector: OutputCollector) -> None:
        self.tuples += 1
        if tup["value"] == "bad":
            raise ValueError("bad")
        collector.emit((tup["value"],))


@pytest.fixture
def printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run a command; return its document."""
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run_command(*words: str) -> Any:
        capsys.readouterr()
        main([*words, "--json"])
        return json.loads(capsys.readouterr().out)

    return run_command


def documented(command: str) -> str:
    """Return what a guide says of a command's document."""
    tables = "".join(guide.partition("| command | document |\n")[2].partition("\n\n")[0] for guide in GUIDES)
    found = re.findall(rf"^\| `{command}` \| (.*) \|$", tables, re.MULTILINE)
    assert len(found) == 1, command
    return str(found[0])


def keys_in(text: str) -> dict[str, str]:
    """Return the keys that a text names, each with what it says of the key in parentheses behind it."""
    found: dict[str, str] = {}
    depth = 0
    for token in re.findall(r"`[^`]*`|[()]|[^`()]+", text):
        depth -= token == ")"
        if depth:
            found[[*found][-1]] += token
        elif token.startswith("`"):
            found[token.strip("`")] = ""
        depth += token == "("
    return found


def differences(documents: Any, text: str, where: str, others: Mapping[str, str] | None = None) -> list[str]:
    """Compare documents, or the one document, with what a text says of their keys. Where it says only that
    they are as another one, that is among the `others`."""
    others = others or {"topologies": documented("topologies")}
    said, found = keys_in(text), list[str]()
    if len(said) == 1 and said.keys() <= others.keys():
        said = keys_in(others[next(iter(said))])
    for one in documents if isinstance(documents, list) else [documents]:
        may_lack = {name for name, more in said.items() if more.startswith("if ")}
        if not one.keys() <= said.keys() or not said.keys() - may_lack <= one.keys():
            found.append(f"{where} has {sorted(one)}, and the guide says {sorted(said)}")
        for name in one.keys() & said.keys():
            value, more = one[name], said[name]
            if (
                isinstance(value, Mapping)
                and keys_in(more)
                and all(isinstance(v, Mapping) for v in value.values())
            ):
                value = [*value.values()]
            has_items = isinstance(value, list) and value and isinstance(value[0], Mapping)
            if has_items and "rows by column" not in more:
                found += differences(value, more, f"{where}: {name}", {**said, **others})
    return found


def test_the_documents_of_a_run_are_as_the_guide_says(
    printed: Printed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a topology that has left a record out, whose next batch fails, and which waits."""
    zookeeper, paths, database = MemoryZooKeeper(), Paths(ROOT, "word-count"), tmp_path / "state.db"
    lines = {"lines/0": ["good", "bad", "good"]}
    with MemorySpout("value string", lines) as spout:
        asked = DeadLetters()
        measured = MeasuredRun(counting(spout, Check(), dead_letters=asked), database, zookeeper.memory)
        measured.start()
        measured.wait_for(2)
        measured.stop()
    for module in (status, overview, failures_shown, fsck_run):
        monkeypatch.setattr(module, "open_zookeeper", zookeeper.opened)
    monkeypatch.setattr(source, "source_now", lambda *_: SourceNow(1))
    for number in (1, 2):
        zookeeper.memory.write(f"{paths.leader}/{'a' * 32}-{number:010d}", candidate_data())
    now = datetime.now(UTC)
    notes: list[tuple[Note[Any], Any]] = [
        (FAILING, FailingBatch(Txid(3), attempt_id(1, 9), now, {"it is away": 1})),
        (WAITING, [Wait("ZooKeeper", now, "", "it is away")]),
    ]
    for note, value in notes:
        zookeeper.memory.write(paths.note(note.name), note.encode(value, Epoch(1)) or b"")
    away = ("--zookeeper", "127.0.0.1:1", "--database", f"sqlite:///{database}")
    record = ("--topic", "lines", "--partition", "0", "--offset", "1")
    found = {
        "status": printed("status", *away, "--kafka", "127.0.0.1:2", "--connect-timeout", "0.1"),
        "status ID": printed("status", "word-count", *away),
        "topologies": printed("topologies", *away),
        "batches": printed("batches", "word-count", *away[2:]),
        "dead-letters list": printed("dead-letters", "list", "word-count", *away[2:]),
        "fsck": printed("fsck", "word-count", *away),
        "wait": printed("wait", "word-count", *record, *away[2:]),
    }
    has_items = found["status ID"]["standbys"], found["status ID"]["waiting"], found["fsck"]["findings"]
    assert all((*has_items, found["dead-letters list"]["dead_letters"]))
    assert [line for name, one in found.items() for line in differences(one, documented(name), name)] == []
    as_batches, _, failing = documented("show").partition("; for a batch that fails and is in no ledger ")
    _, _, more = as_batches.partition("with ")
    shown = printed("show", "word-count", "1", *away)
    assert shown["failed_attempts"]
    assert differences(shown, f"{documented('batches')}, {more}", "show") == []
    assert differences(printed("show", "word-count", "3", *away), failing, "show") == []


CODE = """
from support.replays import Changed, Words, topology
from txstream.spouts.files import FileSpout

def made(changed: bool = False):
    return topology(FileSpout("lines"), Changed if changed else Words)
"""


def test_the_documents_of_batches_run_again_are_as_the_guide_says(printed: Printed, tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("the cat\nthe dog\n")
    (tmp_path / "recounting.py").write_text(CODE)
    url = f"sqlite:///{tmp_path / 'state.db'}"
    run(load_topology("recounting:made", []), url)
    try:
        code = ("--database", url, "--topology", "recounting:made")
        again = printed("replay", "words", "1", "--component", "split", *code, "-p", "changed=true")
        why = printed("why", "words", "words", "the", *code)
    finally:
        del sys.modules["recounting"]
    assert all((again["tables"][0]["changes"], again["tuples"], why["parts"]))
    assert differences(again, documented("replay"), "replay") == []
    assert differences(why, documented("why"), "why") == []


def test_the_document_of_doctor_is_as_the_guide_says(printed: Printed) -> None:
    found = printed("doctor", "--no-spark", "--zookeeper", "127.0.0.1:1", "--connect-timeout", "0.1")
    assert differences(found, documented("doctor"), "doctor") == []
    (example,) = re.findall(r"```json\n(.*)\n```", (DOCS / "doctor.md").read_text(encoding="utf-8"))
    assert differences(json.loads(example), documented("doctor"), "the guide's") == []


def test_the_document_of_compare_is_as_the_guide_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcomes = {}
    for semantics in ("opaque", "transactional", "non-transactional"):
        outcomes[semantics] = Outcome(Timeline(), Injector((Fault("crash", 9),)), {"words": {("a",): (3,)}})
        attempt = TransactionAttempt(Txid(1), AttemptId(1))
        outcomes[semantics].timeline.made.append(Made(attempt, {"p": (0, 1)}, 1.0, 2.0, Fate.COMMITTED))
    with MemorySpout("value string", {"lines/0": []}) as lines:
        settings, faults = Settings(data_dir=tmp_path), (Fault("partition", 5), Fault("crash", 9))
        here = Comparison(Cli(settings=settings, as_json=True), settings, "m:f", (), 9, faults, None, False)
        _tell(here, "txstream compare m:f", counting(lines), outcomes, None)
    found = json.loads(capsys.readouterr().out)
    assert found["semantics"]["opaque"]["faults_that_never_came"]
    assert differences(found, documented("compare"), "compare") == []
