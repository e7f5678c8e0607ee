"""`txstream replay` and `why` as a user types them, over files instead of Kafka."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest
from support.nursery import nursery
from support.replays import run
from support.runs import RunningCommand

from txstream.cli.code import remember_code
from txstream.cli.factory import load_topology
from txstream.cli.main import main
from txstream.core.errors import UsageError
from txstream.plugins.audit.replay_command import _range
from txstream.settings import Settings

CODE = """
from pathlib import Path
from support.replays import Changed, Words, topology
from txstream.spouts.files import FileSpout

def made(changed: bool = False):
    return topology(FileSpout("lines"), Changed if changed else Words)
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A folder with two files of lines and the code that counts their words, run once."""
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("the cat\nthe dog\n")
    (tmp_path / "lines" / "b.txt").write_text("a cat\nthe end\n")
    (tmp_path / "counting.py").write_text(CODE)
    settings = Settings().resolve()
    settings.make_data_dir()
    run(load_topology("counting:made", []), settings.database_url())
    remember_code(settings, "words", "counting:made", [])
    yield settings
    sys.modules.pop("counting", None)


def typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(arguments)
    return status, *capsys.readouterr()


def test_a_replay_is_the_same(desk: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = typed(capsys, "replay", "words", "1..2")
    assert status == 0, err
    assert "code: counting:made, as it was last run here" in err
    assert [line.split() for line in out.splitlines()[3:5]] == [
        ["1", "words", "same", "2", "3", "3", "-"],
        ["2", "words", "same", "2", "3", "3", "-"],
    ]
    status, out, _ = typed(capsys, "replay", "words", "2", "--json")
    document = json.loads(out)
    assert (status, document["same"]) == (0, True)
    assert [(one["txid"], one["table"], one["same"]) for one in document["tables"]] == [(2, "words", True)]
    assert (document["batches"][0]["records"], document["batches"][0]["records_read"]) == (2, 2)


def test_changed_code_is_different_by_key(desk: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    code = ("--topology", "counting:made", "-p", "changed=true")
    status, out, err = typed(capsys, "replay", "words", "2", *code)
    assert status == 1
    assert "keys, n, longest" in out
    assert "txid 2 of words differs; " in err
    shown = [line.split()[0] for line in out.splitlines() if line]
    status, out, _ = typed(capsys, "replay", "words", "2", *code, "--json")
    document = json.loads(out)
    assert (status, document["same"]) == (1, False)
    changes = {one["key"]["word"]: one for one in document["tables"][0]["changes"]}
    assert changes["new"]["written"] is None
    assert changes["new"]["replayed"]["n"] > 0
    assert set(changes) <= set(shown)


def test_other_code_is_compared_with_productions_for_a_ci_job(
    desk: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "changed.py").write_text(
        "import counting\n\ndef made(changed: bool = True):\n    return counting.made(changed)\n"
    )
    code = ("replay", "words", "1..2", "--code", "changed:made", "--junit", "out.xml")
    status, out, err = typed(capsys, *code)
    assert (status, "3 keys would differ; 3 shown" in err) == (1, True), err
    table = [line.split() for line in out.splitlines() if line.strip().startswith("words ")]
    assert ["words", "end", "written", "1", "n", "-1,", "longest", "-3"] in table
    suite = ElementTree.parse(tmp_path / "out.xml").getroot()
    assert suite.attrib == {
        "name": "txstream replay words", "tests": "2", "failures": "2", "errors": "0", "skipped": "0",
    }  # fmt: skip
    cases = [(one.get("classname"), one.get("name")) for one in suite]
    assert cases == [("txid 1", "words"), ("txid 2", "words")]
    assert "end: n -1, longest -3, only written, in 1 batch" in "".join(suite.itertext())
    status, out, _ = typed(capsys, *code, "--json")
    document = json.loads(out)
    assert document["differing"] == 3
    by = {one["key"]["word"]: one["by"]["n"] for one in document["differences"]}
    assert by == {"the": 3, "new": 3, "end": -1}
    same = ("--code", "changed:made", "-p", "changed=false", "--junit", "out.xml")
    assert typed(capsys, "replay", "words", "1..2", *same)[0] == 0
    assert ElementTree.parse(tmp_path / "out.xml").getroot().get("failures") == "0"
    for file in (tmp_path / "lines").iterdir():
        file.unlink()
    status, _, err = typed(capsys, *code)
    assert (status, ElementTree.parse(tmp_path / "out.xml").getroot().get("errors")) == (1, "1"), err


def test_tuples_are_shown_and_saved(
    desk: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = typed(capsys, "replay", "words", "1..2", "--component", "split")
    assert status == 0
    assert out.split()[:3] == ["txid", "task", "word"]
    for name in ("tuples.parquet", "tuples.jsonl"):
        status, _, err = typed(capsys, "replay", "words", "1..2", "--component", "split", "--out", name)
        assert (status, f"wrote 8 tuples to {name}" in err) == (0, True)
    saved = pq.read_table(tmp_path / "tuples.parquet").to_pylist()
    assert saved == [json.loads(line) for line in (tmp_path / "tuples.jsonl").read_text().splitlines()]
    assert sorted(row["word"] for row in saved) == ["a", "cat", "cat", "dog", "end", "the", "the", "the"]
    status, out, _ = typed(capsys, "replay", "words", "1", "--component", "lines", "--json")
    assert len(json.loads(out)["tuples"]) == 2


def test_deltas_go_into_a_table(desk: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = typed(capsys, "replay", "words", "1..2", "--into", "seen")
    assert (status, "wrote the deltas to the new table seen" in err) == (0, True)
    status, _, err = typed(capsys, "replay", "words", "1", "--into", "seen")
    assert (status, "table 'seen' exists" in err) == (2, True)


def test_why_a_value_is_what_it_is(desk: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = typed(capsys, "why", "words", "words", "the")
    assert status == 0, err
    assert "n 3, longest 3 as of txid 2: 3 parts, all of it" in err
    assert len(out.splitlines()) == 7
    status, out, _ = typed(capsys, "why", "words", "words", "the", "--json")
    document = json.loads(out)
    assert document["is_complete"]
    assert {"txid", "partition", "offset", "delta"} <= document["parts"][0].keys()
    assert sum(part["delta"]["n"] for part in document["parts"]) == 3
    status, out, err = typed(capsys, "why", "words", "words", "zebra", "--json")
    assert (status, json.loads(out)["value"]) == (1, None)
    assert "has no row of key zebra" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("replay", "words", "x"), "'x' is neither a txid nor a range"),
        (("replay", "words", "2..1"), "neither a txid nor a range"),
        (("replay", "words", "1", "--out", "a.parquet"), "give --component NAME"),
        (("replay", "words", "1", "--component", "split", "--out", "a.csv"), ".parquet or .jsonl"),
        (("replay", "words", "1", "--table", "words"), "--into TABLE"),
        (("replay", "words", "1", "-p", "changed=true"), "--topology MODULE:FACTORY; give that"),
        (("replay", "others", "1"), "was not run from this folder; give its code by --topology"),
    ],
)
def test_what_cannot_be_meant(
    desk: Settings, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    status, out, err = typed(capsys, *arguments)
    assert (status, out) == (2, "")
    assert told in err


def test_a_range_of_txids() -> None:
    assert (_range("7"), _range("7..9")) == ((7, 7), (7, 9))
    with pytest.raises(UsageError):
        _range("0")


def test_what_a_run_was_given_is_for_its_user_alone(desk: Settings) -> None:
    """A parameter may be a password."""
    file = desk.data_dir / "code" / "words.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    written: dict[str, Any] = json.loads(file.read_text())
    assert written == {"target": "counting:made", "parameters": []}


DEADLY = """
import os
import signal

from support.replays import topology
from txstream.plugins.files import FileEmitter
from txstream.spouts.files import FileSpout


class Emitter(FileEmitter):
    def emit(self, attempt, partition, meta):
        for batch in super().emit(attempt, partition, meta):
            if "the end" in batch.column(0).to_pylist():
                os.kill(os.getpid(), signal.SIGSEGV)
            yield batch


class Deadly(FileSpout):
    def emitter(self, context):
        return Emitter(self)


def made():
    return topology(Deadly("lines"))
"""


def test_a_record_whose_decoder_ends_its_process_ends_no_command(desk: Settings, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text(DEADLY)
    code = ("--topology", "deadly:made")
    for command in (("replay", "words", "1..2"), ("why", "words", "words", "the")):
        ended = RunningCommand(
            nursery().start(["-m", "txstream", *command, *code], tmp_path, os.environ)
        ).wait(60)
        assert ended.status == 1, ended.stderr
        assert "txid 2 attempt 1.2: its worker process ended: signal 11 (Segmentation fault)" in ended.stderr
