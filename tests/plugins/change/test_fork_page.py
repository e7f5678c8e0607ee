"""The page of a topology that has a fork: what differs, and the button that swaps."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from pathlib import Path

import pytest
from plugins.change.test_forks import ForkRig, more
from support.ui_site import Served

from txstream.plugins.change import swapping
from txstream.spouts.memory import MemorySpout

FORK = "/topologies/words/also/fork-new"


def test_the_page_compares_and_swaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MemorySpout("word string, number bigint", {"words/0": [("<b>", 1), ("b", 2), ("<b>", 3)]}) as source:
        rig = ForkRig(tmp_path, source)
        rig.start().run()
        more(rig)
        served = Served.over(rig.zookeeper, rig.urls[0], monkeypatch, allow_operate=True)
        assert "/also/" not in served.get("/topologies/words")
        assert rig.zookeeper.topologies() == ["words"]
        rig.fork(start="2")
        served.forget()
        for name in ("words", "new"):
            assert "words and its fork new" in served.get(f"/topologies/{name}")
        assert "new is a fork of words, from txid 2; 4 records behind it." in served.get(FORK)
        answer = served.post(f"{FORK}/diff")
        assert (answer.status_code, "is 4 records behind" in answer.text) == (400, True)
        rig.run_fork()
        looking = Served.over(rig.zookeeper, rig.urls[0], monkeypatch)
        shown = looking.post(f"{FORK}/diff").text
        assert "words at txid 4 and new at txid 3 are at the same place." in shown
        cells = re.findall(r"<tr>\n(<td.*?)</tr>", shown, re.DOTALL)
        told = [[*map(str.strip, re.findall(r"<td[^>]*>(.*?)</td>", one))] for one in cells]
        assert ["words_0", "3", "1", "0", "1"] in told
        assert [one[:3] for one in told[-2:]] == [["b", "1", "-"], ["&lt;b&gt;", "2", "1"]]
        for path in ("swap", "swap/yes"):
            assert looking.post(f"{FORK}/{path}").status_code == 403
        assert "Swap" not in looking.get(FORK)
        assert rig.test is not None
        assert rig.forked is not None
        rig.test.crash()
        rig.forked.crash()
        monkeypatch.setattr(swapping, "open_zookeeper", served._opened)
        monkeypatch.setattr(swapping, "elected", lambda *_: contextlib.nullcontext())
        served.forget()
        question = served.post(f"{FORK}/swap").text
        assert "kept, words_0, words_1 of words are those of new, by txid 5" in question, question
        assert "words_0__before_new" in question
        assert rig.totals(0) == {"<b>": 2, "b": 1, "a": 1, "c": 1, "d": 1}, "the dry run has changed nothing"
        done = served.post(f"{FORK}/swap/yes")
        assert done.status_code == 200
        with sqlite3.connect(rig.files[0]) as connection:
            found = connection.execute("SELECT details FROM txstream_batch WHERE txid = 5").fetchone()[0]
        assert json.loads(found)["swap"]["by"] == "page from testclient"
        assert rig.totals(0) == {"<b>": 1, "a": 1, "c": 1, "d": 1}
        served.forget()
        served.get(FORK, 404)
        rig.test.close()
        rig.forked.close()
