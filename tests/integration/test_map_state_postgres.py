"""States of committers on a real PostgreSQL."""

from __future__ import annotations

import pytest
from support.server_map_states import ServerMapStates


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class TestMapStates(ServerMapStates):
    pass
