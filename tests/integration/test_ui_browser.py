"""The page of real runs, with an outage and a driver that died, looked at in Chromium."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
import uvicorn
from playwright.sync_api import Browser, Page, Request, sync_playwright
from starlette.testclient import TestClient
from support.kafka_topics import wait_until
from support.runs import Launcher
from support.texts import fill_topic, make_lines
from support.ui_site import Served, filled
from support.zookeeper_proxy import Proxy

from txstream.inspect import standing
from txstream.inspect.source import SourceNow
from txstream.plugins.local.embedded import Services
from txstream.plugins.web.app import make_app
from txstream.plugins.web.site import Site
from txstream.settings import Settings
from txstream.zookeeper import ZooKeeper

SERIOUS = ("serious", "critical")
_DEADLINE_SECONDS = 120
VIEWS = ("", "/timeline", "/source", "/state", "/failures", "/trust", "/graph", "/ask/pause")
_LOADED = "performance.getEntries().reduce((sum, one) => sum + (one.encodedBodySize || 0), 0)"
# What reaches beyond the window, or beyond its own box, and cannot be scrolled to.
_CUT = """() => [...document.querySelectorAll('main *:not(.skip)')].filter(one => {
  if (one.closest('.wide, .chart, pre, svg') || !one.getClientRects().length) return false;
  const hides = ['hidden', 'clip'].includes(getComputedStyle(one).overflowX);
  const beyond = one.getBoundingClientRect().right > innerWidth + 1;
  return beyond || (hides && one.scrollWidth > one.clientWidth + 1);
}).map(one => one.outerHTML.slice(0, 120))"""
_MOST_LOADED = 150_000
_OPEN_PAGES = 50
_OPEN_SECONDS = float(os.environ.get("TXSTREAM_OPEN_PAGES_SECONDS", "60"))
_REQUESTS = 200
_MOST_GROWN_BYTES = 16 * 2**20
_MOST_THREADS = 64


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("there is no Chromium; type `apt-get install chromium`")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


class Looking:
    """A page in a window. `wrong` is what a person would complain about."""

    def __init__(self, browser: Browser, url: str, width: int, scheme: Any) -> None:
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=url
        )
        self.wrong: list[str] = []
        self._scheme = scheme
        self._axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
        self._url = url
        self.page.on("request", self._asked)
        self.page.on("console", lambda message: self.wrong.append(f"{self.page.url}: {message.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(f"{self.page.url}: {error}"))

    def _asked(self, request: Request) -> None:
        if not request.url.startswith(self._url):
            self.wrong.append(f"{self.page.url} loads {request.url}")

    def look(self, path: str) -> str:
        """Open a view and judge it. Returns its text."""
        self.page.goto(path)
        self.page.wait_for_selector("h1")
        wider = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        if wider > 0:
            self.wrong.append(f"{path} is {wider} px too wide")
        self.wrong += [f"{path}: {one!r} is cut" for one in self.page.evaluate(_CUT)]
        loaded = self.page.evaluate(_LOADED)
        if loaded > _MOST_LOADED:
            self.wrong.append(f"{path} loads {loaded} bytes")
        self.page.evaluate(self._axe)
        # What the other window has shown already is not looked for again, but the colours.
        only = {} if self._scheme == "light" else {"runOnly": ["color-contrast"]}
        found = self.page.evaluate("only => axe.run(only)", only)
        self.wrong += [
            f"{path}: {one['id']}: {one['nodes'][0]['html'][:200]}: {one['nodes'][0]['failureSummary']}"
            for one in found["violations"]
            if one["impact"] in SERIOUS
        ]
        return self.page.inner_text("main")


def get(url: str, path: str) -> Any:
    with urlopen(f"{url.rstrip('/')}{path}", timeout=30) as answer:
        return json.load(answer)


@pytest.mark.soak
@pytest.mark.parametrize(("width", "scheme"), [(1240, "light"), pytest.param(390, "dark")])
def test_each_view_of_runs_with_faults(
    launcher: Launcher, services: Services, browser: Browser, width: int, scheme: str
) -> None:
    with ZooKeeper(services.zookeeper) as zookeeper:
        before = set(zookeeper.topologies())
        assert launcher.run("compare", "--records", "2000", "--keep").status == 0
        made = sorted(set(zookeeper.topologies()) - before)
    (opaque,) = (name for name in made if "opaque" in name)
    server = launcher.start("ui", "--port", "0", "--json", "--allow-operate", "--no-token")
    try:
        url = json.loads(server.first_output())["url"]
        listed = {one["id"] for one in get(url, "/api/topologies")}
        assert listed >= {*made}
        ledger = get(url, f"/api/topologies/{opaque}/batches")
        for command, path in (
            (["batches", opaque], f"/api/topologies/{opaque}/batches"),
            (["show", opaque, "5"], f"/api/topologies/{opaque}/batches/5"),
            (["status", opaque], f"/api/topologies/{opaque}"),
        ):
            assert launcher.run(*command, "--json").json() == get(url, path), path
        tables = get(url, f"/api/topologies/{opaque}/state")["tables"]
        paths = [f"/topologies/{opaque}{view}" for view in VIEWS]
        paths += [f"/topologies/{opaque}/batches/{one['txid']}" for one in ledger if one["error"]]
        paths += [f"/topologies/{opaque}/state/{one['table']}?txid=5" for one in tables]
        paths += ["/compare", *(f"/compare/{one['name']}" for one in get(url, "/api/compare")["kept"])]
        looking = Looking(browser, url, width, scheme)
        assert opaque in looking.look("/")
        told = {path: looking.look(path) for path in paths}
        assert "1 attempt failed before" in "".join(told.values())
        assert "doubled in" in told[paths[-1]]
        assert "The slowest task is" in told[f"/topologies/{opaque}/graph"]
        looking.page.goto(f"/topologies/{opaque}/timeline")
        drawn = looking.page.inner_html(".chart")
        assert "failed" in drawn
        assert "cannot be read" in json.dumps(ledger)
        assert 'class="away"' in drawn
        assert 'class="death"' in drawn
        # By keyboard: past the header to the content, and on to a batch.
        looking.page.keyboard.press("Tab")
        looking.page.keyboard.press("Enter")
        assert looking.page.evaluate("document.activeElement.id") == "main"
        looking.page.focus(".chart a")
        looking.page.keyboard.press("Enter")
        looking.page.wait_for_url("**/batches/*")
        looking.page.close()
        assert looking.wrong == []
    finally:
        server.kill()


@pytest.mark.soak
def test_a_comparison_is_started_from_the_page(
    launcher: Launcher, services: Services, browser: Browser, unique: str
) -> None:
    fill_topic(services.kafka, unique, make_lines(200), partitions=2)
    server = launcher.start("ui", "--port", "0", "--json", "--allow-operate")
    try:
        with_token = json.loads(server.first_output())["url"]
        url = with_token.partition("?token=")[0]
        looking = Looking(browser, url, 1240, "light")
        looking.page.goto(with_token)
        assert looking.page.url == url
        looking.page.goto("/compare")
        looking.page.fill("input[name=topic]", unique)
        looking.page.fill("input[name=records]", "200")
        looking.page.select_option("select", "batch")
        looking.page.click("button")
        looking.page.click("text=Yes, compare")
        looking.page.wait_for_selector(
            "text=it has ended, and what must be exact is", timeout=_DEADLINE_SECONDS * 1000
        )
        looking.page.click("tbody a")
        assert "txid 3 fails" in looking.page.inner_text("main")
        looking.page.close()
        assert looking.wrong == []
    finally:
        server.kill()


@pytest.mark.soak
def test_a_fork_is_compared_and_swapped_from_the_page(
    launcher: Launcher, services: Services, browser: Browser, unique: str
) -> None:
    alone, fork = launcher.without_spark, f"{unique}_f"
    fill_topic(services.kafka, unique, make_lines(200), partitions=2)
    assert alone.word_count(unique, unique, unique).status == 0
    assert alone.run("fork", unique, fork).status == 0
    server = launcher.start("ui", "--port", "0", "--json", "--allow-operate", "--no-token")
    try:
        looking = Looking(browser, json.loads(server.first_output())["url"], 390, "light")
        page = looking.page
        page.goto(f"/topologies/{unique}")
        page.click(f"text={unique} and its fork {fork}")
        page.wait_for_selector("text=200 records behind it")
        code = alone.word_count_arguments(unique, unique, unique)
        del code[code.index("--id") : code.index("--id") + 2]
        assert alone.run(*code, "--as", fork).status == 0
        assert "as far as it" in looking.look(f"/topologies/{fork}/also/fork-{fork}")
        page.click("text=Compare all rows now")
        page.wait_for_selector("text=are at the same place", timeout=_DEADLINE_SECONDS * 1000)
        assert f"state {unique}: rows are the same" in page.inner_text("main")
        page.click("text=Swap…")
        page.wait_for_selector("button:text('Yes, swap')", timeout=_DEADLINE_SECONDS * 1000)
        assert f"what was there is kept as {unique}__before_{fork}" in page.inner_text("h1")
        page.click("text=Yes, swap")
        page.wait_for_selector(
            f"text=Now start the code of {fork} as {unique}", timeout=_DEADLINE_SECONDS * 1000
        )
        page.close()
        assert looking.wrong == []
        assert alone.run("status", fork).status == 1, "the fork is gone"
        last = alone.run("status", unique, "--json").json()["last_batch"]["txid"]
        assert alone.run("show", unique, str(last), "--json").json()["path"] == "swap"
    finally:
        server.kill()


@pytest.mark.soak
def test_fifty_open_pages_leave_nothing_in_the_server(
    launcher: Launcher, services: Services, unique: str
) -> None:
    """Files, threads and memory of the server are as before once the pages are closed, whatever was asked at
    once, and although ZooKeeper was away for a moment."""
    fill_topic(services.kafka, unique, make_lines(200), partitions=2)
    assert launcher.without_spark.word_count(unique, unique, unique).status == 0
    proxy = Proxy(services.zookeeper)
    server = launcher.start("ui", "--port", "0", "--json", TXSTREAM_ZOOKEEPER=proxy.address)
    try:
        url = json.loads(server.first_output())["url"]
        place = urlsplit(url)
        process = psutil.Process(server.process.pid)
        views = [f"/topologies/{unique}{view}" for view in VIEWS if not view.startswith("/ask")]
        for view in views:
            _load(url, view)
        files, threads = _open_files(process), process.num_threads()
        pages = []
        for number in range(_OPEN_PAGES):
            page = socket.create_connection((str(place.hostname), int(place.port or 0)), timeout=60)
            shown = ("", unique)[number % 2]
            page.sendall(f"GET /live?id={shown} HTTP/1.1\r\nHost: {place.netloc}\r\n\r\n".encode())
            pages.append(page)
        for page in pages:
            told = b""
            while b"data: " not in told:
                told += page.recv(4096)
        assert process.num_fds() > _OPEN_PAGES
        with ThreadPoolExecutor(_OPEN_PAGES) as people:
            list(people.map(lambda number: _load(url, views[number % len(views)]), range(_REQUESTS)))
        proxy.cut()
        wait_until(lambda: _answers(url) == 503, "the page says that ZooKeeper is away")
        proxy.restore()
        wait_until(lambda: _answers(url) == 200, "the page is back")
        held: list[int] = []
        until = time.monotonic() + _OPEN_SECONDS
        while time.monotonic() < until:
            for page in pages:
                assert page.recv(4096), "it is told every few seconds that it is still open"
            for view in views:
                _load(url, view)
            held.append(process.memory_info().rss)
        first = held[: max(1, len(held) // 10)]
        assert max(held[-3:]) < max(first) + _MOST_GROWN_BYTES
        for page in pages:
            page.close()
        try:
            wait_until(lambda: not _open_files(process) - files, "the server has closed them, too")
        except AssertionError as error:
            raise AssertionError(f"{error}; it still has {_open_files(process) - files}") from None
        # Those that answer requests stay for the next ones; their number has a limit.
        assert process.num_threads() <= max(threads, _MOST_THREADS)
    finally:
        server.kill()
        proxy.close()


def _open_files(process: psutil.Process) -> Counter[str]:
    """Return how many files, pipes and connections a process has open: files by path, connections by their
    state and the port at the other end. The log of libraries is left out: it is one file, made at the first
    warning, and stays open."""
    named = {}
    for one in process.net_connections("inet"):
        named[one.fd] = f"{one.status} to {one.raddr.port}" if one.raddr else one.status
    found: Counter[str] = Counter()
    for entry in Path(f"/proc/{process.pid}/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        kind = named.get(int(entry.name), target.split(":[")[0])
        if not kind.endswith(f".txstream/logs/txstream-{process.pid}.log"):
            found[kind] += 1
    return found


def _answers(url: str) -> int:
    try:
        with urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def _load(url: str, path: str) -> None:
    with urlopen(f"{url.rstrip('/')}{path}", timeout=60) as answer:
        answer.read()


def test_an_open_page_shows_what_a_run_commits(
    launcher: Launcher, services: Services, browser: Browser, unique: str
) -> None:
    fill_topic(services.kafka, unique, make_lines(200), partitions=2)
    server = launcher.start("ui", "--port", "0", "--json", "--allow-operate", "--no-token")
    try:
        url = json.loads(server.first_output())["url"]
        looking = Looking(browser, url, 1240, "light")
        looking.page.goto(f"/topologies/{unique}")
        assert f"there is no topology '{unique}'" in looking.page.inner_text("main")
        assert launcher.without_spark.word_count(unique, unique, unique).status == 0
        looking.page.wait_for_selector(".tile:has-text('last txid') b:text-matches('^[1-9]')", timeout=60_000)
        assert "not running" in looking.page.inner_text("h1")
        assert looking.page.inner_text("#live") == "live"
        # Its code runs here, too: it is drawn, a batch is run again, and a value is explained.
        page = looking.page
        page.goto(f"/topologies/{unique}/graph")
        assert page.evaluate("document.querySelector('img.graph').naturalWidth") > 100
        page.goto(f"/topologies/{unique}/batches/1")
        page.click("text=Run it again, dry")
        page.wait_for_selector("text=Yes: it would write the same.", timeout=_DEADLINE_SECONDS * 1000)
        (table,) = get(url, f"/api/topologies/{unique}/state")["tables"]
        (row, *_) = get(url, f"/api/topologies/{unique}/state/{table['table']}")["rows"]
        page.goto(f"/topologies/{unique}/state/{table['table']}")
        page.fill("input[name=key]", row["word"])
        page.click("text=Find")
        page.click("text=Find the records")
        page.wait_for_selector("text=of the records that make the value", timeout=_DEADLINE_SECONDS * 1000)
        page.goto(f"/topologies/{unique}/trust")
        page.click("text=Check it now")
        page.wait_for_selector("text=All is well", timeout=_DEADLINE_SECONDS * 1000)
        page.close()
        with urlopen(f"{url}metrics", timeout=30) as answer:
            scraped = answer.read().decode().splitlines()
        last = get(url, f"/api/topologies/{unique}/batches?limit=1")[0]["txid"]
        assert f'txstream_last_committed_txid{{topology="{unique}"}} {float(last)}' in scraped
    finally:
        server.kill()


@pytest.mark.soak
def test_a_thousand_partitions_fit_a_phone_and_a_keyboard(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(tmp_path, 0)
    for txid in range(1, 31):
        parts = {f"lines/{n}": {"start": 9 * txid, "end": 9 * txid + n % 10} for n in range(1000)}
        away = {f"lines/{n}": "broker 2 does not answer" for n in range(300, 500)} if 9 < txid < 20 else {}
        kept = {name: one for name, one in parts.items() if name not in away}
        rig.commit(txid, {f"w{txid}": 1}, metas={"partitions": kept, "unavailable": away})
    with _serving(Served(rig, monkeypatch, partitions=1000)) as url:
        paths = [f"/topologies/words{view}" for view in ("", "/timeline", "/source", "/trust", "/batches/12")]
        for width, scheme in ((1240, "light"), (390, "dark")):
            looking = Looking(browser, url, width, scheme)
            for path in ("/", "/errors", *paths):
                assert len(looking.look(path).splitlines()) < 1000, path
            page = looking.page
            page.goto(paths[1])
            # By keyboard alone: every link and field is reached, and the batch that has the focus is opened.
            wanted = page.evaluate("[...document.querySelectorAll('a, button, input, select')].length")
            for _ in range(wanted + 5):
                page.keyboard.press("Tab")
                if page.evaluate("document.activeElement.closest('.chart a') !== null"):
                    break
            page.keyboard.press("Enter")
            page.wait_for_url("**/batches/*")
            page.close()
            assert looking.wrong == []
    rig.database.close()


def test_an_open_page_counts_the_time_though_nothing_is_committed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = filled(tmp_path)
    lag = iter(range(1, 1_000_000))
    monkeypatch.setattr(standing, "begin_to_ask", lambda *_: lambda: SourceNow(lag_records=next(lag)))
    with _serving(Served(rig, monkeypatch)) as url:
        page = browser.new_page(base_url=url)
        page.clock.install()
        page.goto("/topologies/words")
        page.wait_for_selector("#live:text('live')")
        page.clock.run_for(5_000)  # past what the first event asks for
        shown = page.inner_text(".tile:has-text('lag') b")

        def is_newer() -> bool:
            page.clock.run_for(11_000)
            return page.inner_text(".tile:has-text('lag') b") != shown

        wait_until(is_newer, "the page has asked again")
        page.close()
    rig.database.close()


@contextmanager
def _serving(served: Served) -> Iterator[str]:
    config = uvicorn.Config(served.client.app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, "the page is served")
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)


def test_a_zookeeper_that_is_not_there_is_told(sqlite_url: str) -> None:
    settings = Settings(zookeeper="127.0.0.1:1", database=sqlite_url, connect_timeout_seconds=0.3)
    client = TestClient(make_app(Site(settings)), base_url="http://127.0.0.1")
    answer = client.get("/")
    assert answer.status_code == 503
    assert "ZooKeeper at 127.0.0.1:1 did not answer within 0.3 s" in answer.text
