"""What several unit tests start from."""

from __future__ import annotations

import pytest
from support.inmemory import MemoryLog

import txstream.engine.driver.loop
import txstream.engine.driver.planning
import txstream.engine.driver.retries


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits between attempts are for outages; in a test they only cost time."""
    monkeypatch.setattr(txstream.engine.driver.retries, "BACKOFF_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(txstream.engine.driver.retries, "BACKOFF_LONGEST_SECONDS", 0.005)
    monkeypatch.setattr(txstream.engine.driver.loop, "BACKOFF_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(txstream.engine.driver.planning, "_PARTITION_CHECK_SECONDS", 0.001)


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of lines; batches of two records make three of it."""
    return MemoryLog({"a": ["the cat", "the dog", None, "a cat"], "b": ["the end", "of the cat"]})
