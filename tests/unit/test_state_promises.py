"""The stores that need no server keep every promise of the conformance suite.

PostgreSQL, MariaDB and MySQL have tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from txstream.state.store.memory import forget
from txstream.testing import StateCheck, state_checks


@pytest.fixture(scope="module", params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One URL for all checks: each check has topologies and tables of its own."""
    folder: Path = tmp_path_factory.mktemp("promises")
    yield "memory://promises" if request.param == "memory" else f"sqlite:///{folder / 'state.db'}"
    forget("promises")


@pytest.mark.parametrize("check", state_checks(), ids=str)
def test_promise(check: StateCheck, url: str) -> None:
    reason = check.run(url)
    in_memory = url.startswith("memory://")
    assert (reason is not None) == (in_memory and check.name == "other-processes-see-it"), reason
