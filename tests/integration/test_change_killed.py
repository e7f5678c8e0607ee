"""Commands that change a topology, killed at each of their steps over SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.changes_killed import (
    desk,
    test_a_killed_fork_is_there_or_is_made_by_the_same_command,
    test_a_killed_rewind_is_finished_or_not_begun,
    test_a_killed_savepoint_is_whole_or_dropped,
    test_a_killed_swap_is_finished_or_not_begun,
)

__all__ = [
    "desk",
    "test_a_killed_fork_is_there_or_is_made_by_the_same_command",
    "test_a_killed_rewind_is_finished_or_not_begun",
    "test_a_killed_savepoint_is_whole_or_dropped",
    "test_a_killed_swap_is_finished_or_not_begun",
]
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.fixture(params=["sqlite", "postgres"])
def urls(request: pytest.FixtureRequest, tmp_path: Path, unique: str) -> list[str]:
    names = [f"{unique}_{number}" for number in (0, 1)]
    if request.param == "sqlite":
        return [f"sqlite:///{tmp_path / name}.db" for name in names]
    server = request.getfixturevalue(request.param)
    return [server.create_database(name) for name in names]
