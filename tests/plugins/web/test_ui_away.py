"""What is away or fails is told in words, and what cannot be asked is not known; how a topology is has the
same words everywhere."""

from __future__ import annotations

import contextlib
import html
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.states import Rig, name_databases
from support.ui_site import AWAY, BASE, TXIDS, VIEWS, Served, filled
from support.zookeeper_backends import CODEC, metas

from txstream.cli import status
from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError
from txstream.core.failing_batch import FailingBatch, Wait
from txstream.core.semantics import Semantics
from txstream.core.transaction import Epoch, Txid, attempt_id
from txstream.inspect import MissingDatabase, databases
from txstream.plugins.proof.zookeeper_tree import MemoryProgress
from txstream.plugins.web.app import make_app
from txstream.plugins.web.site import Site
from txstream.state import StateDatabase, open_database
from txstream.zookeeper import (
    ENDED,
    FAILING,
    FAILING_ATTEMPTS,
    WAITING,
    Identity,
)

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


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
    assert "in a database that could not be looked at</dd>" in served.get("/topologies/words")
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
