"""Fixtures that several unit tests share."""

from __future__ import annotations

import pytest
from support.inmemory import MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of lines, which make three batches of two records."""
    return MemoryLog({"a": ["the cat", "the dog", None, "a cat"], "b": ["the end", "of the cat"]})
