"""The executor path in SQLite and in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.executor_contract import ExecutorContract
from support.lock_contract import LockContract

from txstream.state.store.memory import forget


class TestSQLite(ExecutorContract):
    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url


class TestSQLiteLocks(LockContract):
    begin = ("BEGIN IMMEDIATE",)
    share = "WHERE txstream_fence.topology = ? AND txstream_fence.uuid = ? AND txstream_fence.attempt = ?"

    @pytest.fixture
    def url(self, sqlite_url: str) -> str:
        return sqlite_url


class TestMemory(ExecutorContract):
    @pytest.fixture
    def url(self, unique: str) -> Iterator[str]:
        yield f"memory://{unique}"
        forget(unique)
