"""Every column type and every reducer in SQLite."""

from __future__ import annotations

import pytest
from support.reducer_contract import ReducerContract
from support.type_contract import AllTypesContract


@pytest.fixture
def url(sqlite_url: str) -> str:
    return sqlite_url


class TestTypes(AllTypesContract):
    pass


class TestReducers(ReducerContract):
    pass
