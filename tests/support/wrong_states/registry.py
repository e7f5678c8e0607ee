"""The wrong stores by the promise that they break."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txstream.state import MemoryBackend

WRONG: dict[str, list[type[MemoryBackend]]] = {}
Kind = TypeVar("Kind", bound=type[MemoryBackend])


def breaks(*promises: str) -> Callable[[Kind], Kind]:
    """Enters a store among the wrong ones."""

    def enter(kind: Kind) -> Kind:
        for promise in promises:
            WRONG.setdefault(promise, []).append(kind)
        return kind

    return enter
