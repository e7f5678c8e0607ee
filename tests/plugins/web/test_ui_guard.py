"""Who may ask the page, and what a browser may do with its answers; pages that are told of news."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from support.lists import each
from support.states import Rig
from support.ui_site import BASE, Served, filled

from txstream.plugins.web.guard import COOKIE, cookie_of, is_loopback, is_text
from txstream.plugins.web.live import Live

TOKEN = "0123456789abcdef"
VIEWS = ("/timeline", "/batches", "/batches/3", "/source", "/state", "/failures", "/trust", "/graph")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    rig = filled(tmp_path_factory.mktemp("ledger"), 3)
    yield rig
    rig.database.close()


@pytest.fixture
def served(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(ledger, monkeypatch)


@pytest.fixture
def locked(ledger: Rig, monkeypatch: pytest.MonkeyPatch) -> Served:
    return Served(ledger, monkeypatch, host="0.0.0.0", token=TOKEN)


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8765", "localhost", "localhost:1", "[::1]:8765", "LOCALHOST:8765"]
)
def test_this_machine_has_several_names(served: Served, host: str) -> None:
    served.get("/", host=host)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "10.0.0.1:8765", "", "localhost.evil.example"]
)
def test_another_name_is_not_answered(served: Served, host: str) -> None:
    """A site whose name leads here would otherwise read everything, with its own scripts."""
    for path in ("/", "/api/topologies", "/live", "/static/ui.js"):
        assert served.client.get(path, headers={"host": host}).status_code == 421, path


@pytest.mark.parametrize(
    "host", ["[::1", "[::1]x", "]", "a b", "127.0.0.1:x", "127.0.0.1:8765/evil", "me@127.0.0.1", "\xff", "//"]
)
def test_what_is_no_host_is_refused(served: Served, host: str) -> None:
    for path in ("/", "/api/topologies", "/static/ui.js"):
        assert served.client.get(path, headers={b"host": host.encode("latin-1")}).status_code == 400, path


def test_an_id_that_no_topology_can_have_is_no_fault_of_the_server(
    ledger: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(ledger, monkeypatch, allow_operate=True)
    bad = ("%00", "a%00b", "%ED%A0%80", "%FF", "%2E%2E", "%0A", "%F0%9F%98%80", "x" * 200)
    paths = [f"{api}/topologies/{{}}{view}" for api in ("", "/api") for view in ("", *VIEWS)]
    paths += ["/topologies/{}/ask/pause", "/compare/{}", "/static/{}", "/topologies/words/state/{}"]
    answered = {(path, one): served.client.get(path.format(one)).status_code for path in paths for one in bad}
    assert {asked: status for asked, status in answered.items() if status not in (400, 404)} == {}
    for query in ("state/words?key=%00", "state/words?place=a%00", "timeline?%00=1"):
        assert served.client.get(f"/topologies/words/{query}").status_code == 400, query
    assert not is_text("\ud800")
    form = {"key": "a\0"}
    assert served.post("/topologies/words/state/words/why", form).status_code == 400


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:8000", "http://[::1", "", None]
)
def test_a_form_of_another_site_does_nothing(served: Served, origin: str | None) -> None:
    headers = {} if origin is None else {"origin": origin}
    assert served.client.post("/topologies/words/fsck", headers=headers).status_code == 403
    assert served.site.checked == {}


def test_another_site_loads_nothing(served: Served) -> None:
    """Another port of this machine is another site, too, though browsers call it the same."""
    for site in ("cross-site", "same-site"):
        for mode in ({"sec-fetch-mode": "no-cors"}, {"sec-fetch-mode": "cors"}, {}):
            served.get("/api/topologies", 403, **{"sec-fetch-site": site, **mode})
        headers = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "origin": "http://127.0.0.1:8000"}
        assert served.client.post("/topologies/words/fsck", headers=headers).status_code == 403
    served.get("/api/topologies", 403, origin="http://evil.example")
    served.get("/", 200, **{"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})


@pytest.mark.parametrize("path", ["/", "/api/topologies", "/static/ui.css", "/nowhere", "/login"])
def test_every_answer_has_the_headers(served: Served, path: str) -> None:
    headers = served.client.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


def test_a_token_is_asked_for(locked: Served) -> None:
    assert locked.client.get("/", headers={"accept": "text/html"}).headers["location"] == "/login?next=%2F"
    assert "token is missing" in locked.json("/api/topologies", 401)["error"]
    locked.get("/live", 401, accept="text/event-stream")
    locked.get("/", 303)
    locked.get("/static/ui.css")
    good = {"authorization": f"Bearer {TOKEN}"}
    assert locked.client.get("/api/topologies", headers=good).status_code == 200
    for wrong in ("Bearer wrong", f"Basic {TOKEN}", "Bearer", f"Bearer {TOKEN}x"):
        assert locked.client.get("/api/topologies", headers={"authorization": wrong}).status_code == 401


def test_a_browser_is_asked_once(locked: Served) -> None:
    def log_in(token: str, following: str = "/topologies/words?a=b") -> Any:
        form = {"token": token, "next": following}
        return locked.client.post("/login", data=form, headers={"origin": BASE})

    assert log_in("wrong").status_code == 401
    assert locked.get("/", 303) == ""
    answer = log_in(TOKEN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/topologies/words?a=b")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    locked.get("/")
    for elsewhere in ("//evil.example", "http://evil.example", "/\\evil.example", ""):
        assert log_in(TOKEN, elsewhere).headers["location"] == "/"
    locked.client.cookies.clear()
    locked.client.cookies.set(f"{COOKIE}_8765", cookie_of("another"))
    locked.get("/", 303)


def test_an_address_with_the_token_opens_the_page_once(locked: Served) -> None:
    """The token leaves the address at once: history, bookmarks and what is sent to others do not have it."""
    for wrong in (f"{TOKEN}x", "", "ü"):
        answer = locked.client.get("/", params={"token": wrong}, headers={"accept": "text/html"})
        assert answer.headers["location"] == "/login?next=%2F"
        assert "set-cookie" not in answer.headers
    answer = locked.client.get(f"/topologies/words%20x?a=b%26c&token={TOKEN}&limit=3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/topologies/words%20x?a=b%26c&limit=3")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}_8765={cookie_of(TOKEN)};"), "another port's page has its own"
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/"))
    locked.get("/")
    there = locked.client.get(f"{BASE}//evil.example/?token={TOKEN}").headers["location"]
    assert there == "/evil.example/", "on this server"
    locked.client.cookies.clear()
    assert locked.post(f"/topologies/words/fsck?token={TOKEN}").status_code == 401


def test_with_a_token_addresses_are_answered_and_names_of_others_are_not(locked: Served) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert locked.client.get("/", headers=headers | {"host": "10.1.2.3:8765"}).status_code == 200
    assert locked.client.get("/", headers=headers | {"host": "evil.example"}).status_code == 421


@each(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("db.example", False),
    ],
)
def test_what_is_reached_from_this_machine_alone(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


# --- news --------------------------------------------------------------------------------------------------


async def within_seconds(play: Coroutine[Any, Any, None]) -> None:
    async with asyncio.timeout(30):
        await play


def test_all_pages_of_a_topology_share_one_poller_and_leave_nothing() -> None:
    looks: list[str | None] = []
    marks = {"a": "1", "b": "1"}

    def look(name: str | None) -> str:
        looks.append(name)
        return marks[str(name)]

    async def play() -> None:
        live = Live(look, poll_seconds=0.01)

        async def read(name: str, events: int) -> list[bytes]:
            found = []
            async with aclosing(live.events(name)) as stream:
                async for event in stream:
                    found.append(event)
                    if len(found) == events:
                        return found
            return found

        pages = [asyncio.create_task(read("a", 2)) for _ in range(50)]
        other = asyncio.create_task(read("b", 1))
        await other
        while live.open_pages < 50 or looks.count("a") < 3:
            await asyncio.sleep(0.01)
        assert live.polled == {"a"}, "nobody looks at b any more"
        before = looks.count("a")
        marks["a"] = "2"
        found = await asyncio.gather(*pages)
        assert all(first != second for first, second in found)
        assert looks.count("a") - before < 25, "50 pages look once together"
        assert (live.open_pages, live.polled) == (0, set())
        while len(asyncio.all_tasks()) > 1:  # a poller that was cancelled ends at its next turn
            await asyncio.sleep(0.01)

    asyncio.run(within_seconds(play()))


def test_a_page_that_opens_later_is_told_at_once() -> None:
    async def play() -> None:
        live = Live(lambda _: "mark", poll_seconds=0.01)
        async with aclosing(live.events(None)) as first:
            told = await anext(first)
            async with aclosing(live.events(None)) as second:
                assert await anext(second) == told

    asyncio.run(within_seconds(play()))
