"""Tools for testing topologies: `InProcessRunner` runs batches without Spark; `faults` stops a driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txstream.testing.inprocess import InProcessRunner

__all__ = ["InProcessRunner"]


def __getattr__(name: str) -> Any:
    # The command line imports `txstream.testing.faults` and must not load an engine with it.
    if name == "InProcessRunner":
        from txstream.testing.inprocess import InProcessRunner

        return InProcessRunner
    raise AttributeError(f"module 'txstream.testing' has no attribute {name!r}")
