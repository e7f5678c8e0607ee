"""Commands that change a topology, killed at each of their steps over SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.changes_killed import *  # noqa: F403 - tests and what they need


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> list[str]:
    names = [f"{unique}_{number}" for number in (0, 1)]
    if request.param == "sqlite":
        return [f"sqlite:///{tmp_path / name}.db" for name in names]
    server = request.getfixturevalue(request.param)
    return [server.create_database(name) for name in names]
