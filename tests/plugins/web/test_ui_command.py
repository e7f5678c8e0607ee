"""The command that serves the page: who may ask, its token, metrics, and how much a browser loads."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient
from support.lists import each
from support.states import Rig
from support.ui_site import BASE, Served

from txstream.cli.main import main
from txstream.core.errors import ServiceUnavailableError
from txstream.plugins.web import (
    app as app_module,
)
from txstream.plugins.web.command import metrics_of
from txstream.settings import Settings


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
