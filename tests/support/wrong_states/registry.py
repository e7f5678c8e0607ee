"""The wrong stores by the promise that they break."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txstream.plugins.proof.stores.memory import MemoryBackend
from txstream.state import TopologyStates

WRONG: dict[str, list[type[MemoryBackend]]] = {}
Kind = TypeVar("Kind", bound=type[MemoryBackend] | type[TopologyStates])


def bound_to(kind: type[TopologyStates]) -> type[MemoryBackend]:
    """Return a store that binds its topologies with this class."""

    class Store(MemoryBackend):
        bound = kind

    Store.__name__ = Store.__qualname__ = kind.__name__
    return Store


def breaks(*promises: str) -> Callable[[Kind], Kind]:
    """Enter a store, or the class that a store binds its topologies with, among the wrong ones."""

    def enter(kind: Kind) -> Kind:
        store = bound_to(kind) if issubclass(kind, TopologyStates) else kind
        for promise in promises:
            WRONG.setdefault(promise, []).append(store)
        return kind

    return enter
