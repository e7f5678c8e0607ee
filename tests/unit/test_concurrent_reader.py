"""Queries while batches are committed, in SQLite."""

from __future__ import annotations

import pytest
from support.reader_contract import ReaderContract


class TestSQLite(ReaderContract):
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url
