"""Commands that change a topology, killed at each of their steps over MariaDB and MySQL."""

from __future__ import annotations

import pytest
from mysql_servers import MySQLFamilyServer
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


@pytest.fixture
def urls(mysql_server: MySQLFamilyServer, unique: str) -> list[str]:
    return [mysql_server.create_database(f"{unique}_{number}") for number in (0, 1)]
