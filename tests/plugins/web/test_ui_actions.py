"""What can be asked from the page: a comparison, and what an operator may do, if it is allowed."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import pytest
from support.states import Rig
from support.ui_site import Served

from txstream.plugins.compare import kept
from txstream.plugins.web import (
    site as site_module,
)
from txstream.zookeeper import (
    Kind,
)

# --- comparisons -------------------------------------------------------------------------------------------


COMPARED = {
    "topology": "mine:<b>topology",
    "date": "2026-01-02 12:00:00+00:00",
    "command": "txstream compare mine:topology",
    "version": "0.1.0",
    "engine": "this process",
    "truth": "the text itself",
    "nothing_shown": None,
    "true_totals": {"words.n": 7},
    "semantics": {"opaque": {"exact": True}, "non-transactional": {"exact": False}},
    "told": {"opaque": "exact", "non-transactional": "1 doubled in words.n"},
    "side_by_side": [["exact", [True, False]], ["words.n", [7, 8]]],
    "faults_in_words": ["txid 3 fails"],
    "charts": {"opaque": "<svg class='drawn'></svg>", "non-transactional": "<svg class='drawn'></svg>"},
    "description": "lines",
}


def test_comparisons_are_kept_and_shown(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "None yet" in served.get("/compare")
    monkeypatch.setattr(kept, "MOST_KEPT", 3)
    names = [kept.keep(Path(".txstream"), COMPARED) for _ in range(5)]
    found = served.json("/api/compare")
    listed = [one["name"] for one in found["kept"]]
    assert len(listed) == 3
    assert set(listed) < set(names)
    assert found["kept"][0]["exact"] == {"opaque": True, "non-transactional": False}
    listing = served.get("/compare")
    assert f'href="/compare/{listed[0]}"' in listing
    assert "1 doubled in words.n" in listing
    text = served.get(f"/compare/{listed[0]}")
    assert text.count("<svg class='drawn'>") == 2
    assert "<b>topology" not in text
    assert served.json(f"/api/compare/{listed[0]}") == COMPARED
    for name in ("nix", "..%2f..%2fstate", "20260102T000000-abcdef"):
        served.get(f"/compare/{name}", 404)


def test_a_comparison_is_asked_for_once(ledger: Rig, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.post("/compare").status_code == 403
    assert "Start one" not in served.get("/compare")
    operating = Served(ledger, monkeypatch, allow_operate=True)
    started: list[list[str]] = []
    monkeypatch.setattr(operating.site.comparing, "start", started.append)
    form = {"topic": "lines", "target": "mine:topology", "parameters": "a=1 b=2", "records": "500"}
    form["faults"] = "crash"
    question = operating.get(f"/compare/ask?{urlencode(form)}")
    told = [
        "mine:topology",
        "--parameter=a=1",
        "--parameter=b=2",
        "--topic=lines",
        "--records=500",
        "--faults=crash",
    ]
    assert " ".join(["txstream compare", *told]) in question
    assert started == []
    assert operating.post("/compare", form).status_code == 303
    assert started == [told]
    for wrong in ({"target": "--help"}, {"parameters": "-x"}, {"records": "many"}, {"faults": "/etc/passwd"}):
        answer = operating.post("/compare", wrong)
        assert answer.status_code == 400
        assert next(iter(wrong.values())) in answer.text
    assert started == [told]


# --- what can be done --------------------------------------------------------------------------------------


def test_nothing_can_be_done_unless_it_is_allowed(served: Served) -> None:
    for path in ("ask/pause", "ask/retry", "batches/5/again", "state/words/why?key=the"):
        answer = served.post(f"/topologies/words/{path}")
        assert answer.status_code == 403, path
        assert "--allow-operate" in answer.text
    assert "Pause" not in served.get("/topologies/words")
    assert served.zookeeper.requests("words").read().waiting == ()


def test_an_action_is_asked_once_and_goes_through_the_queue(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(ledger, monkeypatch, allow_operate=True)
    monkeypatch.setattr(site_module, "_ANSWER_SECONDS", 0.1)
    question = served.get("/topologies/words/ask/pause")
    assert "Pause words?" in question
    assert served.zookeeper.requests("words").read().waiting == (), "a question asks nobody yet"
    answer = served.post("/topologies/words/ask/pause")
    assert answer.status_code == 503
    assert "has not answered within 0.1 s; the request is stored" in answer.text
    (request,) = served.zookeeper.requests("words").read().waiting
    assert (request.kind, request.asked_by) == (Kind.PAUSE, "page from testclient")
    served.client.post(
        "/topologies/words/ask/retry",
        headers={"origin": "http://127.0.0.1:8765"},
        data={"component": "parse"},
    )
    *_, request = served.zookeeper.requests("words").read().waiting
    assert (request.kind, dict(request.body)) == (Kind.RETRY, {"components": ["parse"]})
    assert served.get("/topologies/words/ask/dance", 404)
    asked = served.get("/topologies/words/ask/retry?component=parse")
    assert "Only those of parse, whatever their exception." in asked, "the button stands beside one exception"


def test_code_that_is_not_known_is_told(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(ledger, monkeypatch, allow_operate=True)
    assert (
        "No drawing of groupings and tables: the code of topology &#39;words&#39; is not known here"
        in served.get("/topologies/words/graph")
    )
