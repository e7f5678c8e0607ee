"""What the page shows and answers, over a SQLite ledger and a ZooKeeper in memory."""

from __future__ import annotations

import contextlib
import html
import json
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import uvicorn
from starlette.testclient import TestClient
from support.lists import each
from support.states import Rig, name_databases
from support.ui_site import AWAY, BASE, TXIDS, Served, filled
from support.zookeeper_backends import CODEC, metas

from txstream.api.spouts import HeldBack
from txstream.cli import failures_shown, status
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.placement import Assignment, EdgeTuples, TaskPlace
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.inspect import Batch, LedgerEntry, MissingDatabase, databases, overview, standing
from txstream.inspect.source import SourceNow
from txstream.plugins.compare import kept
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.web import (
    app as app_module,
    last_hour as hour_module,
    pages,
    site as site_module,
    views,
)
from txstream.plugins.web.app import make_app
from txstream.plugins.web.command import metrics_of
from txstream.plugins.web.site import Site
from txstream.plugins.web.timeline import seconds_of
from txstream.settings import Settings
from txstream.state import StateDatabase, open_database
from txstream.zookeeper import (
    ASSIGNMENT,
    EDGES,
    ENDED,
    FAILING,
    FAILING_ATTEMPTS,
    TREES,
    WAITING,
    Identity,
    Kind,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
VIEWS = (
    "",
    "/timeline",
    "/batches/5",
    "/source",
    "/state",
    "/state/words",
    "/failures",
    "/trust",
    "/graph",
)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("ZOOKEEPER", "KAFKA", "DATABASE", "MASTER", "STATE_DATABASES"):
        monkeypatch.delenv(f"TXSTREAM_{name}", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = filled(tmp_path_factory.mktemp("ledger"))
    yield rig
    rig.database.close()


@pytest.fixture
def served(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(ledger, monkeypatch)


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (["topologies"], "/api/topologies"),
        (["status", "words"], "/api/topologies/words"),
        (["batches", "words"], "/api/topologies/words/batches"),
        (
            ["batches", "words", "--before", "20", "--last", "4"],
            "/api/topologies/words/batches?before=20&limit=4",
        ),
        (["show", "words", "11"], "/api/topologies/words/batches/11"),
        (["show", "words", "31"], "/api/topologies/words/batches/31"),
    ],
)
def test_json_is_what_the_command_prints(
    ledger: Rig,
    served: Served,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    path: str,
) -> None:
    reasons = {"the service is away": 3}
    served.store.notes.put(FAILING, FailingBatch(Txid(TXIDS + 1), attempt_id(2, 9), NOON, reasons))
    for module in (status, overview, failures_shown):
        monkeypatch.setattr(module, "open_zookeeper", served.zookeeper.opened)
    assert main([*command, "--database", ledger.url, "--zookeeper", "127.0.0.1:1", "--json"]) == 0
    assert served.json(path) == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/topologies/nix", 404, "there is no topology 'nix'"),
        ("/topologies/nix/batches", 404, "there is no topology 'nix'"),
        ("/topologies/words/batches/99", 404, "no txid 99; it has txid 1 to 30"),
        ("/topologies/words/batches?before=x", 400, "before is 'x'"),
        ("/topologies/words/batches?limit=0", 400, "limit is '0'"),
        ("/topologies/words/batches?limit=10001", 400, "from 1 to 10000"),
        ("/topologies/words/state/nix", 404, "no state table 'nix'"),
        ("/nowhere", 404, "not found"),
    ],
)
def test_an_error_has_its_status_and_the_words_of_the_command(
    served: Served, path: str, status: int, words: str
) -> None:
    assert words in served.json(f"/api{path}", status)["error"]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_escapes_what_it_shows_and_loads_nothing_from_elsewhere(served: Served, view: str) -> None:
    text = served.get(f"/topologies/words{view}")
    assert "<b>bad" not in text
    assert not re.search(r"https?://|<style|\bstyle=|<script(?! src=\"/static/)|\bon\w+=", text)
    assert text.count("<h1") == 1


@pytest.mark.parametrize("view", ["", "/trust", "/batches/31", "/source"])
def test_a_zookeeper_that_is_away_is_told_in_words(served: Served, view: str) -> None:
    served.away = True
    words = "ZooKeeper at 127.0.0.1:1 did not answer"
    assert words in served.get(f"/topologies/words{view}", 503)
    assert words in served.json("/api/topologies/words", 503)["error"]
    assert words in served.get("/", 503)
    served.away = False
    served.forget()
    served.get("/topologies/words")


def test_a_batch_that_fails_shows_its_stored_plan(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(ledger, monkeypatch)
    served.store.persist(Txid(TXIDS + 1), metas(700))
    served.store.notes.put(FAILING, FailingBatch(Txid(TXIDS + 1), attempt_id(1, 99), NOON, {"away": 12}))
    ranges = served.json("/api/topologies/words/batches/31")["ranges"]
    assert [(one["start"], one["records"]) for one in ranges] == [(700, 10), (700, 10)]
    text = served.get("/topologies/words/batches/31")
    assert '<th scope="row">lines/0</th><td class="n">700</td>' in text
    assert "Nothing else is known of them" in text
    assert "12 attempts failed; what they held is not known." in served.get("/topologies/words/timeline")


@pytest.mark.parametrize("well", [True, False])
def test_a_first_batch_that_fails_shows_how_the_driver_before_ended(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch, well: bool
) -> None:
    served = Served(ledger, monkeypatch)
    if well:
        served.store.notes.put(ENDED, None)
    tried = {"attempt": attempt_id(2, 1), "error": "away", "failed_at": NOON.isoformat(), "same": True}
    held = {"partitions": {"lines/0": {"start": 700, "end": 710}}}
    failing = FailingBatch(Txid(TXIDS + 1), attempt_id(2, 1), NOON, {"away": 1}, held, [tried])
    for note in (FAILING_ATTEMPTS, FAILING):
        served.store.notes.put(note, failing)
    text = served.get("/topologies/words/timeline")
    assert "lines/0, 700 to 710: attempt 1 of txid 31 failed" in text
    assert ("handed to epoch 2" in text, "epoch 2 leads" in text) == (well, not well)


def test_a_batch_and_the_timeline_are_shown_from_the_ledger_while_zookeeper_is_away(served: Served) -> None:
    here = {view: served.get(f"/topologies/words{view}") for view in ("/batches/5", "/timeline")}
    served.away = True
    served.forget()
    away = {view: served.get(f"/topologies/words{view}") for view in here}
    told = "ZooKeeper at 127.0.0.1:1 did not answer"
    assert all(told in text for text in away.values())
    assert not any(told in text for text in here.values())
    assert "what it changed is shown of the tables that its ledger row names" in away["/batches/5"]
    assert "ValueError: &lt;b&gt;bad&lt;/b&gt;" in away["/batches/5"]
    assert "whether a batch fails, or the run waits, is not known" in away["/timeline"]
    assert "attempt 1 of txid 5 failed" in away["/timeline"]
    unknown = served.json("/api/topologies/words/batches/31", 503)["error"]
    assert unknown.startswith(
        "the ledger of topology 'words' has no txid 31; it has txid 1 to 30; whether it"
    )


def test_a_batch_names_the_database_that_was_left_out(
    ledger: Rig, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = MissingDatabase("mysql://far/db", "it does not answer", "start it")
    real = databases.open_databases

    @contextlib.contextmanager
    def opened(*given: Any, **options: Any) -> Iterator[Any]:
        with real(*given, **options) as found:
            found.missing.append(away)
            yield found

    monkeypatch.setattr(databases, "open_databases", opened)
    assert "database mysql://far/db was left out: it does not answer" in served.get(
        "/topologies/words/batches/5"
    )


def test_a_database_that_is_away_is_told_in_words(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(database: StateDatabase) -> None:
        raise ServiceUnavailableError(f"database {database.display_url} does not answer")

    monkeypatch.setattr(StateDatabase, "check", check)
    served.store.notes.put(WAITING, [Wait("the database", NOON, "", "gone")])
    for view in ("/timeline", "/batches/3", "/state", "/failures"):
        text = served.get(f"/topologies/words{view}", 503)
        assert "state.db does not answer" in text
        assert "Traceback" not in text
        # What ZooKeeper and Kafka know is there, and a way to what helps.
        assert "waiting for the database since" in text
        assert f"<dt>last txid</dt><dd>{TXIDS}</dd>" in text
        assert f"<dt>leader</dt><dd>{served.zookeeper.leader('words')}</dd>" in text
        assert "<dt>lag</dt><dd>its source is only known to the topology&#39;s code</dd>" in text
        assert "<dt>dead letters</dt><dd>not known</dd>" in text
        assert '<a href="/errors#ServiceUnavailableError">What to do</a>' in text
    assert "does not answer" in served.json("/api/topologies/words/batches", 503)["error"]
    # What ZooKeeper knows is shown, and what cannot be asked is not known, which is not 0.
    for view in ("", "/source", "/trust"):
        assert "does not answer" in served.get(f"/topologies/words{view}")
    found = served.json("/api/topologies/words")
    assert (found["current_txid"], found["dead_letters"], found["last_batch"]) == (TXIDS + 1, None, None)
    assert found["health"]["told"].startswith("waiting for the database since")
    (row,) = served.json("/api/overview")
    assert (row["state"], row["committed_txid"], row["dead_letters"]) == ("waiting", TXIDS, None)
    assert row["leader"]
    listed = served.get("/")
    assert "state.db was left out: does not answer" in listed
    assert 'href="/topologies/words"' in listed
    assert '<td data-label="dead letters" class="n">\n-\n</td>' in listed


def test_topologies_of_other_databases_are_shown_while_one_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = filled(tmp_path, 5)
    name_databases(ledger, [ledger.url])  # as a run does
    served = Served(ledger, monkeypatch)
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    places = served.site.settings
    served.site = Site(replace(places, database=other.display_url, state_databases=(ledger.url,)))
    served.client = TestClient(make_app(served.site), base_url=BASE)
    check = StateDatabase.check

    def checked(database: StateDatabase) -> None:
        if database.display_url == other.display_url:
            raise ServiceUnavailableError(f"database {database.display_url} does not answer")
        check(database)

    monkeypatch.setattr(StateDatabase, "check", checked)
    (tmp_path / "other.db").touch()
    for view in VIEWS:
        assert "does not answer" not in served.get(f"/topologies/words{view}"), view
    assert served.json("/api/topologies/words")["dead_letters"] == 0


def test_each_error_that_is_shown_leads_to_its_remedy(
    ledger: Rig, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = served.get("/errors")
    anchors = set(re.findall(r'<code id="(\w+)">', page))
    assert {"ServiceUnavailableError", "AnswerLostError", "BoltError", "CoordinatorError"} <= anchors
    assert "<code>txstream dead-letters retry ID</code>; or allow more" in page
    assert "`" not in page.partition("<main")[2]
    reasons = {"component 'split': ValueError; the run's output has the message": 3, "DataLostError": 1}
    served.store.notes.put(FAILING, FailingBatch(Txid(TXIDS + 1), attempt_id(2, 9), NOON, reasons))
    leads = {
        "": "DataLostError", "/batches/5": "BoltError", f"/batches/{TXIDS + 1}": "DataLostError",
        "/failures": "BoltError",
    }  # fmt: skip
    for view, name in leads.items():
        linked = re.findall(r'href="/errors#(\w+)"', served.get(f"/topologies/words{view}"))
        assert name in linked, view
        assert {*linked} <= anchors, view
    assert "/errors#UnknownTopologyError" in served.get("/topologies/nix", 404)


def test_the_dead_letters_of_a_database_that_the_page_does_not_have_are_not_known(
    ledger: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(ledger, monkeypatch)
    other = open_database(f"sqlite:///{tmp_path / 'other.db'}")
    served.site = Site(replace(served.site.settings, database=other.display_url))
    served.client = TestClient(make_app(served.site), base_url=BASE)
    (row,) = served.json("/api/overview")
    assert (row["committed_txid"], row["dead_letters"], row["age_seconds"]) == (TXIDS, None, None)
    (told,) = row["missing"]
    assert told.startswith("its database was left out: none that is known here has anything of it; give the")
    assert told in html.unescape(served.get("/topologies/words"))
    fresh = MemoryProgress(served.zookeeper.memory, "fresh", CODEC)
    fresh.create_identity(Identity.new(Semantics.OPAQUE, "x.Source", {}, ("words",)))
    fresh.claim_epoch(Epoch(0))
    served.forget()
    rows = {row["id"]: row for row in served.json("/api/overview")}
    assert (rows["fresh"]["dead_letters"], rows["fresh"]["missing"]) == (0, []), "it has committed nothing"


def test_topologies_say_what_waits_and_for_what(served: Served) -> None:
    served.store.notes.put(WAITING, [Wait(f"partition {AWAY}", NOON, "txid 31 must hold the same", "gone")])
    text = served.get("/")
    assert f"waiting for partition {AWAY} since" in text
    assert ">waiting<" in text
    (row,) = served.json("/api/overview")
    assert (row["state"], row["committed_txid"], row["dead_letters"]) == ("waiting", TXIDS, 0)
    assert row["leader"]


def test_the_page_status_and_the_list_have_the_same_words_for_how_a_topology_is(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served = Served(ledger, monkeypatch)
    monkeypatch.setattr(status, "open_zookeeper", served.zookeeper.opened)
    pause = Wait("`txstream resume words`", NOON, "paused by ann@host", "since 12:00")
    away = Wait("the database", NOON, "", "gone")
    search = Wait("what fails in txid 31", NOON, "1 of 50,000 records left to try", "txid 31")
    tried = {"attempt": attempt_id(2, 1), "error": "no", "failed_at": NOON.isoformat(), "same": True}
    states = [
        ((), None, "healthy", "healthy"),
        ((pause,), None, "paused", "paused"),
        ((pause, away), None, "waiting", f"waiting for {away}"),
        ((), tried, "retrying a batch", "retrying a batch: 1 attempt of txid 31 failed"),
        (
            (search,),
            tried,
            "leaving out records",
            "leaving out records: looking for what fails in txid 31: 1 of ",
        ),
        ((), {**tried, "stays": True}, "failing", "failing: 1 attempt of txid 31 failed"),
    ]
    for waits, failed, word, told in states:
        served.forget()
        served.store.notes.put(WAITING, waits)
        if failed is not None:
            failing = FailingBatch(Txid(TXIDS + 1), attempt_id(2, 1), NOON, {"no": 1}, {}, [failed])
            for note in (FAILING, FAILING_ATTEMPTS):
                served.store.notes.put(note, failing)
        (row,) = served.json("/api/overview")
        assert row["state"] == word
        assert row["health"].startswith(told)
        pill = f'<span class="state {word.replace(" ", "-")}">{word}</span>'
        for page in ("/", "/topologies/words"):
            assert pill in served.get(page)
            assert told == word or told.lower() in served.get(page).lower()
        assert main(["status", "words", "--database", ledger.url, "--zookeeper", "127.0.0.1:1"]) == 0
        assert re.search(rf"^health +{re.escape(told)}", capsys.readouterr().out, re.MULTILINE)
        assert served.json("/api/topologies/words")["health"]["state"] == word
    assert ">failing</span>" in served.get("/topologies/words/batches/31")


def test_a_tracked_topology_shows_its_trees(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(ledger, monkeypatch)
    store = MemoryProgress(served.zookeeper.memory, "orders", CODEC)
    tracked = {"tracked": {"queue": "KafkaQueueSpout"}}
    store.create_identity(Identity.new(Semantics.NON_TRANSACTIONAL, "tracked", tracked, ()))
    store.claim_epoch(Epoch(0))
    assert "its driver has noted nothing yet" in served.get("/topologies/orders")
    counts = {"messages": 7, "messages_per_second": 3.5, "acked": 5, "failed": 1, "timed_out": 1}
    trees = {"at": NOON.isoformat(), "micro_batches": 9, "failed_micro_batches": 1, "stuck": None}
    trees |= {"pending": {"queue": {"1": 2, "older": 1}}, "components": {"parse": counts}}
    store.notes.put(TREES, trees)
    served.forget()
    text = served.get("/topologies/orders")
    assert "2 up to 1 s, 1 older" in text
    assert ">parse</th>" in text
    assert "tracks tuples: it has no batches" in served.get("/topologies/orders/timeline", 400)
    answers = {view: served.client.get(f"/topologies/orders{view}").status_code for view in VIEWS}
    assert {view for view, status in answers.items() if status == 200} >= {"", "/source", "/trust", "/graph"}
    assert max(answers.values()) < 500
    for view in ("", "/graph", "/timeline"):  # the last one answers that there is none
        menu = served.client.get(f"/topologies/orders{view}", headers={"accept": "text/html"}).text
        assert re.findall('href="/topologies/orders([^"]*)"', menu.split("</nav>")[0]) == [
            "",
            "/trust",
            "/graph",
        ]
    assert served.get("/topologies/words").split("</nav>")[0].count('href="/topologies/words') == 7
    served.away = True
    served.forget()
    assert served.get("/topologies/orders", 503).split("</nav>")[0].count('href="/topologies/orders') == 7


def test_the_timeline_has_attempts_outage_and_pages(served: Served) -> None:
    text = served.get("/topologies/words/timeline?before=16&limit=15")
    assert "attempt 1 of txid 5 failed" in text
    assert "attempt 2 of txid 5 committed" in text
    assert "partition 1 away" in text
    assert 'href="/topologies/words/timeline?before=31&amp;limit=15"' in text
    assert "← older" not in text
    newest = served.get("/topologies/words/timeline?limit=10")
    assert 'href="/topologies/words/timeline?before=21&amp;limit=10"' in newest
    assert "newer →" not in newest


def test_a_takeover_between_two_pages_of_the_timeline_is_on_the_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(tmp_path, 0)
    for txid in range(1, 21):
        rig.epoch = 1 if txid <= 10 else 2
        rig.commit(txid, {"a": 1})
    served = Served(rig, monkeypatch)
    assert "epoch 2 leads" in served.get("/topologies/words/timeline")
    later = served.get("/topologies/words/timeline?limit=10")
    assert "epoch 2 leads" in later
    assert "Txid 11 to 20" in later
    assert 'href="/topologies/words/timeline?before=11&amp;limit=10"' in later
    first = served.get("/topologies/words/timeline?before=11&limit=10")
    assert "epoch 2 leads" not in first
    assert "← older" not in first


def test_the_bar_of_a_txid_has_the_seconds_of_its_commit() -> None:
    details = {"timings": {"plan": 0.25, "job": 1.0, "begin": 0.125, "write": 0.25}}
    processed = NOON + timedelta(seconds=1)
    committed = processed + timedelta(seconds=2)
    given: Any = ("db", "u", 1, Semantics.OPAQUE, "committed", 7, 2, NOON, processed, committed, None, {})
    row = replace(LedgerEntry(*given), details=details)
    batch = Batch(Txid(1), "committed", (row,))
    assert seconds_of(batch) == {"plan": 0.25, "process": 1.0, "wait": 1.625, "commit": 0.375}
    told = replace(batch, in_commit={"commit": 0.5, "advance": 0.125})
    assert seconds_of(told) == {"plan": 0.25, "process": 1.0, "wait": 1.5, "commit": 0.625}


def test_a_batch_says_who_took_up_what_it_left_out(served: Served) -> None:
    text = served.get("/topologies/words/batches/11")
    assert f"<b>{AWAY}</b>: broker 2 does not answer" in text
    assert 'href="/topologies/words/batches/13"' in text
    assert "&lt;b&gt;bad&lt;/b&gt;" in served.get("/topologies/words/batches/5")
    changed = served.json("/api/topologies/words/batches/30")
    assert changed["keys"] == 2
    assert "w30" in served.get("/topologies/words/batches/30")


def test_failures_are_grouped_by_reason(served: Served) -> None:
    found = served.json("/api/topologies/words/failures")
    (group,) = found["reasons"]
    assert (group["attempts"], group["txids"]) == (1, [5])
    assert (group["component"], group["exception"]) == ("split", "ValueError")
    assert "split: ValueError, 1 attempt of 1 batch" in served.get("/topologies/words/failures")
    assert found["looked_at"] == [1, TXIDS]


def test_reasons_that_differ_in_the_record_alone_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(tmp_path, 0)
    words = (
        "component 'lines': the value of the record at offset {} of topic 'lines', partition {}, is no JSON"
    )
    for txid in (1, 2):
        rig.commit(txid, {"a": 1}, error=words.format(10 * txid, txid))
    rig.commit(3, {"a": 1}, error="txid 3 attempt 1.3, component 'split', task 0: KeyError: 'a'")
    rig.commit(4, {"a": 1}, error="txid 4 attempt 1.4, component 'split', task 1: KeyError: 'b'")
    found = Served(rig, monkeypatch).json("/api/topologies/words/failures")["reasons"]
    told = [(one["component"], one["exception"], one["attempts"], one["txids"]) for one in found]
    assert told == [("lines", None, 2, [1, 2]), ("split", "KeyError", 2, [3, 4])]
    assert [one["reason"] for one in found][1] == "component 'split': KeyError: 'b'"


def test_state_shows_the_greatest_values_and_the_row_of_a_key(served: Served) -> None:
    found = served.json("/api/topologies/words/state/words")
    assert found["rows"][0] == {"word": "the", "n": 30, "prev_n": 29, "txid": 30}
    one = served.json("/api/topologies/words/state/words?key=w7")
    assert [row["n"] for row in one["rows"]] == [1]
    assert "There is no row of this key" in served.get("/topologies/words/state/words?key=nix")


def test_state_shows_what_a_batch_changed(served: Served) -> None:
    assert served.json("/api/topologies/words/state/words")["diff"] is None
    diff = served.json("/api/topologies/words/state/words?txid=7")["diff"]
    assert [one["key"] for one in diff["created"]] == [{"word": "w7"}]
    assert served.get("/topologies/words/state/words?txid=7").count("created") == 1
    assert "no txid 99" in served.get("/topologies/words/state/words?txid=99", 404)


def test_the_graph_has_tuples_and_seconds_and_marks_the_slowest_task(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(ledger, monkeypatch)
    places = [
        TaskPlace("lines", 0, 0, "1", "host", 0.25, 0),
        TaskPlace("split", 0, 0, "1", "host", 0.5, 40),
        TaskPlace("split", 1, 1, "2", "other", 2.0, 60),
        TaskPlace("<b>count", 0, 0, "1", "host", 0.1, 300),
    ]
    edges = (
        EdgeTuples("lines", "default", "split", 100, 0.0, 0.0),
        EdgeTuples("split", "late", "<b>count", 300, 0.004, 0.0025),
        EdgeTuples("split", "frames", "<b>count", 5, 0.25, None),
        EdgeTuples("split", "older", "<b>count", 9),
    )
    seen = Assignment(Txid(TXIDS), attempt_id(1, TXIDS), NOON, tuple(places), edges=edges)
    assert "noted no batch yet" in served.get("/topologies/words/graph")
    served.store.notes.put(ASSIGNMENT, seen)
    served.store.notes.put(EDGES, seen)
    found = served.json("/api/topologies/words/graph")
    assert found["slowest"] == {"component": "split", "task": 1}
    split = next(one for one in found["components"] if one["component"] == "split")
    assert (split["tasks"], split["tuples"], split["seconds"]) == (2, 100, 2.5)
    assert (split["longest_task"], split["host"]) == (1, "other")
    assert found["edges"] == [one._asdict() for one in edges]
    text = served.get("/topologies/words/graph")
    (marked,) = re.findall(r"<title>([^<]*)</title><rect class=\"node slowest", text)
    assert marked == "split"
    assert text.count('class="edge"') == 4
    labels = ("100", "300 (late) in 6.5 ms", "5 (frames) in 250 ms", "9 (older)")
    assert all(f">{label}</text>" in text for label in labels)
    cells = [re.findall(r"<td[^>]*>([^<]*)</td>", row)[1:] for row in re.findall(r"<tr>.*</tr>", text)]
    assert ["split", "100", "in its bolt", ""] in cells
    assert [one[-2:] for one in cells[-3:]] == [["0.004", "0.003"], ["0.250", "-"], ["-", "-"]]
    assert "<b>count" not in text
    assert not re.search(r"\bstyle=", text)
    later = Assignment(Txid(TXIDS + 1), attempt_id(1, TXIDS + 1), NOON, tuple(places))
    served.store.notes.put(ASSIGNMENT, later)
    assert served.json("/api/topologies/words/graph")["edges"] == [], "those of an earlier batch"


def test_source_has_the_lag_of_each_partition(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    held_back = {"lines/1": HeldBack(5, "an open transaction", NOON)}
    now = SourceNow(lag_records=9, lags={"lines/0": 2, "lines/1": 7}, held_back=held_back)
    monkeypatch.setattr(standing, "begin_to_ask", lambda *_: lambda: now)
    found = served.json("/api/topologies/words/source")["partitions"]
    assert [(one["partition"], one["lag_records"], one["held_back"]) for one in found] == [
        ("lines/1", 7, 5),
        ("lines/0", 2, None),
    ]
    text = served.get("/topologies/words/source")
    assert '<td class="n">7 (5 held back)</td>' in text
    assert '<td class="n">2</td>' in text


def test_source_says_what_waits_and_since_when(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.json("/api/topologies/words/source")["waiting"] == []
    waits = [Wait("partitions lines/0, 1", NOON, "no other can be read", "no broker answers")]
    served.store.notes.put(WAITING, waits)
    served.forget()
    (told,) = served.json("/api/topologies/words/source")["waiting"]
    assert (told["what"], told["since"]) == ("partitions lines/0, 1", "2026-01-02T12:00:00+00:00")
    since = f"{NOON.astimezone():%Y-%m-%d %H:%M:%S}"
    text = served.get("/topologies/words/source")
    assert (
        f"Waiting for partitions lines/0, 1 since {since} (no other can be read): no broker answers." in text
    )


def test_a_partition_that_was_away_before_the_batches_that_are_looked_at_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(tmp_path, 0)
    for txid in range(1, 60):
        away = {AWAY: "gone"} if txid > 5 else {}
        parts = {"lines/0": {"start": 0, "end": 1}}
        rig.commit(txid, {"a": 1}, metas={"partitions": parts, "unavailable": away})
    served = Served(rig, monkeypatch)
    first, *_ = served.json("/api/topologies/words/source")["partitions"]
    assert (first["away"]["txid"], first["away"]["or_before"]) == (20, True)
    assert "txid 20</a> or before)" in served.get("/topologies/words/source")


def test_now_has_the_last_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(tmp_path)
    end = datetime.now(UTC).replace(tzinfo=None)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        for txid in range(1, TXIDS + 1):
            # Three batches in a minute; the first is older than an hour, and the last minute has none.
            at = end - timedelta(hours=2) if txid == 1 else end - timedelta(seconds=20 * (TXIDS - txid) + 65)
            connection.execute(
                "UPDATE txstream_batch SET planned_at = ?, committed_at = ?, tuples = 600, "
                "details = json_set(COALESCE(details, '{}'), '$.lag_records', ?) WHERE txid = ?",
                ((at - timedelta(seconds=1.5)).isoformat(" "), at.isoformat(" "), 1000 + txid, txid),
            )
    served = Served(rig, monkeypatch)
    for most_read, stride in ((240, 1), (10, 3)):
        monkeypatch.setattr(hour_module, "_MOST_READ", most_read)
        served.forget()
        found = served.json("/api/topologies/words/hour")
        assert found["stride"] == stride
        rates, lags, took = (found[name] for name in ("records_per_second", "lag_records", "commit_seconds"))
        assert (len(rates), len(lags), len(took)) == (60, 60, 60)
        assert rates[-4:] == [30.0, 30.0, 30.0, 0.0]
        assert sum(rates) * 60 == pytest.approx(600 * (TXIDS - 1), abs=600 * (stride - 1) + 1)
        assert (lags[-1], took[-1]) == (None, None)
        assert lags[-2] > 1000 + TXIDS - stride
        assert {*took} == {None, 1.5}
        text = served.get("/topologies/words")
        assert "records/s: at most 30.0, last 0.0" in text
        assert "seconds from plan to commit: at most 1.5, last 1.5" in text
        assert ("Estimated from one batch of 3." in text) == (stride > 1)
    rig.database.close()


def test_numbers_of_a_column_have_their_points_below_each_other() -> None:
    column = pages.aligned(["1234567.5", "-2.25", "3", None, 1000])
    assert column == [
        "1,234,567.5\u2007",
        "-2.25",
        "3\u2008\u2007\u2007",
        "-\u2008\u2007\u2007",
        "1,000\u2008\u2007\u2007",
    ]
    assert pages.aligned([1, 20, 3000]) == ["1", "20", "3,000"]


def test_trust_has_fences_and_the_fsck_that_was_asked_for(served: Served) -> None:
    (place,) = served.json("/api/topologies/words/trust")["databases"]
    assert (place["fence_epoch"], place["last_txid"]) == (1, TXIDS)
    assert served.json("/api/topologies/words/trust")["fsck"] is None
    assert served.post("/topologies/words/fsck").status_code == 303
    found = served.json("/api/topologies/words/trust")["fsck"]
    assert found["checked"]
    assert "It was not checked" not in served.get("/topologies/words/trust")


def test_a_thousand_partitions_are_grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = filled(tmp_path, 0)
    for txid in (1, 2, 3):
        parts = {f"lines/{n}": {"start": txid, "end": txid + 1} for n in range(1000)}
        away = {f"lines/{n}": "gone" for n in range(500, 600)} if txid == 2 else {}
        kept = {name: one for name, one in parts.items() if name not in away}
        rig.commit(txid, {"a": 1}, metas={"partitions": kept, "unavailable": away})
    served = Served(rig, monkeypatch, partitions=1000)
    text = served.get("/topologies/words/timeline")
    assert text.count('class="lane"') <= 32
    assert "100 partitions away" in text
    assert "32 partitions, 32 records" in text
    assert len(served.json("/api/topologies/words/source")["partitions"]) == 100
    assert served.get("/topologies/words/batches/2").count("<tr>") < 100


def test_a_view_reads_only_the_rows_that_it_shows(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int | None] = []
    usual = StateDatabase.batches

    def batches(self: StateDatabase, topology: str, *, limit: int | None = None, **more: Any) -> Any:
        limits.append(limit)
        return usual(self, topology, limit=limit, **more)

    monkeypatch.setattr(StateDatabase, "batches", batches)
    for view in VIEWS:
        served.get(f"/topologies/words{view}")
    served.get("/topologies/words/timeline?before=9")
    assert None not in limits
    assert max(one or 0 for one in limits) <= views.LOOKED_BACK


@pytest.mark.soak
def test_a_view_answers_within_300_ms_over_a_ledger_of_100_000_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In seconds of a processor, so that other work on the machine does not count."""
    rig = filled(tmp_path, TXIDS)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(txstream_batch)")]
        chosen = ", ".join(f"{name} + ?" if name == "txid" else name for name in columns)
        copy = f"INSERT INTO txstream_batch SELECT {chosen} FROM txstream_batch WHERE txid <= {TXIDS}"
        for more in range(TXIDS, 100_000, TXIDS):
            connection.execute(copy, [more])
    usual = StateDatabase.batches
    monkeypatch.setattr(StateDatabase, "batches", lambda *_, **__: [])
    served = Served(rig, monkeypatch)
    monkeypatch.setattr(StateDatabase, "batches", usual)
    asked = [*VIEWS, "/batches/99900", "/timeline?before=50000", "/failures?before=50000"]
    for path in ("/", "/api/topologies", *(f"/topologies/words{view}" for view in asked)):
        took = []
        for _ in range(5):
            served.forget()
            began = time.process_time()
            served.get(path)
            took.append(time.process_time() - began)
        assert min(took) < 0.3, (path, took)


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


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_needs_zookeeper_and_elsewhere_a_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", "--port", "0"]) == 2
    assert "no ZooKeeper was given" in capsys.readouterr().err
    assert main(["ui", "--host", "0.0.0.0", "--zookeeper", "127.0.0.1:1"]) == 2
    assert "give a --token-file FILE" in capsys.readouterr().err
    (tmp_path / "token").write_text("short\n")
    assert main(["ui", "--token-file", "token", "--zookeeper", "127.0.0.1:1"]) == 2
    assert "at least 16 ASCII characters" in capsys.readouterr().err


def started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, str, TestClient]:
    """Start the page, but answer nothing. Return its address, what it says, and somebody who asks it."""
    apps: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: apps.append(self.config.app))
    assert main(["ui", "--port", "0", "--zookeeper", "127.0.0.1:1", "--json", *options]) == 0
    told = capsys.readouterr()
    return json.loads(told.out)["url"], told.err, TestClient(apps[0], base_url=BASE, follow_redirects=False)


def test_who_may_operate_has_the_token_of_the_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Every user of a machine reaches its loopback."""
    url, said, client = started(monkeypatch, capsys, "--allow-operate")
    path, token = re.fullmatch(r"http://127\.0\.0\.1:\d+(/\?token=([0-9a-f]{48}))", url).groups()  # type: ignore[union-attr]
    assert "it asks for the token in that address" in said
    assert client.get("/static/../topologies/words/ask/pause").status_code == 401
    assert client.post("/topologies/words/ask/pause", headers={"origin": BASE}).status_code == 401
    assert client.get(path).headers["location"] == "/"
    assert client.get("/compare/ask").status_code != 401
    assert token not in str(client.cookies)
    assert started(monkeypatch, capsys, "--allow-operate")[0] != url
    url, said, client = started(monkeypatch, capsys, "--allow-operate", "--no-token")
    assert "token" not in url
    assert "warning: --no-token: every user of this machine can pause" in said
    assert client.get("/login").status_code == 200
    url, said, client = started(monkeypatch, capsys)
    assert "token" not in url + said
    (tmp_path / "token").write_text("0123456789abcdef\n")
    url, said, client = started(monkeypatch, capsys, "--allow-operate", "--token-file", "token")
    assert "token" not in url
    assert said == "Ctrl-C ends it; it asks for the token\n"
    assert client.get("/compare/ask").status_code == 401
    command = ["ui", "--allow-operate", "--no-token", "--zookeeper", "127.0.0.1:1"]
    assert main([*command, "--token-file", "token"]) == 2
    assert "--no-token and --token-file FILE contradict each other" in capsys.readouterr().err
    assert main([*command, "--host", "0.0.0.0"]) == 2
    assert "give a --token-file FILE" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["ui", "--zookeeper", "127.0.0.1:1"]) == 2
    assert "pip install 'txstream[ui]'" in capsys.readouterr().err


def test_metrics_are_served_where_there_are_any(
    ledger: Rig, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.get("/metrics", 404)
    with_metrics = Served(ledger, monkeypatch, metrics=lambda: (b"txstream_leader 1\n", "text/plain"))
    assert with_metrics.get("/metrics") == "txstream_leader 1\n"


def test_a_scraper_needs_no_token_that_was_made_for_operating(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics: dict[str, Any] = {"metrics": lambda: (b"txstream_leader 1\n", "text/plain"), "token": "s" * 20}
    for is_open, expected in ((True, 200), (False, 401)):
        served = Served(ledger, monkeypatch, open_metrics=is_open, **metrics)
        assert served.client.get("/metrics").status_code == expected
        assert served.client.get("/api/topologies").status_code == 401, "nothing else is open"
        strange = served.client.get("/metrics", headers={"host": "evil.example"})
        assert strange.status_code == 421


@each(
    "given, is_open",
    [
        ((), False),
        (("--allow-operate",), True),
        (("--allow-operate", "--no-token"), False),
        (("--allow-operate", "--token-file", "token"), False),
    ],
)
def test_metrics_are_open_only_where_everybody_may_read(given: tuple[str, ...], is_open: bool) -> None:
    Path("token").write_text("s" * 20)
    asked: list[dict[str, Any]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_module, "make_app", lambda site, **options: asked.append(options))
        patch.setattr("uvicorn.Server.run", lambda *_, **__: None)
        assert main(["ui", "--zookeeper", "127.0.0.1:1", "--port", "0", *given]) == 0
    assert asked[0]["open_metrics"] is is_open
    assert (asked[0]["token"] is None) is ("--allow-operate" not in given or "--no-token" in given)


def test_everything_that_a_browser_loads_is_small(served: Served) -> None:
    size = len(served.get("/topologies/words/timeline"))
    for name in ("ui.css", "ui.js", "icon.svg", "look.css"):
        size += len(served.client.get(f"/static/{name}").content)
    assert size < 150_000


def test_the_command_serves_metrics_if_their_extra_is_there(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(zookeeper="127.0.0.1:1", database=ledger.url, connect_timeout_seconds=0.1).resolve()
    asked = metrics_of(settings)
    assert asked is not None
    with pytest.raises(ServiceUnavailableError):
        asked()
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert metrics_of(settings) is None
