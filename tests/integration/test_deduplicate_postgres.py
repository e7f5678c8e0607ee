"""`DeduplicateBolt` with a table of a real PostgreSQL."""

from __future__ import annotations

import pytest
from support.deduplicating import TableOfFirst


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class TestTableOfFirst(TableOfFirst):
    pass
