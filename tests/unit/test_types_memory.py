"""Every column type in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.type_contract import AllTypesContract

from txstream.state.memory import forget


@pytest.fixture
def url(unique: str) -> Iterator[str]:
    yield f"memory://{unique}"
    forget(unique)


class TestTypes(AllTypesContract):
    pass
