"""Every column type and every reducer in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.reducer_contract import ReducerContract
from support.type_contract import AllTypesContract

from txstream.state.store.memory import forget


@pytest.fixture
def url(unique: str) -> Iterator[str]:
    yield f"memory://{unique}"
    forget(unique)


class TestTypes(AllTypesContract):
    pass


class TestReducers(ReducerContract):
    pass
