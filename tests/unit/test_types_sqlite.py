"""Every column type in SQLite."""

from __future__ import annotations

import pytest
from support.type_contract import AllTypesContract


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestTypes(AllTypesContract):
    pass
