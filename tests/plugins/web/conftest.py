"""A page over a ledger that was filled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.states import Rig
from support.ui_site import Served, filled


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
