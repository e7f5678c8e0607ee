"""The stores that need no server keep every promise of the conformance suite.

PostgreSQL, MariaDB and MySQL have tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.promises import STATE_KINDS

from txstream.plugins.proof.stores.memory import forget
from txstream.testing import check_state_backend


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One URL for all checks: each check has topologies and tables of its own."""
    folder: Path = tmp_path_factory.mktemp("promises")
    yield "memory://promises" if request.param == "memory" else f"sqlite:///{folder / 'state.db'}"
    forget("promises")


@pytest.mark.parametrize("kind", STATE_KINDS)
def test_promises(kind: str, url: str) -> None:
    report = check_state_backend(url, only=STATE_KINDS[kind])
    not_here = {"other-processes-see-it"} if url.startswith("memory://") else set()
    assert dict(report.not_applicable).keys() == not_here & set(STATE_KINDS[kind]), report
