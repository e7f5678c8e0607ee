"""What several unit tests start from."""

from __future__ import annotations

import pytest
from support.inmemory import MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    """Two partitions of lines; batches of two records make three of it."""
    return MemoryLog({"a": ["the cat", "the dog", None, "a cat"], "b": ["the end", "of the cat"]})
