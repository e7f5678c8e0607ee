"""What a notebook cell shows when its last line is a topology, a run or a report."""

from __future__ import annotations

import base64
import re
import sys
import threading
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.topologies import eight_components, word_count
from support.tracked import Lines, Split

from txstream import Settings, TopologyBuilder, UsageError, start
from txstream.api.topology import Topology
from txstream.core.tabular import html_table
from txstream.core.waits import wait_until
from txstream.engine import notebook
from txstream.engine.loop.report import RunReport
from txstream.testing import InProcessRunner

REPORT = RunReport("words", "0", "opaque", 2, 3, 9, 7, 7000, 1, 0, 0, 2.0, True)
HOSTILE = "a--><script>alert(1)<&script>\"'$x$"


class Page(HTMLParser):
    """The tags and texts of a document, with entities turned into characters."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(document)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def test_a_topology_is_its_id_and_components() -> None:
    assert repr(word_count()) == "<Topology word-count (opaque): lines, split, count, store>"
    assert repr(eight_components()).endswith(", and 2 more>")


def drawing(topology: Topology) -> Page:
    """Return the image that a notebook shows."""
    shown = topology._repr_html_()
    assert Page(shown).tags == ["div", "img"]
    coded = re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', shown)
    assert coded is not None
    return Page(base64.b64decode(coded[1]).decode())


def test_a_topology_is_drawn() -> None:
    page = drawing(word_count())
    assert page.tags[0] == "svg"
    assert {"lines", "split", "count", "store", "fields(word)"} <= set(page.texts)


def test_a_topology_without_a_commit_phase_is_drawn() -> None:
    builder = TopologyBuilder("forgets")
    builder.set_spout("lines", Lines())
    builder.set_bolt("split", Split()).shuffle_grouping("lines")
    page = drawing(builder.build())
    assert {"lines", "split"} <= set(page.texts)
    assert not {"commit phase", "committer"} & set(page.texts)


def test_ids_do_not_act_in_the_page() -> None:
    topology = word_count()
    first, *others = topology.components
    hostile = replace(topology, id=HOSTILE, components=(replace(first, id=HOSTILE), *others))
    others[0] = replace(others[0], inputs=(replace(others[0].inputs[0], component=HOSTILE),))
    page = drawing(replace(hostile, components=(hostile.components[0], *others)))
    assert "script" not in page.tags
    assert HOSTILE in page.texts


def test_a_report_is_a_line_and_a_table() -> None:
    assert repr(REPORT) == "<RunReport words: txid 9 committed, 7 batches, 7,000 records in 2.0 s>"
    page = Page(replace(REPORT, topology="<b>")._repr_html_())
    assert page.texts[:5] == ["run of <b> (opaque)", "first txid", "3", "last txid", "9"]
    assert {"7,000", "3,500", "yes"} <= set(page.texts)


def test_a_run_is_how_far_it_is_and_what_ended_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)
    running = start(word_count(), settings=Settings(data_dir=tmp_path), runner_factory=InProcessRunner)
    running.stop()
    assert repr(running) == "<RunningTopology word-count: failed with UsageError, txid 0 committed>"
    texts = Page(running._repr_html_()).texts
    assert texts[:5] == ["topology word-count (opaque)", "state", "ended", "committed txid", "0"]
    assert any("no ZooKeeper was given" in text for text in texts)


class Handle:
    """Stands for IPython: keeps what is displayed, and what it is replaced by."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def HTML(self, text: str) -> str:  # noqa: N802 - IPython's name
        return text

    def display(self, text: str, *, display_id: bool) -> Handle:
        assert display_id
        self.shown.append(text)
        return self

    def update(self, text: str) -> None:
        self.shown.append(text)


def test_what_is_shown_live_is_replaced_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    monkeypatch.setitem(sys.modules, "IPython.display", handle)
    monkeypatch.setattr(notebook, "_UPDATE_SECONDS", 0.001)
    text, end = ["1"], threading.Event()
    run = threading.Thread(target=end.wait)
    run.start()
    display = notebook.show_live(lambda: text[0], run)
    text[0] = "2"
    wait_until(lambda: handle.shown[-1] == "2", 60)
    text[0] = "3" if run.is_alive() else "the run has ended by itself"
    wait_until(lambda: handle.shown[-1] == "3", 60)
    end.set()
    display.join(60)
    assert handle.shown == ["1", "2", "3"], "once for each change"


def test_wait_returns_after_the_display_shows_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, goes_on = Handle(), threading.Event()
    monkeypatch.setitem(sys.modules, "IPython.display", handle)
    monkeypatch.setattr(notebook, "_UPDATE_SECONDS", 3_600)
    monkeypatch.setattr("txstream.engine.run.in_notebook", lambda: True)
    monkeypatch.delenv("TXSTREAM_ZOOKEEPER", raising=False)
    monkeypatch.chdir(tmp_path)

    def run(_: object) -> None:
        goes_on.wait(60)
        raise UsageError("ended")

    monkeypatch.setattr("txstream.engine.run.Driver.run", run)
    running = start(word_count(), settings=Settings(data_dir=tmp_path), runner_factory=InProcessRunner)
    running._ipython_display_()
    assert "starting" in handle.shown[0]
    goes_on.set()
    with pytest.raises(UsageError):
        running.wait(60)
    assert len(handle.shown) == 2, "the last replacement came before the cell's end"
    assert "ended" in handle.shown[1]


def test_elsewhere_a_run_is_its_repr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not notebook.in_notebook()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TXSTREAM_ZOOKEEPER", raising=False)
    running = start(word_count(), settings=Settings(data_dir=tmp_path), runner_factory=InProcessRunner)
    running.stop()
    running._ipython_display_()
    assert capsys.readouterr().out == f"{running!r}\n"
    assert running._line_html() == "<div>word-count: ended, txid 0 committed, 0 records, 0 s</div>"


def test_a_long_text_is_cut() -> None:
    assert len(html_table("t", [["error", "x" * 10_000]])) < 1_000
