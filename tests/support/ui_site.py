"""The page over a SQLite ledger with failures and an outage, and a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from support.memory_zookeeper import MemoryZooKeeper
from support.states import Rig, word_table
from support.zookeeper_backends import metas
from txstream.core.errors import ServiceUnavailableError
from txstream.core.transaction import Txid, attempt_id
from txstream.inspect import databases
from txstream.plugins.audit import fsck_run
from txstream.plugins.web import site as site_module
from txstream.plugins.web.app import make_app
from txstream.plugins.web.site import Site
from txstream.settings import Settings
from txstream.state import open_database

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
TXIDS = 30
AWAY = "lines/1"
BASE = "http://127.0.0.1:8765"


def ranges(txid: int, *partitions: int) -> dict[str, Any]:
    return {f"lines/{n}": {"start": 10 * txid, "end": 10 * txid + 10} for n in partitions}


def fill(rig: Rig, txids: int = TXIDS) -> None:
    """Commit batches of two partitions, the second of which txids 10 to 12 leave out. Txid 5 fails once."""
    for txid in range(1, txids + 1):
        is_away = 10 <= txid <= 12
        kept = {"partitions": ranges(txid, *([0] if is_away else [0, 1]))}
        if is_away:
            kept["unavailable"] = {AWAY: "broker 2 does not answer"}
        error = "txid 5 attempt 1.4, component 'split', task 0: ValueError: <b>bad</b>" if txid == 5 else None
        rig.commit(txid, {f"w{txid}": 1, "the": 1}, metas=kept, error=error)


def filled(folder: Path, txids: int = TXIDS) -> Rig:
    """Return a filled ledger in a new SQLite file, which tests share and do not write to."""
    url = f"sqlite:///{folder / 'state.db'}"
    rig = Rig(open_database(url), url, word_table("words")).join()  # as the topology in ZooKeeper
    fill(rig, txids)
    return rig


class Served:
    """The page, asked as a browser does. `away` takes ZooKeeper away."""

    def __init__(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, *, partitions: int = 2, **options: Any
    ) -> None:
        self.zookeeper = MemoryZooKeeper()
        self.store = self.zookeeper.run_topology(rig.topology)
        self.away = False
        self._open(monkeypatch)
        last = max((row.txid for row in rig.database.batches(rig.topology)), default=0)
        for txid in range(1, last + 1):
            self.store.persist(Txid(txid), metas(10 * txid, partitions))
            self.store.advance(Txid(txid), attempt_id(1, txid), None)
        self._serve(rig.url, **options)

    @classmethod
    def over(
        cls, zookeeper: MemoryZooKeeper, url: str, monkeypatch: pytest.MonkeyPatch, **options: Any
    ) -> Served:
        """Return the page over what runs have left."""
        served = cls.__new__(cls)
        served.zookeeper, served.away = zookeeper, False
        served._open(monkeypatch)
        served._serve(url, **options)
        return served

    def _open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (site_module, databases, fsck_run):
            monkeypatch.setattr(module, "open_zookeeper", self._opened)

    def _serve(self, url: str, **options: Any) -> None:
        self.site = Site(Settings(zookeeper="127.0.0.1:1", database=url))
        self.client = TestClient(make_app(self.site, **options), base_url=BASE, follow_redirects=False)

    @contextmanager
    def _opened(self, settings: Settings) -> Iterator[Any]:
        if self.away:
            raise ServiceUnavailableError("ZooKeeper at 127.0.0.1:1 did not answer within 3 s")
        yield self.zookeeper

    def forget(self) -> None:
        """Have the next look read everything anew."""
        self.site._kept.clear()
        self.site._away = 0.0, None
        self.site.close()

    def get(self, path: str, status: int = 200, **headers: str) -> str:
        answer = self.client.get(path, headers={"accept": "text/html", **headers})
        assert answer.status_code == status, (path, answer.text)
        return str(answer.text)

    def json(self, path: str, status: int = 200) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == status, (path, answer.text)
        return answer.json()

    def post(self, path: str, form: dict[str, str] | None = None) -> Any:
        """Post a form of one of our pages."""
        return self.client.post(path, headers={"origin": BASE}, data=form or {})
